"""Values at the edge of what Arrow has, in the key and in the rows of R."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

import semistream
from differential.random_arrow import plain_values, random_array
from semistream.relation.relation import Relation
from semistream.relation.rows.any_type import gather
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.rows.row_sizes import batch_bytes

MOST = 2**63 - 1


@pytest.mark.parametrize(
    "kind", [pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("ns", "UTC"), pa.duration("s"), pa.date64()], ids=str
)
@pytest.mark.parametrize("shards", [1, 3])
def test_several_key_columns_with_extreme_moments(kind: pa.DataType, shards: int, tmp_path: Path) -> None:
    # what Spark counts in wraps around after so many: microseconds of 64 bits, days of 32
    day, wrap = (86_400_000, 2**32) if kind == pa.date64() else (1, 2**58)
    ticks = [-MOST // day + 1, -wrap, 0, 5, 5 + wrap, MOST // day]
    moments = pa.array([tick * day for tick in ticks], pa.int64()).view(kind)
    count = len(moments)
    master = pa.table({"a": [1] * count, "t": moments, "x": range(count)})
    relation = Relation.build(master, tmp_path / "r", ["a", "t"], shards=shards)
    stream = pa.record_batch({"a": [1] * count, "t": moments, "s": range(count)})
    for algorithm in ("hybridjoin", "ssij"):
        join = semistream.create(algorithm, relation, on=["a", "t"], how="left")
        pairs = {
            pair
            for result in join.process([stream])
            for pair in zip(result["s"].to_pylist(), result["x"].to_pylist(), strict=True)
        }
        assert pairs == {(row, row) for row in range(count)}


@pytest.mark.parametrize("options", [{}, {"memory": 4000}, {"shards": 2}, {"clustered": False}], ids=str)
def test_more_values_than_one_dictionary_can_hold(options: dict[str, int], tmp_path: Path) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    batches = []
    for number in range(5):
        names = pa.array([f"{number} {row}" for row in range(50)]).dictionary_encode().cast(kind)
        nested = pa.ListArray.from_arrays(pa.array(range(51), pa.int32()), names)
        ids = np.arange(50) * 5 + number
        batches.append(pa.record_batch({"id": ids, "name": names, "names": nested}))
    relation = Relation.build(batches, tmp_path / "r", "id", page_size=1024, **options)
    assert relation.schema.field("name").type == kind
    join = semistream.create("inlj", relation, on="id")
    found = [row for out in join.process([pa.record_batch({"id": range(250)})]) for row in out.to_pylist()]
    assert len(found) == 250
    for row in found:
        expected = f"{row['id'] % 5} {row['id'] // 5}"
        assert (row["name"], row["names"]) == (expected, [expected])


def test_what_a_null_struct_or_list_hides_is_not_looked_at() -> None:
    hidden = pa.array([None, None], pa.struct([("d", pa.dictionary(pa.int16(), pa.string()))]))
    codec = RowCodec(pa.schema({"s": hidden.type}))
    batch = pa.record_batch({"s": hidden})
    rows = codec.encode(batch)
    assert codec.decode(rows.data, rows.starts).to_pydict() == {"s": [None, None]}
    assert rows.lengths.tolist() == codec.lengths(batch).tolist()
    # the items of the NULL in the middle point nowhere
    items = pa.DictionaryArray.from_arrays(pa.array([0, 1, 99, 99, 1, 0], pa.int8()), ["a", "b"], safe=False)
    pairs = pa.Array.from_buffers(
        pa.list_(items.type, 2), 3, [pa.py_buffer(bytes([0b101]))], children=[items]
    )  # fmt: skip
    codec = RowCodec(pa.schema({"pairs": pairs.type}))
    batch = pa.record_batch({"pairs": pairs})
    rows = codec.encode(batch)
    assert codec.decode(rows.data, rows.starts).to_pydict() == {"pairs": [["a", "b"], None, ["b", "a"]]}
    assert rows.lengths.tolist() == codec.lengths(batch).tolist()


@pytest.mark.parametrize("fixed", [False, True])
def test_lists_of_types_that_arrow_cannot_flatten_are_measured(fixed: bool) -> None:
    """Lists with NULLs, of structs with extensions in them, whose texts are views."""
    numbers = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)] * 6, pa.binary(16)))
    inside = pa.StructArray.from_arrays([numbers, pa.array(["x" * 20] * 6, pa.string_view())], names=["a", "b"])
    lists = (
        pa.FixedSizeListArray.from_arrays(inside, 2, mask=pa.array([False, True, False]))
        if fixed
        else pa.ListArray.from_arrays(pa.array([0, 2, None, 4, 6], pa.int32()), inside)
    )
    batch = pa.record_batch({"lists": lists})
    assert batch_bytes(batch) == 8 * len(lists) + 6 * (16 + 16 + 20)
    assert batch_bytes(batch.slice(1, 1)) < batch_bytes(batch.slice(1, 2)) < batch_bytes(batch)
    assert batch_bytes(batch.slice(0, 0)) == 0


def test_bytes_of_lists_without_values() -> None:
    """Arrow gives such an array a buffer of a size of its own."""
    kind = pa.list_(pa.binary_view(), 0)
    buffer = pa.py_buffer(b"\0")
    empty = pa.Array.from_buffers(pa.binary_view(), 0, [None, buffer])
    lists = pa.Array.from_buffers(kind, 3, [None], children=[empty])
    assert batch_bytes(pa.record_batch({"v": lists})) <= 3 * 8


@pytest.mark.parametrize(
    "nested",
    [
        lambda runs: pa.list_(runs, 3),
        lambda runs: pa.list_(pa.struct({"a": pa.int32(), "b": runs}), 2),
        lambda runs: pa.list_(pa.sparse_union([pa.field("x", runs)])),
    ],
)
def test_nulls_beside_nested_runs_are_sound(nested: Callable[[pa.DataType], pa.DataType]) -> None:
    """Arrow's own NULLs of such types are not valid arrays."""
    kind = nested(pa.run_end_encoded(pa.int32(), pa.string()))
    values = random_array(kind, 40, Random(3), nulls=0.3)
    codec = RowCodec(pa.schema({"v": kind}))
    rows = codec.encode(pa.record_batch({"v": values}))
    decoded = codec.decode(rows.data, rows.starts)
    decoded.validate(full=True)
    assert plain_values(decoded["v"]) == plain_values(values)
    taken = gather(values, np.array([1, 2, 0]), np.array([False, True, False]), RowCodec)
    taken.validate(full=True)
    assert plain_values(taken)[1] == "None" or pa.types.is_union(kind)


def test_columns_begin_where_arrow_wants_them() -> None:
    """Fields of odd widths before a word must not move it off a multiple of eight."""
    batch = pa.record_batch({"odd": pa.array([b"abc"] * 5, pa.binary(3)), "flag": [True] * 5, "id": range(5)})
    codec = RowCodec(batch.schema)
    rows = codec.encode(batch)
    found = codec.decode(rows.data, rows.starts)
    assert found.equals(batch)
    assert found.column("id").buffers()[1].address % 8 == 0
