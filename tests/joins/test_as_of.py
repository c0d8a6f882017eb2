"""Joins of facts with the row of a history that was valid at their time, compared with DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream
from joins.as_of_cases import answers, as_lists, facts, history
from semistream import Relation
from semistream.core.errors import RelationBuildError

JOINS = ["oracle", "inlj", "adaptivejoin"]
TIMES: dict[str, Any] = {"valid_from": "since", "valid_to": "until"}
KINDS = [
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "Europe/Berlin")),
    *(pa.date32(), pa.date64(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint16(), pa.uint64()),
]


def joined(algorithm: str, relation: Relation, batches: list[pa.RecordBatch], **options: Any) -> pa.Table:
    options = {"on": "product", "as_of": "at", "memory": "1MB", **options}
    join = semistream.create(algorithm, relation, schema=batches[0].schema, **options)
    results = list(join.process(batches))
    join.check()
    assert join.budget.peak <= join.budget.total
    assert join.pending == 0
    return pa.Table.from_batches(results, join.output_schema)


@pytest.mark.parametrize("algorithm", JOINS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_each_fact_meets_the_row_of_its_time(tmp_path: Path, algorithm: str, kind: pa.DataType) -> None:
    random = np.random.default_rng(7)
    small = kind.bit_width == 8
    rows = history(random, 90, 3 if small else 8, kind, gap=10 if small else 50)
    relation = Relation.build(rows, tmp_path / "r", "id", page_size=512, valid_from="since", valid_to="until")
    batch = facts(random, 1500, 90, 70 if small else 500, kind)
    found = joined(algorithm, relation, [batch.slice(0, 700), batch.slice(700)])
    assert as_lists(found) == as_lists(answers(rows, batch, {"product": "id"}))


def test_facts_and_relation_may_have_other_units(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 1], "since": pa.array([10, 20], pa.timestamp("s")), "price": [1, 2]})
    relation = Relation.build(rows, tmp_path / "r", "id", valid_from="since")
    nanos = [9_999_999_999, 10_000_000_000, 19_999_999_999, 20_000_000_001]
    batch = pa.record_batch(
        {"fact": range(4), "product": [1] * 4, "at": pa.array(nanos, pa.timestamp("ns"))},
    )
    for algorithm in JOINS:
        assert as_lists(joined(algorithm, relation, [batch]))["price"] == [None, 1, 1, 2]


@pytest.mark.parametrize("algorithm", JOINS)
def test_times_beyond_the_relations_type(tmp_path: Path, algorithm: str) -> None:
    rows = pa.table(
        {"id": [1, 2, 2], "since": pa.array([5, 5, -128], pa.int8()), "until": pa.array([None, 127, -3], pa.int8())}
    )
    relation = Relation.build(rows, tmp_path / "r", "id", valid_from="since", valid_to="until")
    when = [-1000, 5, 126, 127, 128, 10**6]
    batch = pa.record_batch({"fact": range(12), "product": [1] * 6 + [2] * 6, "at": when * 2})
    found = as_lists(joined(algorithm, relation, [batch]))
    assert found["since"] == [None, 5, 5, 5, 5, 5, None, 5, 5, None, None, None]


@pytest.mark.parametrize("kind", [pa.uint64(), pa.int64(), pa.int8(), pa.timestamp("us")], ids=str)
def test_rows_that_begin_at_the_first_moment(tmp_path: Path, kind: pa.DataType) -> None:
    first = 0 if pa.types.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))

    def moments(values: list[int]) -> pa.Array:
        return pa.array(values, kind if pa.types.is_integer(kind) else pa.int64()).cast(kind)

    rows = pa.table({"id": [1, 1], "since": moments([first, first + 2]), "until": moments([first + 1, first + 3])})
    relation = Relation.build(rows, tmp_path / "r", "id", valid_from="since", valid_to="until")
    batch = pa.record_batch({"fact": range(4), "product": [1] * 4, "at": moments([first + at for at in range(4)])})
    for algorithm in JOINS:
        found = joined(algorithm, relation, [batch]).sort_by("fact")
        assert found["until"].equals(pa.chunked_array([moments([first + 1, 0, first + 3, 0])]).take([0, None, 2, None]))
    with pytest.raises(RelationBuildError, match="1 rows end at or before their begin"):
        Relation.build(rows.set_column(2, "until", moments([first, first + 3])), tmp_path / "s", "id", **TIMES)


@pytest.mark.parametrize("algorithm", JOINS)
@pytest.mark.parametrize("how", ["left", "inner"])
def test_without_ends_the_next_version_ends_a_row(tmp_path: Path, algorithm: str, how: str) -> None:
    random, kind = np.random.default_rng(3), pa.timestamp("us")
    rows = history(random, 200, 30, kind, ends=False, texts=False)
    relation = Relation.build(rows, tmp_path / "r", "id", page_size=512, shards=3, valid_from="since")
    batch = facts(random, 3000, 200, 1500, kind)
    found = joined(algorithm, relation, [batch], how=how)
    assert as_lists(found) == as_lists(answers(rows, batch, {"product": "id"}, how=how))


@pytest.mark.parametrize("algorithm", JOINS)
def test_composite_keys(tmp_path: Path, algorithm: str) -> None:
    random, kind = np.random.default_rng(5), pa.timestamp("ms", "UTC")
    rows = history(random, 300, 12, kind)
    rows = rows.append_column("shop", pa.array([f"shop {number % 5}" for number in rows["id"].to_pylist()]))
    relation = Relation.build(
        rows, tmp_path / "r", ["id", "shop"], valid_from="since", valid_to="until", page_size=1024
    )
    batch = facts(random, 2000, 300, 700, kind)
    shops = [
        None if i % 50 == 0 else f"shop {(number or 0) % 5}" for i, number in enumerate(batch["product"].to_pylist())
    ]
    batch = batch.append_column("where", pa.array(shops))
    found = joined(algorithm, relation, [batch], on=["product", "where"])
    assert as_lists(found) == as_lists(answers(rows, batch, {"product": "id", "where": "shop"}))


@pytest.mark.parametrize("memory", [None, 30_000, 200_000])
@pytest.mark.parametrize("texts", [True, False])
def test_a_key_with_thousands_of_versions_needs_little_memory(tmp_path: Path, memory: int | None, texts: bool) -> None:
    random, kind = np.random.default_rng(11), pa.timestamp("us")
    many = history(random, 2, 20_000, kind, texts=texts)
    rows = pa.concat_tables([many, history(random, 50, 3, kind, texts=texts).filter(pa.compute.field("id") > 6)])
    relation = Relation.build(rows, tmp_path / "r", "id", page_size=512, valid_from="since", valid_to="until")
    batch = facts(random, 3000, 50, 700_000, kind)
    batch = batch.set_column(1, "product", pa.array(random.choice([0, 3, 9, 12], 3000)))
    least = type(semistream.create("adaptivejoin", relation, on="product", as_of="at")).minimum_memory(
        relation, batch.schema, on="product", as_of="at"
    )
    found = joined("adaptivejoin", relation, [batch], memory=memory or least)
    assert as_lists(found) == as_lists(answers(rows, batch, {"product": "id"}))
    assert found["fact"].to_pylist() == list(range(3000)), "results are not in stream order"


def test_single_versions_are_cached(tmp_path: Path) -> None:
    kind = pa.timestamp("us")
    begins = np.arange(5000) * 10
    rows = pa.table({"id": np.zeros(5000, np.int64), "since": pa.array(begins).cast(kind), "price": begins})
    relation = Relation.build(rows, tmp_path / "r", "id", page_size=512, valid_from="since")
    join = semistream.create("adaptivejoin", relation, on="id", as_of="at", memory=100_000)
    batch = pa.record_batch({"id": np.zeros(400, np.int64), "at": pa.array(25_000 + np.arange(400) % 50).cast(kind)})
    assert (
        pa.Table.from_batches(join.process([batch]))["price"].to_pylist()
        == (25_000 + np.arange(400) % 50 // 10 * 10).tolist()
    )
    pages = join.stats.pages_read
    assert 1 <= pages <= 3
    assert pa.Table.from_batches(join.process([batch]))["price"].to_pylist()[:11] == [25_000] * 10 + [25_010]
    assert join.stats.pages_read == pages, "cached versions were read again"
    assert len(join._arena) == 5, "other versions than the requested ones are cached"
    join.check()
