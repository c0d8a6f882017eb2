"""Joins with a cache in little memory: products with text keys, of which a twentieth fits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.costs import costs_of, load_constants
from semistream.relation.relation import Relation
from semistream.tuner import describe
from semistream.workloads import ZipfKeys

ROWS, BATCH = 20_000, 3_000


@pytest.fixture(scope="module")
def products(tmp_path_factory):
    names = [f"product {number} of the catalogue, {number % 97} to a box, in green" for number in range(ROWS)]
    table = pa.table({
        "id": [f"P{number:06d}" for number in range(ROWS)], "name": names, "brand": [f"b{n % 31}" for n in range(ROWS)],
        "price": np.arange(ROWS) / 7, "cost": np.arange(ROWS) / 9,
    })  # fmt: skip
    with Relation.build(table, tmp_path_factory.mktemp("products") / "r", "id") as relation:
        yield relation


def sales(number: int) -> pa.RecordBatch:
    keys = ZipfKeys(ROWS + 60, 1.0, "random", seed=3).keys(number * BATCH, BATCH)
    return pa.record_batch({"id": [f"P{key:06d}" for key in keys], "amount": np.arange(BATCH), "paid": np.ones(BATCH)})


def served(join, batches: int) -> tuple[int, int]:
    """Return turns and pages of a batch, after as many to warm up."""
    for number in range(batches):
        list(join.process([sales(number)]))
    before = join.stats
    assert sum(batch.num_rows for batch in join.process([sales(batches)])) == BATCH
    return join.stats.steps - before.steps, join.stats.pages_read - before.pages_read


def cache_share(join) -> float:
    cache, behind = (join.view().parts[name] for name in ("front stage", "join behind"))
    return cache / (cache + behind)


def test_a_turn_serves_many_tuples(products):
    join = semistream.create("cachejoin", products, on="id", memory=products.nbytes // 20)
    turns, pages = served(join, 2)
    assert turns < BATCH / 4, "the cache left the join behind too little"
    assert pages < 3 * products.page_count
    assert join.budget.peak <= join.budget.total


@pytest.mark.parametrize("part", [20, 8])
def test_the_model_knows_how_many_turns_there_are(products, part):
    memory = products.nbytes // part
    join = semistream.create("cachejoin", products, on="id", memory=memory)
    for number in range(4):
        before = join.stats.steps
        list(join.feed(sales(number)))
    turns = join.stats.steps - before
    setting = describe(products, sales(0).schema, exponent=1.0, constants=load_constants("xeon-2026"))
    expected = costs_of("cachejoin").predict(setting, memory)
    assert turns / BATCH == pytest.approx(expected.operations.steps, rel=1.0)
    assert join.cache.capacity == pytest.approx(expected.details["h_R"], rel=0.2)


def test_much_memory_goes_to_the_cache_as_before(products):
    join = semistream.create("cachejoin", products, on="id", memory=products.nbytes, schema=sales(0).schema)
    assert cache_share(join) == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("algorithm", ["p_cachejoin", "op_cachejoin", "front+x_hybridjoin"])
def test_other_caches_leave_as_much_to_the_join_behind(products, algorithm):
    for options, share in ({}, 0.1), ({"cache_share": 0.6}, 0.6):
        join = semistream.create(
            algorithm, products, on="id", memory=products.nbytes // 20, schema=sales(0).schema, **options
        )
        assert cache_share(join) == pytest.approx(share, abs=0.03)
