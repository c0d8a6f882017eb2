"""The front stage: the cache fills, follows the stream, and never changes a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import UnsupportedJoinError
from semistream.joins import algorithms, find
from semistream.joins.families.front_stage import FrontStage
from semistream.relation.relation import Relation
from semistream.relation.synthetic import synthetic_relation
from semistream.structures.array_source import Arrays
from semistream.workloads import ZipfKeys, ZipfLaw
from semistream_lab.workloads import ShiftingKeys

pytestmark = pytest.mark.slow

ROWS = 200_000
FRONTS = [name for name in algorithms() if issubclass(find(name), FrontStage)]
LEFT = ["cachejoin", "op_cachejoin", "front+ssij"]
EXACT_COUNTS = [name for name in FRONTS if name not in ("p_cachejoin", "op_cachejoin")]


def share_of_r(percent: int) -> int:
    """Return exact bytes: as a share, they would hold so small a relation whole."""
    return synthetic_relation(ROWS).nbytes * percent // 100


def hit_ratios(join, keys, batches: int, rows: int = 20_000) -> list[float]:
    ratios, before = [], (0, 0)
    for number in range(batches):
        batch = pa.record_batch({"id": keys.keys(number * rows, rows)})
        assert sum(result.num_rows for result in join.process([batch])) == rows
        after = (join.stats.cache_hits, join.stats.rows_done)
        ratios.append((after[0] - before[0]) / (after[1] - before[1]))
        before = after
    return ratios


@pytest.mark.sampled(3)
@pytest.mark.parametrize("algorithm", FRONTS)
def test_hit_ratio_comes_near_that_of_the_most_frequent_tuples(algorithm):
    join = semistream.create(
        algorithm, synthetic_relation(ROWS), on="id", how="inner", memory=share_of_r(10), cache_share=0.5
    )
    ratios = hit_ratios(join, ZipfKeys(ROWS, 1.0, "random", seed=5), 12)
    ideal = ZipfLaw(ROWS, 1.0).share(join.cache.capacity)
    assert ratios[-1] > 0.85 * ideal, (ratios, ideal)
    assert ratios[-1] <= ideal + 0.03
    assert join.budget.peak <= join.budget.total


@pytest.mark.sampled
@pytest.mark.parametrize("algorithm", EXACT_COUNTS)
def test_hit_ratio_recovers_when_the_hot_keys_change(algorithm):
    join = semistream.create(
        algorithm, synthetic_relation(ROWS), on="id", how="inner", memory=share_of_r(10), cache_share=0.5, aging=4.0
    )
    keys = ShiftingKeys(ROWS, shifts=(200_000,), exponent=1.0, seed=5)
    ratios = hit_ratios(join, keys, 40)
    settled, shocked, recovered = ratios[9], ratios[10], ratios[-1]
    assert shocked < 0.7 * settled, ratios
    assert recovered > 0.9 * settled, ratios


def test_a_hit_reads_nothing():
    join = semistream.create("cachejoin", synthetic_relation(ROWS), on="id", how="inner", memory=share_of_r(10))
    batch = pa.record_batch({"id": np.full(500, 77)})
    list(join.process([batch]))
    before = join.stats.pages_read
    list(join.process([batch]))
    assert join.stats.pages_read == before
    assert join.stats.cache_hits >= 500


def test_threshold_keeps_rare_tuples_out():
    join = semistream.create(
        "cachejoin", synthetic_relation(ROWS), on="id", how="inner", memory=share_of_r(10), threshold=3
    )
    keys = np.concatenate([np.full(5, 10), np.full(2, 20_000)])
    list(join.process([pa.record_batch({"id": keys})]))
    assert join.cache.look_up(np.array([10, 20_000]))[0].tolist() == [True, False]


def test_a_share_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"cache_share must be between 0 and 1, not 1\.5"):
        semistream.create("cachejoin", synthetic_relation(ROWS), on="id", how="inner", cache_share=1.5)


def test_what_a_front_stage_cannot_do_is_refused():
    relation = synthetic_relation(ROWS)
    with pytest.raises(UnsupportedJoinError, match=r"front\+ssij does not support condition 'between'; use 'ssij'"):
        semistream.create("front+ssij", relation, on=("a", "b"), how="inner", condition="between")
    with pytest.raises(UnsupportedJoinError, match="cachejoin does not support condition 'as_of'; use 'adaptivejoin'"):
        semistream.create("cachejoin", relation, on="id", condition="as_of")
    for algorithm in ("cachejoin", "inlj", "auto"):
        with pytest.raises(UnsupportedJoinError, match="one of 'equal', 'between', 'as_of', not 'asof'"):
            semistream.create(algorithm, relation, on="id", condition="asof")
    with pytest.raises(ValueError, match=r"front\+ssij does not support deadline=3\.0; leave it out, or use 'ssij'"):
        semistream.create("front+ssij", relation, on="id", how="inner", deadline=3.0)


@pytest.mark.long
def test_scattered_frequent_tuples_are_better_held_alone_than_in_their_pages():
    """Before SSIJ, the front stage serves more of a stream whose frequent keys lie anywhere than SSIJ's pages do."""
    ratios = {
        name: hit_ratios(
            semistream.create(name, synthetic_relation(ROWS), on="id", how="inner", memory=share_of_r(5)),
            ZipfKeys(ROWS, 1.0, "random", seed=5),
            12,
        )[-1]
        for name in ("ssij", "front+ssij")
    }
    assert ratios["front+ssij"] > ratios["ssij"] + 0.1, ratios


