"""SSIJ: R changes while tuples wait."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from semistream.core.errors import (
    BudgetExceededError,
    SemistreamError,
    UpdateRefusedError,
)
from semistream.joins.ssij.ssij import Ssij
from semistream.relation.changes.overlay import Change
from semistream.relation.devices.device import DeviceError
from semistream.relation.relation import Relation
from semistream_lab.conformance.expected import in_turns
from ssij_cases import BETWEEN, ssij

ROWS_A_KEY = 120


def versioned(version: int, keys: NDArray[np.int64]) -> pa.Table:
    """Return many rows for each key, over several pages, all of which say which version they are of."""
    ids = np.repeat(keys, ROWS_A_KEY)
    return pa.table(
        {"id": ids, "version": np.full(ids.size, version), "row": np.tile(np.arange(ROWS_A_KEY), keys.size)}
    )


def assert_whole(found: pa.Table, tuples: int) -> NDArray[np.int64]:
    """Assert that each stream tuple met all rows of one version; return the version of each."""
    per_tuple = found.group_by("n").aggregate([("version", "min"), ("version", "max"), ("row", "count")]).sort_by("n")
    assert per_tuple["n"].to_pylist() == list(range(tuples))
    assert per_tuple["version_min"].equals(per_tuple["version_max"]), "a tuple has seen two versions of R"
    assert set(per_tuple["row_count"].to_pylist()) == {ROWS_A_KEY}
    versions: NDArray[np.int64] = per_tuple["version_min"].to_numpy()
    return versions


@pytest.mark.parametrize("condition", ["equal", "between"])
def test_each_tuple_sees_r_wholly_before_or_after_updates_from_another_thread(folder: Path, condition: str) -> None:
    keys = np.arange(40)
    tuples = 3000
    generator = np.random.default_rng(0)
    asked = generator.integers(0, 40, tuples)
    stream = pa.table({"low": asked, "high": asked, "n": np.arange(tuples)})
    options = BETWEEN if condition == "between" else {"on": "low"}
    with Relation.build(versioned(0, keys), folder / "r", "id", page_size=1024, fill=0.8) as relation:
        join = ssij(relation, memory="1MB", input_tuples=50, buffer_tuples=120, **options)
        done: list[Future[Change]] = []
        stop = threading.Event()

        def updates() -> None:
            while not stop.is_set() and len(done) < 200:
                done.append(join.update(versioned(len(done) + 1, keys)))
                done[-1].result(timeout=60)  # the next when this one is in

        worker = threading.Thread(target=updates)
        worker.start()
        results = []
        try:
            for batch in stream.to_batches(30):
                results += in_turns(join, batch)
        finally:
            stop.set()
        while worker.is_alive():
            results += join.drain()
        worker.join()
        results += join.drain()
        versions = assert_whole(pa.Table.from_batches(results), tuples)
        assert all(future.exception() is None for future in done)
        assert len(done) > 3
        assert np.unique(versions).size > 3, "updates did not come amid the stream"
        assert join.budget.peak <= join.budget.total
        join.check()


def test_tuples_that_wait_see_r_as_it_was_and_later_ones_as_it_is(folder: Path) -> None:
    keys = np.arange(40)
    with Relation.build(versioned(0, keys), folder / "r", "id", page_size=1024) as relation:
        join = ssij(relation, on="id", memory="1MB", input_tuples=10, buffer_tuples=1000)
        join.offer(pa.record_batch({"id": np.arange(10), "n": np.arange(10)}))
        results = list(join.step())  # looked up, and waiting
        assert join.join_phases == 0
        change = join.update(versioned(1, keys), deletes=pa.array([99]))
        join.offer(pa.record_batch({"id": np.arange(5), "n": np.arange(10, 15)}))
        assert not change.done()
        results += join.drain()
        assert change.result().revision == relation.revision == 1
        versions = assert_whole(pa.Table.from_batches(results), 15)
        assert versions.tolist() == [0] * 10 + [1] * 5


def test_an_update_of_the_relation_itself_is_seen_too(folder: Path) -> None:
    keys = np.arange(40)
    with Relation.build(versioned(0, keys), folder / "r", "id", page_size=1024) as relation:
        join = ssij(relation, on="id", memory="2MB", input_tuples=10, buffer_tuples=1000)
        results = []
        for version in range(1, 6):
            begin = 20 * (version - 1)
            join.offer(pa.record_batch({"id": np.arange(20), "n": np.arange(begin, begin + 20)}))
            results += join.step()
            relation.apply(versioned(version, keys))
            assert join.pending > 0
        results += join.drain()
        versions = assert_whole(pa.Table.from_batches(results), 100)
        # ten tuples were looked up in each round; those that were not have seen the last update
        assert np.bincount(versions).tolist() == [10, 10, 10, 10, 10, 50]
        join.check()
        assert join.budget.peak <= join.budget.total


def test_results_of_an_update_are_held_within_the_budget_or_it_is_refused(folder: Path) -> None:
    keys = np.arange(40)
    with Relation.build(versioned(0, keys), folder / "r", "id", page_size=1024) as relation:
        join = ssij(relation, on="id", memory="1MB", input_tuples=10, buffer_tuples=1000)
        join.offer(pa.record_batch({"id": np.arange(40), "n": np.arange(40)}))
        for _ in range(4):
            assert list(join.step()) == []  # looked up, and waiting
        with pytest.raises(UpdateRefusedError, match="drain the join"):
            relation.apply(versioned(1, keys[:5]))
        join.check()
        assert sum(batch.nbytes for batch in join._early) <= join.budget.parts()["results"]
        join.offer(pa.record_batch({"id": np.arange(40), "n": np.arange(40, 80)}))
        with pytest.raises(UpdateRefusedError, match="during an iteration"):
            relation.apply(versioned(1, keys[:5]))
        results = list(join.drain())
        relation.apply(versioned(1, keys[:5]))
        results += join.process([pa.record_batch({"id": np.arange(4), "n": np.arange(80, 84)})])
        assert assert_whole(pa.Table.from_batches(results), 84).tolist() == [0] * 80 + [1] * 4
        join.check()


def test_a_read_that_fails_as_an_update_comes_loses_no_tuple(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = np.arange(40)
    with Relation.build(versioned(0, keys), folder / "r", "id", page_size=1024) as relation:
        join = ssij(relation, on="id", memory="1MB", input_tuples=10, buffer_tuples=1000, max_scan=2, read_ahead=False)
        join.offer(pa.record_batch({"id": np.arange(0, 40, 4), "n": np.arange(10)}))
        assert list(join.step()) == []  # looked up, and waiting
        honest, reads = relation.device.read, iter(range(1000))

        def failing(pages: NDArray[np.int64], frames: NDArray[np.uint8]) -> None:
            if next(reads) >= 1:
                raise DeviceError("the disk does not answer")
            honest(pages, frames)

        monkeypatch.setattr(join._memory.read_buffer, "most", 4)
        monkeypatch.setattr(
            join._memory.read_buffer, "_buffers", [tuple(a[:4] for a in join._memory.read_buffer._buffers[0])]
        )
        monkeypatch.setattr(relation.device, "read", failing)
        with pytest.raises(DeviceError):
            relation.apply(versioned(1, keys[:5]))
        join.check()
        monkeypatch.setattr(relation.device, "read", honest)
        join.offer(pa.record_batch({"id": np.arange(0, 40, 4), "n": np.arange(10, 20)}))
        results = list(join.drain())
        assert assert_whole(pa.Table.from_batches(results), 20).tolist() == [0] * 20
        join.check()


def test_cached_pages_that_changed_are_not_served(folder: Path) -> None:
    master = pa.table({"id": np.arange(2000), "value": np.zeros(2000, np.int64)})
    stream = pa.record_batch({"id": np.arange(2000)})
    with Relation.build(master, folder / "r", "id", page_size=1024, fill=0.8) as relation:
        join = ssij(relation, on="id", how="left", memory="1MB")
        list(join.process([stream]))
        assert join.cached_pages == relation.page_count, "all of R is cached"
        pages = relation.page_count
        update = join.update(pa.table({"id": [5, 700, 700, 5000], "value": [1, 2, 3, 4]}), deletes=pa.array([6, 1999]))
        list(join.drain())
        update.result()
        assert relation.page_count == pages, "the pages had room"
        before = relation.counters.pages
        found = pa.Table.from_batches(join.process([stream, pa.record_batch({"id": [5000]})]))
        values = dict.fromkeys(range(2000), 0) | {5: 1, 6: None, 1999: None, 5000: 4}
        got = [(row["id"], row["value"]) for row in found.to_pylist()]
        del values[700]
        assert sorted(got, key=repr) == sorted([*values.items(), (700, 2), (700, 3)], key=repr)
        assert relation.counters.pages == before, "unchanged pages stayed cached, changed ones are in memory"


def test_updates_that_cannot_be_installed_are_told_and_the_stream_goes_on(folder: Path) -> None:
    master = pa.table({"id": np.arange(2000), "value": np.zeros(2000, np.int64)})
    with Relation.build(master, folder / "r", "id", page_size=1024) as relation:
        join = ssij(relation, on="id", memory=Ssij.minimum_memory(relation, pa.schema({"id": pa.int64()}), on="id"))
        wrong = join.update(pa.table({"id": [1]}))
        large = join.update(pa.table({"id": np.arange(2000), "value": np.ones(2000, np.int64)}))
        results = list(join.process([pa.record_batch({"id": np.arange(300)})]))
        assert sum(result.num_rows for result in results) == 300
        assert isinstance(wrong.exception(), SemistreamError)
        assert isinstance(large.exception(), BudgetExceededError)
        assert relation.revision == 0
        assert {value for result in results for value in result["value"].to_pylist()} == {0}
        join.check()


def test_an_update_amid_a_turn_is_refused(folder: Path) -> None:
    with Relation.build(versioned(0, np.arange(40)), folder / "r", "id", page_size=1024) as relation:
        join = ssij(relation, on="id", memory="1MB", input_tuples=10)
        join.offer(pa.record_batch({"id": np.arange(40)}))
        turn = join.drain()
        next(turn)
        with pytest.raises(SemistreamError, match="during an iteration"):
            relation.apply(versioned(1, np.arange(40)))
        list(turn)
        relation.apply(versioned(1, np.arange(40)))


def test_an_update_before_the_first_tuple(tmp_path: Path) -> None:
    """It needs no turn of tuples: a drain of a join that nothing was offered to installs it."""
    relation = Relation.build(pa.table({"id": [1, 2], "v": [1, 2]}), tmp_path / "r", "id")
    join = Ssij(relation, on="id", memory=2_000_000)
    done = join.update(pa.table({"id": [2, 3], "v": [20, 30]}))
    assert list(join.drain()) == []
    assert done.result(timeout=0).revision == 1
    assert join.pending == 0
    found = pa.Table.from_batches(join.process([pa.record_batch({"id": [1, 2, 3]})]))
    assert sorted(found["v"].to_pylist()) == [1, 20, 30]
