"""Warm caches without Spark: who gets which cache, and when it starts empty."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import semistream
from semistream.relation import updates
from semistream.relation.storage import manifest as manifests
from semistream.spark.joining import warm, warm_cleanup
from semistream.spark.joining.join_task import JoinTask, TaskMemory
from semistream.spark.joining.task_relation import TaskRelation
from semistream.spark.joining.warm import WarmShard, shard_identity
from semistream.workloads import ZipfKeys

ROOM = 1 << 20


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep caches in a directory of the test's own."""
    root = tmp_path / "caches"
    for module in (warm, warm_cleanup):
        monkeypatch.setattr(module, "places", lambda: [root])
    return root


def take(identity: str = "files", shard: int = 3) -> WarmShard:
    found = WarmShard.take("query", "join", shard, 8, identity, room=ROOM)
    assert found is not None
    return found


def leave(values: list[int], layout: str = "layout") -> None:
    with take() as cache:
        cache(layout)("numbers", 3, np.int64)[:] = values
        cache.keep()


def found(identity: str = "files", layout: str = "layout") -> list[int]:
    with take(identity) as cache:
        numbers: list[int] = cache(layout)("numbers", 3, np.int64).tolist()
        cache.keep()
        return numbers


def in_another_process(work: object) -> int:
    """Run a function in a process of its own; return how that ended."""
    child = os.fork()
    if child == 0:
        try:
            work()  # type: ignore[operator]
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def test_the_next_process_finds_what_was_kept() -> None:
    assert in_another_process(lambda: leave([1, 2, 3])) == 0
    assert found() == [1, 2, 3]


def test_notes_do_not_depend_on_the_layout_and_outlive_a_task_that_failed() -> None:
    with take() as cache:
        assert cache.note("filter planes") == ""
        cache.leave_note("filter planes", "2")
    leave([1, 2, 3], "another layout")
    with take("other files") as cache:
        assert cache.note("filter planes") == "2"
        cache.discard()
        assert cache.note("filter planes") == "2"
        cache.leave_note("filter planes", "")
    with take() as cache:
        assert cache.note("filter planes") == ""


def test_what_was_not_kept_is_thrown_away() -> None:
    leave([1, 2, 3])
    with take() as cache:
        numbers = cache("layout")("numbers", 3, np.int64)
        numbers[0] = 99  # half a change, then an error
    assert numbers.tolist() == [99, 2, 3]
    assert found() == [0, 0, 0]
    assert numbers.tolist() == [99, 2, 3], "a file that is mapped elsewhere was changed"


def test_a_cache_whose_task_was_killed_is_thrown_away() -> None:
    leave([1, 2, 3])

    def die() -> None:
        cache = take()
        cache("layout")("numbers", 3, np.int64)[0] = 99
        os.kill(os.getpid(), signal.SIGKILL)

    assert os.WTERMSIG(in_another_process(die)) == signal.SIGKILL
    assert found() == [0, 0, 0]


@pytest.mark.parametrize(("identity", "layout"), [("other files", "layout"), ("files", "other layout")])
def test_a_cache_of_something_else_is_thrown_away(identity: str, layout: str) -> None:
    leave([1, 2, 3])
    assert found(identity, layout) == [0, 0, 0]
    assert found() == [0, 0, 0]


def test_a_cache_from_before_a_reboot_is_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    leave([1, 2, 3])
    monkeypatch.setattr(warm, "boot_id", lambda: "another")
    assert found() == [0, 0, 0]


def test_a_cache_with_a_file_missing_is_not_used(place: Path) -> None:
    leave([1, 2, 3])
    next(place.glob("query/join/*/numbers.array")).unlink()
    with take() as cache, pytest.raises(FileNotFoundError):
        cache("layout")("numbers", 3, np.int64)


def test_only_one_task_has_a_cache_and_a_dead_one_gives_it_back() -> None:
    with take():
        assert WarmShard.take("query", "join", 3, 8, "files", room=ROOM) is None
        assert in_another_process(lambda: take(shard=4).close()) == 0
        refused = in_another_process(
            lambda: os._exit(7 if WarmShard.take("query", "join", 3, 8, "f", room=ROOM) else 0)
        )
        assert refused == 0
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        held = take()
        os.write(writes, b"x")
        time.sleep(60)
        held.close()
        os._exit(0)
    os.read(reads, 1)
    assert WarmShard.take("query", "join", 3, 8, "files", room=ROOM) is None
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    take().close()


