"""What joins show of themselves, and how tuples are put where they would wait."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.joins import algorithms, find
from semistream.relation.synthetic import synthetic_relation

SCHEMA = pa.schema({"id": pa.int64(), "number": pa.int64()})
ROWS = 20_000


def batch(keys: np.ndarray) -> pa.RecordBatch:
    return pa.record_batch([keys, np.arange(keys.size)], schema=SCHEMA)


@pytest.mark.parametrize("algorithm", [name for name in algorithms() if find(name).bounded])
def test_a_view_says_what_is_held(algorithm: str) -> None:
    join = semistream.create(algorithm, synthetic_relation(ROWS), on="id", how="inner", memory="2MB", schema=SCHEMA)
    taken = join.offer(batch(np.arange(500)))
    view = join.view()
    assert view.arrived + view.waiting == join.pending == taken
    assert sum(view.parts.values()) == join.budget.used


@pytest.mark.parametrize("algorithm", ["hybridjoin", "x_hybridjoin", "cachejoin", "p_cachejoin", "op_cachejoin"])
def test_tuples_that_are_let_wait_are_served_like_others(algorithm: str) -> None:
    options = {"threads": False} if algorithm in ("p_cachejoin", "op_cachejoin") else {}
    relation = synthetic_relation(ROWS)
    join = semistream.create(algorithm, relation, on="id", how="inner", memory="2MB", schema=SCHEMA, **options)
    keys = np.random.default_rng(1).integers(0, ROWS, 700)
    join.let_wait(batch(keys))
    assert join.stats.reads == 0
    assert join.pending == keys.size
    assert join.view().arrived == 0
    inner = getattr(join, "inner", join)
    assert inner.table.ends().column("number").to_pylist() == [0, keys.size - 1]
    results = pa.Table.from_batches(join.drain())
    assert sorted(results["id"].to_pylist()) == sorted(keys.tolist())
    assert inner.table.ends().num_rows == 0
    join.check()


def test_more_than_finds_room_is_refused() -> None:
    least = find("hybridjoin").minimum_memory(synthetic_relation(ROWS), SCHEMA, on="id")
    join = semistream.create("hybridjoin", synthetic_relation(ROWS), on="id", memory=least, schema=SCHEMA)
    with pytest.raises(ValueError, match="tuples do not fit into hybridjoin"):
        join.let_wait(batch(np.arange(10_000)))
