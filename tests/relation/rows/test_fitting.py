"""Types that Arrow's own cast, take and NULLs do not cover: updates, compaction and joins know them all the same."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import semistream
from differential.random_arrow import plain_values, random_array
from semistream.core.errors import SemistreamError
from semistream.relation.relation import Relation
from semistream.relation.rows.fitting import as_type, fit, no_rows, null_array


def union(rows: int) -> pa.Array:
    types = pa.array([row % 2 for row in range(rows)], pa.int8())
    return pa.UnionArray.from_sparse(types, [pa.array(range(rows)), pa.array([f"text {row}" for row in range(rows)])])


def runs(values: list[Any]) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array(range(1, len(values) + 1), pa.int32()), values)


def rows_of(relation: Relation) -> list[dict[str, Any]]:
    table = relation.to_table()
    table.validate(full=True)
    return sorted(table.to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("nested", [False, True])
def test_unions_are_updated_with_rows_or_without(tmp_path: Path, nested: bool) -> None:
    column = pa.StructArray.from_arrays([union(10)], ["it"]) if nested else union(10)
    table = pa.table({"id": range(10), "of": column})
    relation = Relation.build(table.slice(0, 6), tmp_path / "r", "id")
    relation.apply(deletes=pa.array([3]))
    relation.apply(table.slice(3, 4))  # a slice whose children are longer
    assert rows_of(relation) == table.slice(0, 7).to_pylist()
    semistream.delete(tmp_path / "r", pa.array([0]))
    semistream.upsert(tmp_path / "r", table.slice(5))
    semistream.compact(tmp_path / "r")
    assert rows_of(Relation.open(tmp_path / "r")) == table.slice(1).to_pylist()


@pytest.mark.parametrize("encoding", ["dictionary", "runs"])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_encoded_views_are_decoded(kind: pa.DataType, encoding: str) -> None:
    """Polars gives its categories as dictionaries of views."""
    words = pa.array(["red", None], pa.string_view())
    numbers = pa.array([1, 2] if encoding == "runs" else [0, 1], pa.int32())
    made = pa.RunEndEncodedArray if encoding == "runs" else pa.DictionaryArray
    found = as_type(made.from_arrays(numbers, words), kind)
    found.validate(full=True)
    assert found.equals(words.cast(kind))


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("s"), pa.date32()], ids=str)
@pytest.mark.parametrize("encoding", ["dictionary", "runs"])
def test_encoded_keys_of_exact_kinds(tmp_path: Path, kind: pa.DataType, encoding: str) -> None:
    plain = pa.array(range(10), pa.int32()).cast(pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind)
    keys = plain.dictionary_encode() if encoding == "dictionary" else runs(plain)
    table = pa.table({"id": keys, "v": range(10)})
    relation = Relation.build(table, tmp_path / "r", "id")
    assert relation.to_table().schema == table.schema
    relation.apply(pa.table({"id": keys.slice(2, 2), "v": [20, 30]}), deletes=plain.slice(9))
    assert [row["v"] for row in rows_of(relation)] == [0, 1, 20, 30, 4, 5, 6, 7, 8]
    semistream.upsert(tmp_path / "r", pa.table({"id": keys.slice(4, 1), "v": [40]}))
    semistream.compact(tmp_path / "r")
    with Relation.open(tmp_path / "r") as whole:
        expected = [{**row, "v": 40} if row["v"] == 4 else row for row in table.to_pylist()]
        assert rows_of(whole) == expected
        assert whole.to_table().schema == table.schema
        stream = pa.record_batch({"low": plain.slice(3, 1), "high": plain.slice(5, 1)})
        join = semistream.create("ssij", whole, on=("low", "high"), condition="between")
        found = [row for batch in join.process([stream]) for row in batch.to_pylist()]
        assert sorted(row["id"] for row in found) == plain.slice(3, 3).to_pylist()


@pytest.mark.parametrize("algorithm", ["oracle", "inlj", "p_cachejoin"])
def test_no_partner_in_an_r_of_structs_of_runs(tmp_path: Path, algorithm: str) -> None:
    inner = pa.StructArray.from_arrays([runs(["a", "b", None])], ["it"])
    table = pa.table({"id": range(3), "of": pa.StructArray.from_arrays([inner], ["it"])})
    join = semistream.create(algorithm, Relation.build(table, tmp_path / "r", "id"), on="id")
    found = list(join.process([pa.record_batch({"id": [1, 7, None, 2]})]))
    for batch in found:
        batch.validate(full=True)
    rows = [row for batch in found for row in batch.to_pylist()]
    assert len(rows) == 4
    assert {row["id"]: row["of"] for row in rows} == {
        1: {"it": {"it": "b"}}, 2: {"it": {"it": None}}, 7: None, None: None
    }  # fmt: skip


def test_columns_may_come_in_another_order(tmp_path: Path) -> None:
    batches = [pa.record_batch({"id": [1], "v": [10]}), pa.record_batch({"v": [20], "id": [2]})]
    relation = Relation.build(batches, tmp_path / "r", "id")
    assert rows_of(relation) == [{"id": 1, "v": 10}, {"id": 2, "v": 20}]
    relation.apply([pa.record_batch({"v": [11], "id": [1]}), pa.record_batch({"id": [3], "v": [30]})])
    assert [row["v"] for row in rows_of(relation)] == [11, 20, 30]
    join = semistream.create("hybridjoin", relation, on="id")
    stream = [pa.record_batch({"id": [1], "n": [5]}), pa.record_batch({"n": [6], "id": [3]})]
    found = [row for batch in join.process(stream) for row in batch.to_pylist()]
    assert sorted(found, key=lambda row: row["id"]) == [{"id": 1, "n": 5, "v": 11}, {"id": 3, "n": 6, "v": 30}]


def test_other_columns_are_refused_by_name(tmp_path: Path) -> None:
    batches = [pa.record_batch({"id": [1], "v": [10]}), pa.record_batch({"id": [2], "w": [20]})]
    with pytest.raises(SemistreamError, match=r"\['id', 'w'\] instead of \['id', 'v'\]"):
        Relation.build(batches, tmp_path / "r", "id")


@pytest.mark.parametrize(
    "kind",
    [
        pa.run_end_encoded(pa.int16(), pa.string()),
        pa.list_(pa.struct({"a": pa.run_end_encoded(pa.int32(), pa.int8())})),
        pa.list_(pa.run_end_encoded(pa.int32(), pa.int8()), 2),
        pa.struct({"a": pa.run_end_encoded(pa.int32(), pa.int8()), "b": pa.dictionary(pa.int8(), pa.string())}),
        pa.sparse_union([pa.field("a", pa.struct({"b": pa.run_end_encoded(pa.int32(), pa.int8())}))]),
        pa.map_(pa.string(), pa.struct({"a": pa.run_end_encoded(pa.int32(), pa.int8())})),
    ],
    ids=str,
)
def test_nulls_and_nothing_of_any_type(kind: pa.DataType) -> None:
    nulls = null_array(3, kind)
    nulls.validate(full=True)
    assert nulls.type == kind
    assert nulls.to_pylist() == [None, None, None]
    empty = no_rows(pa.schema({"it": kind}))
    empty.validate(full=True)
    assert empty.num_rows == 0
    assert fit(empty, empty.schema) is empty


def test_dictionaries_beside_runs_in_a_struct() -> None:
    """Arrow's cast of such a struct is not valid."""
    runs = pa.run_end_encoded(pa.int32(), pa.int64())
    narrow, wide = (
        pa.struct({"a": pa.dictionary(index, pa.binary()), "b": runs, "c": pa.list_(pa.struct({"d": runs}), 2)})
        for index in (pa.uint8(), pa.int32())
    )
    for rows in (0, 20):
        values = random_array(narrow, rows, Random(1), nulls=0.3)
        made = as_type(values, wide)
        made.validate(full=True)
        assert made.type == wide
        assert plain_values(made) == plain_values(values)


def test_slices_of_lists_of_lists_of_nulls_beside_a_dictionary() -> None:
    """Arrow's cast of such a struct, to a dictionary with wider numbers, leaves offsets past the values."""
    lists = pa.array([[[None] * 100] * 3, [[None]], [[], [None, None]]], pa.list_(pa.list_(pa.null())))
    words = pa.array(["a", "b", "a"]).dictionary_encode().cast(pa.dictionary(pa.int16(), pa.string()))
    whole = pa.StructArray.from_arrays([words, lists], ["word", "lists"])
    wider = pa.struct({"word": pa.dictionary(pa.int32(), pa.string()), "lists": lists.type})
    for first in range(3):
        part = whole.slice(first)
        found = as_type(part, wider)
        found.validate(full=True)
        assert found.type == wider
        assert found.to_pylist() == part.to_pylist()
