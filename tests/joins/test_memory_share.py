"""What a share of R, such as ``memory="5%"``, comes to: small relations are held whole, and bytes are exact."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import semistream
from packed_builds import builds_as_released
from semistream.core.errors import BudgetTooSmallError
from semistream.core.units import SMALL_RELATION, memory_bytes, whole_relation
from semistream.joins import algorithms, find
from semistream.joins.adaptive.adaptive_layout import mean_decoded_row
from semistream.relation.relation import Relation
from semistream.relation.synthetic import synthetic_relation
from semistream.tuner import tune

NAMES = pa.array([f"{number * 7919 % 1_000_003:06}" for number in range(9000)])
STREAM = pa.schema([("id", pa.string()), ("paid", pa.float64())])


def products(rows: int) -> pa.Table:
    names = [f"product {number} of the catalogue, {number % 97} to a box" for number in range(rows)]
    return pa.table({"id": [f"P{number:06d}" for number in range(rows)], "name": names, "price": np.arange(rows) / 7})


def sales(rows: int, keys: int, seed: int) -> pa.RecordBatch:
    numbers = np.random.default_rng(seed).integers(0, keys + keys // 100, rows)
    return pa.record_batch({"id": [f"P{number:06d}" for number in numbers], "paid": np.ones(rows)})


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    with Relation.build(products(500), tmp_path_factory.mktemp("few") / "r", "id") as relation:
        yield relation


@pytest.fixture(scope="module")
def some(tmp_path_factory):
    with Relation.build(products(20_000), tmp_path_factory.mktemp("some") / "r", "id") as relation:
        yield relation


def test_a_small_relation_is_read_once(some):
    join = semistream.create("adaptivejoin", some, on="id", memory="5%")
    for number in range(4):
        assert sum(batch.num_rows for batch in join.process([sales(10_000, 20_000, number)])) == 10_000
    # until as many pages as R has have been read, it is not known that reading all of it pays
    assert join.stats.pages_read <= 2 * some.page_count
    assert join.budget.peak <= join.budget.total == whole_relation(some.nbytes, some.row_count)


@pytest.mark.parametrize("algorithm", algorithms())
@pytest.mark.parametrize("memory", ["0.1%", "5%", "100%"])
def test_no_share_of_few_rows_is_refused(few, algorithm, memory):
    join = semistream.create(algorithm, few, on="id", memory=memory, schema=STREAM)
    assert sum(batch.num_rows for batch in join.process([sales(300, 500, 0)])) == 300
    if find(algorithm).bounded:
        assert join.budget.peak <= join.budget.total == memory_bytes(memory, few.nbytes, few.row_count)


@pytest.mark.parametrize(("rows", "width"), [(400, 0), (20_000, 0), (400_000, 0), (400, 30), (150_000, 30)])
def test_what_is_said_to_hold_a_relation_does(tmp_path, rows, width):
    table = pa.table({"id": np.arange(rows)})
    if width:
        table = table.append_column("text", pa.array(["x" * width] * rows))
    stream = pa.schema([("id", pa.int64())])
    with Relation.build(table, tmp_path / "r", "id") as relation:
        assert relation.nbytes <= SMALL_RELATION
        part = 3 * whole_relation(relation.nbytes, rows) // 4  # where rows are parked, they have the rest
        join = semistream.create("adaptivejoin", relation, on="id", memory=part, schema=stream)
        assert join._memory.may_hold_all


@pytest.mark.parametrize("kind", ["one byte", "numbers", "words", "texts"])
def test_what_is_said_to_hold_a_packed_relation_does(tmp_path, kind):
    """Packed rows are short, and vary in length."""
    rows, generator = 60_000, np.random.default_rng(1)
    columns = {
        "one byte": {"a": np.arange(rows) % 200, "b": np.zeros(rows, np.int64)},
        "numbers": {"a": np.arange(rows) % 200, "b": generator.integers(0, 60_000, rows), "c": np.arange(rows) % 99},
        "words": {name: NAMES.take(generator.integers(0, count, rows)) for name, count in (("a", 200), ("b", 9000))},
        "texts": {"a": [f"product number {number} of the house" for number in range(rows)]},
    }[kind]
    with builds_as_released():
        Relation.build(pa.table({"id": np.arange(rows), **columns}), tmp_path / "r", "id").close()
    with Relation.open(tmp_path / "r") as relation:
        assert relation.packing is not None
        part = 3 * whole_relation(relation.nbytes, rows) // 4  # where rows are parked, they have the rest
        schema = pa.schema([("id", pa.int64())])
        join = semistream.create("adaptivejoin", relation, on="id", memory=part, schema=schema)
        assert join._memory.may_hold_all


def test_a_packed_row_counts_as_the_bytes_of_its_result(tmp_path):
    """Where a key has several rows, as many results are made together as of plain rows."""
    table = products(20_000)
    with builds_as_released():
        Relation.build(table, tmp_path / "packed", "id").close()
    Relation.build(table, tmp_path / "plain", "id", encoding="plain").close()
    with Relation.open(tmp_path / "packed") as packed, Relation.open(tmp_path / "plain") as plain:
        assert packed.packing is not None
        assert mean_decoded_row(packed) == pytest.approx(mean_decoded_row(plain), rel=0.25)


def test_a_share_of_a_large_relation_is_exact():
    relation = synthetic_relation(200_000)
    assert relation.nbytes > SMALL_RELATION
    join = semistream.create("adaptivejoin", relation, on="id", memory="5%", schema=pa.schema([("id", pa.int64())]))
    assert join.budget.total == relation.nbytes * 5 // 100
    assert tune(relation, "5%", algorithms=["adaptivejoin"]).memory == relation.nbytes * 5 // 100


def test_a_share_is_raised_to_what_the_join_needs():
    relation, schema = synthetic_relation(200_000), pa.schema([("id", pa.int64())])
    least = find("hybridjoin").minimum_memory(relation, schema, on="id")
    for options in ({"schema": schema}, {}):
        join = semistream.create("hybridjoin", relation, on="id", how="inner", memory="0.001%", **options)
        rows = sum(batch.num_rows for batch in join.process([pa.record_batch({"id": [5, 7, 9]})]))
        assert rows == 3
        assert join.budget.total == least >= join.budget.peak


def test_bytes_stay_exact(few, some):
    with pytest.raises(BudgetTooSmallError, match="needs at least"):
        semistream.create("adaptivejoin", few, on="id", memory=few.nbytes // 20, schema=STREAM)
    join = semistream.create("adaptivejoin", some, on="id", memory=some.nbytes // 5, schema=STREAM)
    assert join.budget.total == some.nbytes // 5


@pytest.mark.parametrize("memory", ["0%", "%", "-5%"])
def test_what_is_no_share_is_refused(few, memory):
    with pytest.raises(ValueError, match="memory"):
        semistream.create("adaptivejoin", few, on="id", memory=memory)
