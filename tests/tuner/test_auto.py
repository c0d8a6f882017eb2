"""``algorithm="auto"``: exact whatever is chosen, and chosen from what is known."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import BudgetTooSmallError, KeyColumnError
from semistream.costs import load_constants
from semistream.relation.synthetic import synthetic_relation
from semistream.tuner import choose, tune
from semistream.workloads import ZipfKeys

ROWS = 50_000


@pytest.fixture(scope="module")
def relation(tmp_path_factory):
    table = pa.table({"id": np.arange(ROWS) * 2, "name": [f"n{i}" for i in range(ROWS)]})
    with semistream.Relation.build(table, tmp_path_factory.mktemp("auto") / "relation", key="id") as relation:
        yield relation


def stream(rows: int) -> pa.Table:
    keys = ZipfKeys(2 * ROWS, 0.9, "random", seed=4).keys(0, rows)  # half of them are not in R
    return pa.table({"id": pa.array(keys, mask=np.arange(rows) % 97 == 0), "number": np.arange(rows)})


@pytest.mark.sampled
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("part", [20, 5])
@pytest.mark.slow
def test_results_are_exact(relation, how, part):
    memory = relation.nbytes // part
    table = stream(30_000)
    sample = table.slice(0, 5_000).to_batches()
    join = semistream.create("auto", relation, on="id", how=how, memory=memory, sample=sample, schema=table.schema)
    found = pa.Table.from_batches(join.process(table.to_batches(max_chunksize=4_999)), schema=join.output_schema)
    oracle = semistream.create("oracle", relation, on="id", how=how, schema=table.schema)
    expected = pa.Table.from_batches(oracle.process(table.to_batches()), schema=oracle.output_schema)
    order = [("number", "ascending")]
    assert found.sort_by(order).equals(expected.sort_by(order))
    assert join.id != "oracle"
    assert join.budget.peak <= join.budget.total


def test_options_that_are_given_stay(relation):
    join = semistream.create("auto", relation, on="id", how="inner", memory="10%", suffix="_r", exponent=0.0)
    assert join.suffix == "_r"


def test_a_range_is_joined_by_what_can(relation):
    table = pa.table({"low": [0, 10], "high": [4, 11]})
    join = semistream.create("auto", relation, on=["low", "high"], how="inner", memory="20%", condition="between")
    assert join.id == "ssij"
    assert sum(batch.num_rows for batch in join.process(table.to_batches())) == 4


def test_a_skewed_stream_gets_a_cache():
    relation = synthetic_relation(500_000)
    disk = load_constants("disk-2010")
    some = ["meshjoin", "partitioned_join", "hybridjoin", "cachejoin", "cmeshjoin"]
    uniform, skewed = (tune(relation, "5%", exponent=s, constants=disk, algorithms=some) for s in (0.0, 1.0))
    assert skewed.best.hit_ratio > 0.3
    assert uniform.best.hit_ratio < 0.1
    assert skewed.best.rate > uniform.best.rate
    assert [p.rate for p in skewed.predictions] == sorted((p.rate for p in skewed.predictions), reverse=True)
    # the fastest of all may let tuples wait for ever, and is not recommended
    assert skewed.best.algorithm != "partitioned_join"


def test_sample_and_exponent_are_for_auto_alone(relation):
    with pytest.raises(ValueError, match="for algorithm='auto'"):
        semistream.create("hybridjoin", relation, on="id", how="inner", exponent=1.0)


def test_a_sample_without_the_key_is_refused(relation):
    with pytest.raises(KeyColumnError, match="id"):
        semistream.create("auto", relation, on="id", how="inner", sample=[pa.record_batch({"other": [1]})])


def test_too_small_a_budget_names_the_least(relation):
    with pytest.raises(BudgetTooSmallError, match="too small for every algorithm") as refused:
        choose(relation, on="id", memory=4096)
    assert refused.value.minimum > 4096
