"""R-MESHJOIN: the disk buffer is its own, and everything else follows."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.costs import Setting, costs_of
from semistream.joins.r_meshjoin import RMeshJoin
from semistream.relation.relation import Relation
from semistream_lab.conformance.expected import assert_same_rows, in_turns

STREAM = pa.schema({"id": pa.int64(), "position": pa.int64()})


def built(path: Path, rows: int, repeats: int = 1, **options: object) -> Relation:
    ids = np.repeat(np.arange(rows) * 2, repeats)
    table = pa.table({"id": ids, "v": np.arange(ids.size)})
    return Relation.build(table, path, key="id", page_size=512, **options)  # type: ignore[arg-type]


def stream(keys: np.ndarray) -> pa.RecordBatch:
    return pa.record_batch([pa.array(keys, pa.int64()), pa.array(np.arange(keys.size))], schema=STREAM)


def made(relation: Relation, algorithm: str = "r_meshjoin", **options: object) -> RMeshJoin:
    join = semistream.create(
        algorithm, relation, on="id", schema=STREAM, **{"how": "inner", "memory": 100_000, **options}
    )
    return join  # type: ignore[return-value]


def pages_of(join: RMeshJoin) -> int:
    return join.view().disk_pages


def test_the_disk_buffer_does_not_move_when_r_grows(tmp_path: Path) -> None:
    joins = [made(built(tmp_path / f"{rows}", rows), seek_pages=4.0) for rows in (2000, 4000, 8000, 16000)]
    assert {pages_of(join) for join in joins} == {32}
    for join in joins:
        assert join.view().turns == math.ceil(join.relation.page_count / 32)
        assert join.view().tuples_a_turn == join.table.capacity // (join.view().turns + 1)
    # all memory that the disk buffer leaves goes to tuples, so it is the turn that gets smaller
    assert len({join.table.capacity for join in joins}) == 1
    entering = [join.view().tuples_a_turn for join in joins]
    assert entering == sorted(entering, reverse=True)
    assert joins[0]._w > 4 * joins[-1]._w


def test_meshjoin_trades_the_disk_buffer_for_tuples_and_r_meshjoin_does_not(tmp_path: Path) -> None:
    relation = built(tmp_path / "r", 8000)
    sizes = {
        algorithm: [pages_of(made(relation, algorithm, seek_pages=4.0, memory=memory)) for memory in (10**5, 10**6)]
        for algorithm in ("meshjoin", "r_meshjoin")
    }
    assert sizes["r_meshjoin"][0] == sizes["r_meshjoin"][1] == 32
    assert sizes["meshjoin"][0] < sizes["meshjoin"][1]


@pytest.mark.parametrize(("disk_pages", "seek_pages", "expected"), [(7, 100.0, 7), (None, 1.0, 8), (None, 2.5, 20)])
def test_the_disk_buffer_is_what_the_disk_wants(
    tmp_path: Path, disk_pages: int | None, seek_pages: float, expected: int
) -> None:
    relation = built(tmp_path / "r", 8000)
    assert pages_of(made(relation, disk_pages=disk_pages, seek_pages=seek_pages)) == expected


def test_little_memory_bounds_the_disk_buffer(tmp_path: Path) -> None:
    relation = built(tmp_path / "r", 8000)
    least = RMeshJoin.minimum_memory(relation, STREAM, on="id")
    for factor in (1.0, 1.1, 2.0, 5.0):
        join = made(relation, memory=int(least * factor), seek_pages=1000.0)
        assert join.budget.peak <= join.budget.total
        assert sum(batch.num_rows for batch in join.process([stream(np.arange(300) * 4)])) == 300


def test_each_drain_passes_over_r_once(tmp_path: Path) -> None:
    """All tuples fit into the first turns' shares, so one pass and the turns they entered in serve them all."""
    relation = built(tmp_path / "r", 4000)
    join = made(relation, disk_pages=16)
    for _ in range(3):
        before = join.stats.pages_read
        tuples = join.view().tuples_a_turn
        assert sum(batch.num_rows for batch in join.process([stream(np.arange(tuples) * 8)])) == tuples
        assert join.stats.pages_read - before == relation.page_count


@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("repeats", [1, 40])
@pytest.mark.parametrize("how", ["inner", "left"])
def test_the_same_as_meshjoin_and_the_oracle(tmp_path: Path, how: str, repeats: int, clustered: bool) -> None:
    relation = built(tmp_path / "r", 8000 // repeats, repeats, clustered=clustered)
    keys = np.random.default_rng(3).integers(-5, 2 * 8000 // repeats + 5, 2000)
    results, pages = {}, {}
    for algorithm, options in (
        ("oracle", {}),
        ("meshjoin", {"partition_pages": 25}),
        ("r_meshjoin", {"disk_pages": 25}),
    ):
        join = made(relation, algorithm, how=how, **options)
        results[algorithm] = pa.Table.from_batches(join.process([stream(keys)]), join.output_schema)
        pages[algorithm] = join.stats.pages_read
        join.check()
    assert_same_rows(results["r_meshjoin"], results["oracle"])
    assert results["r_meshjoin"].equals(results["meshjoin"])
    assert pages["r_meshjoin"] == pages["meshjoin"]


@pytest.mark.parametrize("algorithm", ["meshjoin", "r_meshjoin"])
def test_tuples_offered_within_a_turn_wait_for_its_end(tmp_path: Path, algorithm: str) -> None:
    """One that came in while a partition is probed would meet the rest of it now and all of it a round later."""
    relation = built(tmp_path / "r", 2000, 3)
    join = made(relation, algorithm, memory=40_000)
    keys = np.random.default_rng(4).integers(0, 4000, 3000)
    results = [*in_turns(join, stream(keys), 50, amid=True), *join.drain()]
    assert sum(result.num_rows for result in results) == 3 * np.count_nonzero(keys % 2 == 0)
    join.check()


@pytest.mark.parametrize("options", [{"disk_pages": 0}, {"disk_pages": -3}, {"seek_pages": -1.0}])
def test_nonsense_is_refused(tmp_path: Path, options: dict[str, float]) -> None:
    (name, value), *_ = options.items()
    with pytest.raises(ValueError, match=rf"{name}.*{value}"):
        made(built(tmp_path / "r", 10), **options)


def test_meshjoin_as_published_reads_r_in_as_many_parts_however_large_it_is(tmp_path: Path) -> None:
    for rows in (2000, 8000):
        relation = built(tmp_path / f"{rows}", rows)
        join = made(relation, "meshjoin", partitions=16)
        assert join.view().turns <= 16
        assert pages_of(join) == math.ceil(relation.page_count / 16)
        setting = Setting.of(relation, STREAM)
        assert costs_of("meshjoin").memory(setting, 100_000, partitions=16)["disk buffer"] == pages_of(join) * 512
    with pytest.raises(ValueError, match="give partition_pages=3 or partitions=16, not both"):
        made(relation, "meshjoin", partitions=16, partition_pages=3)