@pytest.mark.parametrize("algorithm", LEFT)
def test_what_one_process_has_left_serves_the_next_after_an_update(algorithm: str, tmp_path: Path) -> None:
    """Rows that vary in length are longer on average then, and pages more: the cache is of about the same size."""
    rows, frequent = 50_000, np.arange(0, 50_000, 250)
    names = pa.array(["name " * (number % 9) for number in range(rows)])
    Relation.build(pa.table({"id": np.arange(rows), "name": names}), tmp_path / "r", key="id").close()
    left: dict[str, dict[str, Any]] = {}

    def source(layout: str) -> Arrays:
        arrays = left.setdefault(layout, {})
        return lambda name, count, dtype: arrays.setdefault(name, np.zeros(count, dtype))

    def served() -> tuple[int, list[str]]:
        with Relation.open(tmp_path / "r") as relation:
            join = semistream.create(algorithm, relation, on="id", how="inner", memory="300KB", arrays=source)
            batch = pa.record_batch({"id": np.tile(frequent, 20)})
            found = pa.Table.from_batches(join.process([batch]))
            assert found.num_rows == batch.num_rows
            assert join.budget.peak <= join.budget.total
            return join.stats.cache_hits, found.filter(pa.compute.equal(found["id"], 250))["name"].to_pylist()

    first, before = served()
    assert set(before) == {"name " * (250 % 9)}
    longer = pa.table({"id": [*range(1, 400, 2), 10**6], "name": ["another name, a long one"] * 201})
    semistream.update(tmp_path / "r", upserts=longer)
    again, _ = served()
    assert len(left) == 1, sorted(left)
    assert again > first
    assert again > 0.9 * 20 * frequent.size


@pytest.mark.parametrize("algorithm", LEFT)
def test_the_least_memory_is_enough_for_a_cache_that_others_take_over(algorithm: str, tmp_path: Path) -> None:
    """It is planned before anybody knows of such a cache."""
    rows = pa.table({"id": range(600), "name": [f"{number}" * 1000 for number in range(600)]})
    with Relation.build(rows, tmp_path / "r", key="id") as relation:
        schema = pa.schema({"id": pa.int64()})
        least = find(algorithm).minimum_memory(relation, schema, on="id")
        arrays = lambda _layout: lambda _name, count, dtype: np.zeros(count, dtype)  # noqa: E731
        join = semistream.create(algorithm, relation, on="id", memory=least, arrays=arrays)
        assert sum(batch.num_rows for batch in join.process([pa.record_batch({"id": range(600)})])) == 600
        assert join.budget.peak <= least
