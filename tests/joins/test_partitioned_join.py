"""The partition-based join: which partition is read when, for whom, and who waits for ever."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.joins.partitioned_join import PartitionedJoin
from semistream.relation.relation import Relation
from semistream_lab.conformance.expected import assert_same_rows, in_batches, in_turns, run

STREAM = pa.schema({"id": pa.int64(), "position": pa.int64()})


@pytest.fixture
def relation(tmp_path: Path) -> Relation:
    """2000 rows of even keys, one each, in pages of the same number of rows."""
    ids = np.arange(2000) * 2
    return Relation.build(pa.table({"id": ids, "v": ids * 10}), tmp_path / "r", key="id", page_size=512)


def stream(keys: np.ndarray | list[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(keys, pa.int64()), pa.array(np.arange(len(keys)))], schema=STREAM)


def made(relation: Relation, **options: object) -> PartitionedJoin:
    options = {"memory": 200_000, "few_arrivals": 0, **options}
    join = semistream.create("partitioned_join", relation, on="id", schema=STREAM, **{"how": "inner", **options})
    assert isinstance(join, PartitionedJoin)
    return join


def keys_of_page(relation: Relation, page: int) -> np.ndarray:
    keys = np.arange(2000) * 2
    return keys[relation.locate(keys).pages == page]


def ids(results: object) -> list[int]:
    return [key for batch in results for key in batch["id"].to_pylist()]  # type: ignore[attr-defined]


def test_a_partition_is_read_when_enough_tuples_wait_for_it(relation: Relation) -> None:
    join = made(relation, partition_tuples=5)
    hot, rare = keys_of_page(relation, 3)[:5], keys_of_page(relation, 9)[:4]
    join.offer(stream([*rare, *hot[:4]]))
    assert list(join.step()) == []
    assert join.stats.pages_read == 0
    join.offer(stream(hot[4:]))
    assert sorted(ids(join.step())) == sorted(hot)
    assert join.stats.pages_read == 1
    # those who wait elsewhere go on waiting
    assert join.pending == 4
    assert list(join.step()) == []
    assert sorted(ids(join.drain())) == sorted(rare)
    assert join.stats.pages_read == 2


def test_a_full_buffer_reads_what_most_wait_for(relation: Relation) -> None:
    join = made(relation, memory=20_000, partition_tuples=10**6, partition_pages=1, in_flight=1)
    capacity = join.table.capacity
    # page p gets p more tuples than page 0
    pages = np.repeat(np.arange(8), 5 + np.arange(8))
    keys = np.array([keys_of_page(relation, page)[0] for page in pages])
    keys = np.append(keys, np.full(capacity - keys.size, keys_of_page(relation, 20)[1]))
    np.random.default_rng(0).shuffle(keys)
    assert join.offer(stream(keys)) == capacity
    assert join.table.free == 0
    assert set(ids(join.step())) == {keys_of_page(relation, 20)[1]}
    assert join.stats.pages_read == 1
    # there is room now: nothing is read until it is used up again
    assert list(join.step()) == []
    others = np.array([keys_of_page(relation, page)[0] for page in range(30, 70)])
    for page in (7, 6, 5):
        join.offer(stream(np.resize(others, join.table.free)))
        assert set(relation.locate(np.array(ids(join.step()))).pages) == {page}


def test_several_partitions_are_read_at_once(relation: Relation) -> None:
    join = made(relation, partition_tuples=2, in_flight=8)
    keys = np.array([keys_of_page(relation, page)[:2] for page in range(0, 40, 2)]).reshape(-1)
    join.offer(stream(keys))
    assert join.table.ripe_partitions == 20
    assert len(ids(join.step())) == 16
    assert join.stats.pages_read == 8
    assert len(ids(join.step())) == 16
    assert len(ids(join.step())) == 8
    assert join.pending == 0


def test_few_arrivals_are_looked_up_at_once(relation: Relation) -> None:
    join = made(relation, few_arrivals=10, how="left")
    join.offer(stream([2, 4, 2, 5]))
    assert sorted(ids(join.step())) == [2, 2, 4, 5]
    # each reads for itself, as INLJ does; the absent key has a page where it would be
    assert join.stats.pages_read == 4
    assert (join.pending, join.stats.appended) == (0, 0)
    join.offer(stream(np.arange(10) * 50))
    assert list(join.step()) == []
    assert join.pending == 10
    assert join.stats.appended == 10


def test_a_rare_key_waits_for_ever_and_that_is_reported(relation: Relation) -> None:
    join = made(relation, memory=40_000, partition_tuples=50)
    rng = np.random.default_rng(1)
    rare, hot = 3000, keys_of_page(relation, 1)
    join.offer(stream([rare]))
    for _ in range(40):
        assert rare not in ids(in_turns(join, stream(rng.choice(hot, 500))))
        assert join.longest_wait >= join.stats.rows_in - 1
    assert join.longest_wait == 20_000
    assert ids(join.drain())[-1] == rare
    assert join.longest_wait == 20_000


def test_absent_keys_leave_with_the_next_turn(relation: Relation) -> None:
    join = made(relation, how="left")
    join.offer(stream([-7, 2, 10**9, 5]))
    # 5 lies between two keys: only its page can tell
    results = list(join.step())
    assert sorted(ids(results)) == [-7, 10**9]
    assert all(batch["v"].null_count == batch.num_rows for batch in results)
    assert join.stats.pages_read == 0
    assert sorted(ids(join.drain())) == [2, 5]
    assert join.stats.unmatched == 3


@pytest.mark.parametrize("partition_pages", [1, 2, 7, 1000])
@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("how", ["inner", "left"])
def test_keys_over_several_partitions_against_duckdb(
    tmp_path: Path, how: str, clustered: bool, partition_pages: int
) -> None:
    rng = np.random.default_rng(2)
    keys = rng.permutation(np.repeat(np.arange(300) * 2, np.resize([1, 1, 2, 1, 60, 3], 300)))
    master = pa.table({"id": keys, "v": np.arange(keys.size)})
    relation = Relation.build(master, tmp_path / "r", key="id", page_size=512, clustered=clustered)
    batch = stream(rng.integers(-3, 603, 3000))
    tuples = pa.Table.from_batches([batch])
    wanted = duckdb.sql(f"SELECT s.*, m.v FROM tuples s {how} JOIN master m ON s.id = m.id").to_arrow_table()
    for memory in (300_000, 900_000):
        join = made(relation, how=how, partition_pages=partition_pages, partition_tuples=20, memory=memory)
        outcome = run(join, in_batches(tuples, 170), audit=True)
        assert_same_rows(outcome.table, wanted.cast(join.output_schema))
        assert join.budget.peak <= join.budget.total


def test_each_partition_is_read_once_for_all_who_wait(relation: Relation) -> None:
    keys = np.random.default_rng(5).integers(0, 2000, 3000) * 2
    join = made(relation, memory=10**6)
    assert len(ids(join.process([stream(keys)]))) == keys.size
    wanted = np.unique(relation.locate(keys).pages)
    assert join.stats.pages_read == wanted.size
    # neighbours are one read, but for those in two turns
    assert join.stats.reads <= np.count_nonzero(np.diff(wanted) > 1) + 1 + join.stats.steps


@pytest.mark.slow
def test_fewer_reads_a_tuple_than_hybridjoin_while_the_stream_goes_on(tmp_path: Path) -> None:
    """Fullest first is what a rare key's wait buys."""
    ids = np.arange(20_000)
    relation = Relation.build(pa.table({"id": ids, "v": ids}), tmp_path / "r", key="id", page_size=512)
    rng = np.random.default_rng(6)
    weights = 1 / np.arange(1, ids.size + 1)
    batch = stream(rng.permutation(ids)[rng.choice(ids.size, 30_000, p=weights / weights.sum())])
    served = {}
    for algorithm, options in (("hybridjoin", {"partition_pages": 1}), ("partitioned_join", {})):
        join = semistream.create(algorithm, relation, on="id", memory=200_000, in_flight=1, schema=STREAM, **options)
        before = join.stats
        list(in_turns(join, batch))
        served[algorithm] = (join.stats.rows_done - before.rows_done) / (join.stats.pages_read - before.pages_read)
    assert served["partitioned_join"] > 1.2 * served["hybridjoin"]


def test_the_front_stage_goes_before_it_too(relation: Relation) -> None:
    from semistream.joins.families.front_stage import FrontStage

    class Front(FrontStage):
        id, title, behind = "front+partitioned_join", "", PartitionedJoin

    keys = np.random.default_rng(7).zipf(1.3, 5000) % 2000 * 2
    join = Front(relation, on="id", memory=100_000, schema=STREAM)
    assert sorted(ids(join.process(in_batches(pa.Table.from_batches([stream(keys)]), 400)))) == sorted(keys)
    assert join.stats.cache_hits > 1000
    join.check()


@pytest.mark.parametrize(
    "options", [{"partition_tuples": 0}, {"partition_pages": 0}, {"few_arrivals": -1}, {"in_flight": 0}]
)
def test_nonsense_is_refused(relation: Relation, options: dict[str, int]) -> None:
    (name, value), *_ = options.items()
    with pytest.raises(ValueError, match=rf"{name}.*{value}"):
        made(relation, **options)