def test_a_cache_that_is_removed_under_a_task_disturbs_neither_it_nor_the_next() -> None:
    with take() as cache:
        numbers = cache("layout")("numbers", 3, np.int64)
        warm_cleanup.forget_query("query")
        with take() as other:  # the lock of the removed one does not count
            assert other("layout")("numbers", 3, np.int64).tolist() == [0, 0, 0]
            numbers[:] = 7
            cache.keep()
            other.keep()
    assert found() == [0, 0, 0]
    assert numbers.tolist() == [7, 7, 7]


def test_a_place_of_somebody_else_is_not_used(place: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    place.symlink_to(tmp_path / "elsewhere")
    assert WarmShard.take("query", "join", 3, 8, "files", room=ROOM) is None
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_memory_file_system_that_is_too_small_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir()
    large.mkdir()
    monkeypatch.setattr(warm, "_MEMORY_FILES", small)
    monkeypatch.setattr(warm, "places", lambda: [small / "mine", large / "mine"])
    monkeypatch.setattr(warm, "room_at", lambda _: 3 * ROOM // 2)
    leave([1, 2, 3])
    assert not (small / "mine").exists()
    monkeypatch.setattr(warm, "room_at", lambda _: 100 * ROOM)
    assert found() == [1, 2, 3], "a cache was left where the tasks before had put it"


class TestSweep:
    def test_a_living_query_stays(self) -> None:
        leave([1, 2, 3])
        assert warm_cleanup.sweep() == []
        assert found() == [1, 2, 3]

    def test_a_query_whose_executors_are_gone_is_removed(self, place: Path) -> None:
        leave([1, 2, 3])
        owner = next((place / "query" / warm.OWNERS).iterdir())
        owner.rename(owner.with_name(f"{os.getppid()}-1"))  # the same process id, started at another time
        assert warm_cleanup.sweep() == ["query"]
        assert list(place.iterdir()) == []

    def test_a_query_that_has_been_idle_is_removed(self, place: Path) -> None:
        leave([1, 2, 3])
        owner = next((place / "query" / warm.OWNERS).iterdir())
        os.utime(owner, (time.time() - 7200, time.time() - 7200))
        assert warm_cleanup.sweep(idle_seconds=10_000) == []
        assert warm_cleanup.sweep() == ["query"]

    @pytest.mark.parametrize("owner", ["link", "other user"])
    def test_a_place_of_somebody_else_is_not_swept(self, place: Path, tmp_path: Path, monkeypatch, owner: str) -> None:
        precious = tmp_path / "precious"
        (precious / "photos").mkdir(parents=True)
        (precious / "thesis.txt").write_text("y")
        for one in precious.iterdir():
            os.utime(one, (time.time() - 7200, time.time() - 7200))
        if owner == "link":
            place.symlink_to(precious)
        else:
            precious.rename(place)
            monkeypatch.setattr(os, "getuid", lambda: 12345)
        assert warm_cleanup.sweep() == []
        warm_cleanup.forget_query("photos")
        assert sorted(one.name for one in place.iterdir()) == ["photos", "thesis.txt"]

    def test_a_query_that_just_begins_stays(self, place: Path) -> None:
        (place / "query").mkdir(parents=True)
        assert warm_cleanup.sweep() == []


# -- a join on top ------------------------------------------------------------------------------------------------

ROWS = 20_000


@pytest.fixture(params=[False, True], ids=["fixed", "variable"])
def relation(request: pytest.FixtureRequest, tmp_path: Path) -> semistream.Relation:
    ids = np.arange(ROWS)
    columns: dict[str, object] = {"id": ids, "twice": 2 * ids, "thrice": 3 * ids}
    if request.param:
        columns["name"] = [f"product {i} " * (i % 4) for i in range(ROWS)]
    return semistream.Relation.build(pa.table(columns), tmp_path / "r", key="id", page_size=4096)


def stream(number: int, rows: int = 4000) -> pa.RecordBatch:
    return pa.record_batch({"key": ZipfKeys(ROWS, 1.0, "random", seed=2).keys(number * rows, rows)})


def joined(
    relation: semistream.Relation, cache: WarmShard | None, batch: pa.RecordBatch, algorithm: str = "adaptivejoin"
) -> tuple:
    """Join one batch as a task does; return the results, sorted, and the hit ratio."""
    options = {} if cache is None else {"arrays": cache}
    join = semistream.create(algorithm, relation, on="key", memory="400KB", **options)
    results = pa.Table.from_batches(join.process([batch]))
    join.check()
    assert join.budget.peak <= 400_000
    return results.sort_by("key"), join.stats.hit_ratio


@pytest.mark.parametrize("algorithm", ["cachejoin", "adaptivejoin"])
@pytest.mark.slow
def test_a_cache_serves_the_next_task(relation: semistream.Relation, place: Path, algorithm: str) -> None:
    ratios = []
    for number in range(6):
        batch = stream(number)
        expected, cold = joined(relation, None, batch, algorithm)
        with take() as cache:
            results, ratio = joined(relation, cache, batch, algorithm)
            assert cache.attached == (number > 0)
            cache.keep()
        assert results.equals(expected)
        assert ratio >= cold or number == 0, "the first one begins empty, and its size in files is rounded down"
        ratios.append(ratio)
    assert ratios[-1] > ratios[0] + 0.2, ratios
    assert min(ratios[2:]) > ratios[0] + 0.1, ratios
    size = sum(file.stat().st_blocks * 512 for file in place.rglob("*.array"))
    assert 100_000 < size <= 400_000 + 4096 * 16


@pytest.mark.slow
def test_an_r_that_fits_is_read_once_for_all_tasks(tmp_path: Path) -> None:
    """Also one of more pages than are read at once from the start, after as many were read as it has."""
    for rows, tasks in ((2000, 1), (40_000, 40)):
        table = pa.table({"id": np.arange(rows), "twice": 2 * np.arange(rows)})
        relation = semistream.Relation.build(table, tmp_path / f"{rows}", key="id", page_size=1024)
        assert (relation.page_count > 256) == (tasks > 1)
        random = np.random.default_rng(1)
        for number in range(tasks + 3):
            before = relation.counters
            keys = random.integers(-rows // 4, rows + rows // 4, 500)
            with take(str(rows)) as cache:
                join = semistream.create("adaptivejoin", relation, on="key", memory="4MB", arrays=cache)
                results = pa.Table.from_batches(join.process([pa.record_batch({"key": keys})]))
                join.check()
                cache.keep()
            assert results["twice"].to_pylist() == [2 * key if 0 <= key < rows else None for key in keys.tolist()]
            if number >= tasks:
                assert (relation.counters - before).pages == 0, number
        relation.close()


@pytest.mark.slow
def test_killed_at_any_moment_a_task_does_no_harm(relation: semistream.Relation) -> None:
    """Kill tasks at random, between ten of them that end; every result of those is right."""
    joined(relation, None, stream(0))  # compiled
    delays = np.random.default_rng(3).uniform(0.0, 0.08, 10)
    killed = 0
    for number in range(10):

        def run_into_a_bomb(number: int = number) -> None:
            threading.Timer(delays[number], lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
            with take() as cache:
                for again in range(50):
                    joined(relation, cache, stream(100 + 50 * number + again))
                cache.keep()

        killed += in_another_process(run_into_a_bomb) == signal.SIGKILL
        batch = stream(number)
        with take() as cache:
            results, _ = joined(relation, cache, batch)
            cache.keep()
        keys = np.sort(batch["key"].to_numpy())
        assert np.array_equal(results["key"].to_numpy(), keys)
        assert np.array_equal(results["twice"].to_numpy(), 2 * keys)
        assert np.array_equal(results["thrice"].to_numpy(), 3 * keys)
    assert killed >= 5


def test_a_new_version_keeps_the_cache_but_for_rows_that_changed(tmp_path: Path) -> None:
    path = tmp_path / "r"
    ids = np.arange(ROWS)
    semistream.Relation.build(pa.table({"id": ids, "price": ids}), path, key="id", shards=2).close()
    hot = pa.record_batch({"key": np.append(np.repeat(np.arange(2000), 2), [ROWS + 5] * 3)})
    stored = TaskRelation(str(path), 1, pa.schema([("id", pa.int64()), ("price", pa.int64())]), ("id",))
    task = JoinTask(
        stored,
        "adaptivejoin",
        TaskMemory(400_000),
        ("key",),
        pa.schema([]),
        {"on": "key", "how": "left"},
        parts=2,
        shards=2,
    )

    def run(version: int, shard: int) -> tuple[bool, float, dict[int, int | None]]:
        """Join as a task does; return whether there was a cache, its hit ratio, and the prices of this shard's keys."""
        identity = shard_identity(path, manifests.load(path, version), shard)
        with semistream.Relation.open(path, version=version, shards=[shard]) as opened, take(identity, shard) as cache:
            join = task._bound(opened, shard, hot, cache)
            results = pa.Table.from_batches(join.process([hot]))
            join.check()
            cache.keep()
            keys, prices = results["key"].to_pylist(), results["price"].to_pylist()
            mine = opened.key.shards(np.array(keys), 2) == shard
            found = {key: price for key, price, own in zip(keys, prices, mine, strict=True) if own}
            return cache.attached, join.stats.hit_ratio, found

    def expected(shard: int, **changed: int | None) -> dict[int, int | None]:
        with semistream.Relation.open(path, version=1) as opened:
            keys = np.append(np.arange(2000), ROWS + 5)
            own = keys[opened.key.shards(keys, 2) == shard].tolist()
        prices = {key: key if key < ROWS else None for key in own}
        return prices | {int(key[1:]): price for key, price in changed.items() if int(key[1:]) in prices}

    for shard in range(2):
        assert run(1, shard)[::2] == (False, expected(shard))
        assert run(1, shard) == (True, 1.0, expected(shard))
    # one row changed, one gone, one that was known to be absent
    updates.upsert(path, pa.table({"id": [3, ROWS + 5], "price": [-1, -2]}))
    updates.delete(path, pa.array([4]))
    changed: dict[str, int | None] = {"k3": -1, "k4": None, f"k{ROWS + 5}": -2}
    for shard in range(2):
        attached, ratio, found = run(3, shard)
        assert (attached, found) == (True, expected(shard, **changed))
        assert ratio > 0.99
        # a replay of the old version must not see the new rows, nor what follows it the old ones
        assert run(1, shard)[::2] == (True, expected(shard))
        assert run(3, shard)[::2] == (True, expected(shard, **changed))
    semistream.compact(path)
    for shard in range(2):
        assert run(4, shard)[::2] == (False, expected(shard, **changed))


def test_a_relation_built_anew_under_the_same_name_is_another(tmp_path: Path) -> None:
    identities = set()
    for price in range(2):
        table = pa.table({"id": [1, 2], "price": [price, price]})
        semistream.Relation.build(table, tmp_path / "r", key="id", overwrite=False).close()
        identities.add(shard_identity(tmp_path / "r", manifests.load(tmp_path / "r"), 0))
        (tmp_path / "r").rename(tmp_path / f"old-{price}")
    assert len(identities) == 2


def test_without_room_for_the_files_a_task_uses_memory(
    relation: semistream.Relation, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    calls = []

    def no_room(*arguments: int) -> None:
        calls.append(arguments)
        if len(calls) >= 3:
            raise OSError(28, "No space left on device")
        allocate(*arguments)

    allocate = os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", no_room)
    memory = TaskMemory.divided(400_000, 60_000, missing=True)
    assert memory.missing >= 64 << 10, "keys put aside until they are counted, and those kept"
    stored = TaskRelation("", 1, pa.schema([]), ())
    task = JoinTask(stored, "cachejoin", memory, ("key",), pa.schema([]), {"on": "key"}, counted=True)
    with take() as cache:
        join = task._bound(relation, 0, stream(0), cache)
        assert sum(batch.num_rows for batch in join.process([stream(0)])) == 4000
        assert join.budget.parts()["results put together"] == memory.results > 0
        assert join.budget.parts()["missing keys"] == memory.missing
        cache.keep()
    assert len(calls) == 3
    assert list(place.rglob("*.array")) == []
