"""ADAPTIVEJOIN and batches that stay with whoever gives them: one window each, and nothing counted that is not held."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.joins.adaptive.window import Window
from semistream.relation.devices.device import DeviceProfile
from semistream.relation.relation import Relation
from semistream.workloads import ZipfKeys

ROWS = 20_000


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """Let what memory is worth not go by the machine."""
    fast = DeviceProfile(1e-4, 3e-6, 2e5, 2e9, depth=16, direct=True)
    monkeypatch.setattr("semistream.joins.adaptive.page_fetch._profile", lambda _: fast)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batches")
    table = pa.table({"id": np.arange(ROWS), "name": [f"name {i}" for i in range(ROWS)]})
    Relation.build(table, folder / "r", key="id").close()
    return folder / "r"


def stream(rows: int, seed: int, exponent: float = 1.6) -> pa.RecordBatch:
    drawn = ZipfKeys(ROWS + 100, exponent, "random", seed=seed).keys(0, rows)
    return pa.record_batch({"id": drawn, "at": np.arange(rows), "more": np.full(rows, 7), "yet": np.full(rows, 1.5)})


def right(batch: pa.RecordBatch, found: list[pa.RecordBatch]) -> bool:
    table = pa.Table.from_batches(found)
    names = [f"name {key}" if key < ROWS else None for key in batch["id"].to_pylist()]
    return table["at"].equals(pa.chunked_array([batch["at"]])) and table["name"].to_pylist() == names


def test_a_batch_larger_than_the_memory_is_one_window_if_the_rows_of_its_keys_fit(path):
    with Relation.open(path) as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory=relation.nbytes * 40 // 100)
        for number in range(5):
            batch, before = stream(15_000, number), join.stats
            assert batch.nbytes > 1.5 * join.budget.total
            assert right(batch, list(join.process([batch])))
            join.check()
            assert join.budget.peak <= join.budget.total
        assert join.stats.since(before).steps == 1


def test_what_stays_when_a_batch_is_over_is_counted_and_served(path):
    with Relation.open(path) as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory=relation.nbytes * 40 // 100, wait="60s")
        for rows in (200, 20_000, 200, 200):
            batch = stream(rows, rows)
            found = list(join.feed(batch))
            view = join.view()
            assert view.window_bytes <= view.window_limit
            assert view.lent == 0
            join.check()
            found += join.drain()
            assert right(batch, found)


def test_after_batches_that_were_drained_a_stream_goes_on(path):
    with Relation.open(path) as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory=relation.nbytes // 5)
        for number in range(3):
            list(join.process([stream(4_000, number)]))
        assert join.view().window_limit <= 8192, "tuples are the caller's"
        before, batches = join.stats, [stream(100, number, 0.0) for number in range(120)]
        found = list(join.process(batches))
        assert pa.Table.from_batches(found)["id"].to_pylist() == [
            key for one in batches for key in one["id"].to_pylist()
        ]
        assert join.stats.since(before).steps < len(batches) / 2, "tuples of several batches share a window again"
        join.check()


def test_rows_that_do_not_fit_are_found_out_before_pages_are_read(path):
    with Relation.open(path) as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory=relation.nbytes * 30 // 100, window=6_000)
        batch = stream(6_000, 1, 0.0)
        before = join.stats.pages_read
        assert right(batch, list(join.process([batch])))
        windows = join.stats.steps
        assert windows > 1
        assert join.stats.pages_read - before <= windows * relation.page_count
        join.check()


def test_what_is_left_of_a_batch_that_nobody_gives_any_more_is_counted(path):
    with Relation.open(path) as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory=relation.nbytes * 60 // 100)
        for number in range(3):
            list(join.process([stream(3_000, number)]))
        batch = stream(9_000, 5)
        results = join.feed(batch)
        # the whole batch is in one window; nobody takes its results to the end
        next(results)
        assert join.view().lent * 32 > join.view().window_limit
        results.close()
        view = join.view()
        assert view.lent == 0
        assert 0 < view.window_bytes <= view.window_limit <= join.budget.parts()["stream buffer"]
        join.check()


def test_frames_take_memory_that_the_rows_of_a_batch_do_not_need(path, monkeypatch):
    monkeypatch.setattr("semistream.joins.adaptive.page_fetch._MORE_FRAMES_PARTS", (2,))
    taken = []
    with Relation.open(path) as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory=relation.nbytes * 30 // 100)
        for rows, exponent in [(2_000, 1.6)] * 4 + [(12_000, 1.0)] * 4 + [(2_000, 1.6)] * 10:
            batch = stream(rows, rows, exponent)
            assert right(batch, list(join.process([batch])))
            join.check()
            taken.append(join.budget.parts()["frames"])
        assert join.budget.peak <= join.budget.total
    assert taken[3] > taken[7], "rows of so many keys come first"
    assert taken[-1] == taken[3]


def one_key_then_many(rows: int, seed: int) -> pa.RecordBatch:
    keys = np.random.default_rng(seed).permutation(ROWS)[: rows // 2]
    return pa.record_batch({"id": np.append(np.full(rows - keys.size, 9), keys), "at": np.arange(rows)})


@pytest.mark.parametrize("piece", [30_000, 700])
def test_after_many_tuples_of_one_key_rows_get_their_memory_back(path, piece):
    with Relation.open(path) as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory=90_000)
        for number in range(4):
            batch, before = one_key_then_many(30_000, number), join.stats
            assert right(batch, list(join.process(batch.slice(at, piece) for at in range(0, 30_000, piece))))
            join.check()
            assert join.budget.peak <= join.budget.total
            did = join.stats.since(before)
            assert did.steps < 200, "a turn for some keys each"
            assert did.pages_read < 6_000, "keys share pages"
        assert join.view().rows > 200


@pytest.mark.parametrize("memory", [60_000, 90_000])
def test_a_window_leaves_room_for_the_rows_of_few_keys(path, memory):
    keys = np.random.default_rng(3).integers(0, 24, 30_000) * 700
    batch = pa.record_batch({"id": keys, "at": np.arange(keys.size)})
    with Relation.open(path) as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory=memory)
        for number in range(2):
            list(join.process([one_key_then_many(30_000, number).take(pa.array(np.arange(30_000)[::-1]))]))
        before = join.stats
        assert right(batch, list(join.process([batch])))
        join.check()
        did = join.stats.since(before)
        assert did.pages_read <= 48, "each key once or twice"
        assert did.steps < 20


@pytest.mark.sampled
@pytest.mark.parametrize("rows_of_key", [20, 100])
def test_keys_of_many_rows_are_not_read_again_and_again(tmp_path, rows_of_key):
    random, keys = np.random.default_rng(1), 20_000 // rows_of_key
    ids = np.repeat(random.permutation(keys), rows_of_key)
    Relation.build(pa.table({"id": ids, "a": np.arange(ids.size)}), tmp_path / "r", key="id").close()
    with Relation.open(tmp_path / "r") as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory=100_000)
        alone = semistream.create("inlj", relation, on="id", memory=100_000)
        for _ in range(3):
            batch, before = pa.record_batch({"id": random.integers(0, keys, 3_000)}), join.stats
            found = pa.Table.from_batches(list(join.process([batch])))
            assert found["id"].to_pylist() == np.repeat(batch["id"].to_numpy(), rows_of_key).tolist()
            join.check()
            assert join.budget.peak <= join.budget.total
            did, before = join.stats.since(before), alone.stats
            assert sum(one.num_rows for one in alone.process([batch])) == found.num_rows
            assert did.pages_read < 1.1 * alone.stats.since(before).pages_read
            assert did.steps < 60 * rows_of_key / 10


def test_a_key_with_more_rows_than_fit_is_served_by_itself(tmp_path):
    random, many = np.random.default_rng(1), 3_000
    ids = random.permutation(np.append(np.arange(20_000), np.full(many - 1, 77)))
    Relation.build(pa.table({"id": ids, "a": np.arange(ids.size)}), tmp_path / "r", key="id").close()
    with Relation.open(tmp_path / "r") as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory=100_000)
        for number in range(4):
            if number == 3:
                join.forget_rows(np.array([5, 77]))  # it may have fewer rows in another version of R
            keys = np.where(random.random(3_000) < 0.01, 77, random.integers(100, 20_000, 3_000))
            before = join.stats
            found = pa.Table.from_batches(list(join.process([pa.record_batch({"id": keys})])))
            assert found["id"].to_pylist() == np.repeat(keys, np.where(keys == 77, many, 1)).tolist()
            join.check()
            assert join.budget.peak <= join.budget.total
            did, asked = join.stats.since(before), int((keys == 77).sum())
            unknown = number in (0, 3)
            assert did.steps < (8 if unknown else 3) * asked
            assert did.pages_read < (2 if unknown else 1) * keys.size + 40 * asked, "its rows are not read in vain"


def test_an_r_of_keys_that_do_not_fit(tmp_path):
    random, keys, many = np.random.default_rng(1), 150, 700
    ids = random.permutation(np.repeat(np.arange(keys), many))
    Relation.build(pa.table({"id": ids, "a": np.arange(ids.size)}), tmp_path / "r", key="id").close()
    with Relation.open(tmp_path / "r") as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory=60_000)
        alone = semistream.create("inlj", relation, on="id", memory=60_000)
        for _ in range(2):
            batch, before, pages = pa.record_batch({"id": random.integers(0, keys, 300)}), join.stats, alone.stats
            found = pa.Table.from_batches(list(join.process([batch])))
            assert found["id"].to_pylist() == np.repeat(batch["id"].to_numpy(), many).tolist()
            assert sum(one.num_rows for one in alone.process([batch])) == found.num_rows
        assert join.view().rows < many
        assert join.stats.since(before).pages_read < 2.5 * alone.stats.since(pages).pages_read


def test_a_step_after_an_offer_that_was_refused_serves(path):
    with Relation.open(path) as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory=60_000, deadline="by")
        batch = pa.record_batch({"id": np.arange(ROWS), "by": pa.nulls(ROWS, pa.float64())})
        at = found = turns = 0
        while at < ROWS:
            taken = join.offer(batch.slice(at))
            at, served = at + taken, sum(one.num_rows for one in join.step())
            found, turns = found + served, turns + 1
            assert taken or served, "nobody goes on"
        assert turns < 1_000
        assert found + sum(one.num_rows for one in join.drain()) == ROWS


def test_a_batch_of_a_key_with_many_rows_does_not_tell_of_all_others(tmp_path):
    ids = np.random.default_rng(1).permutation(np.append(np.arange(20_000), np.full(300, 77)))
    Relation.build(pa.table({"id": ids, "a": np.arange(ids.size)}), tmp_path / "r", key="id").close()
    with Relation.open(tmp_path / "r") as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory=90_000)
        found = [sum(one.num_rows for one in join.process([pa.record_batch({"id": [77]})])) for _ in range(3)]
        assert found == [301] * 3
        keys = np.random.default_rng(2).permutation(np.arange(100, 20_000))[:5_000]
        before = join.stats
        assert sum(one.num_rows for one in join.process([pa.record_batch({"id": keys})])) == 5_000
        assert join.stats.since(before).steps < 40


def test_long_rows_are_reckoned_with(tmp_path):
    random, rows = np.random.default_rng(1), 10_000
    texts = ["x" * (1_000 if i % 20 == 0 else 10) for i in range(rows)]
    Relation.build(pa.table({"id": np.arange(rows), "name": texts}), tmp_path / "r", key="id").close()
    with Relation.open(tmp_path / "r") as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory=100_000)
        for _ in range(3):
            batch, before = pa.record_batch({"id": random.integers(0, rows // 20, 2_000) * 20}), join.stats
            found = pa.Table.from_batches(list(join.process([batch])))
            assert found["name"].to_pylist() == ["x" * 1_000] * 2_000
            join.check()
            assert join.budget.peak <= join.budget.total
        assert join.stats.since(before).pages_read < 2_500, "hardly more than one for a tuple"


def test_tuples_that_find_no_place_leave_nothing_in_the_window(path):
    with Relation.open(path) as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory=60_000, wait="60s")
        for at in range(0, ROWS, 100):
            batch = pa.record_batch({"id": np.arange(at, at + 100)})
            if join.offer(batch) < 100 and join.offer(batch) == 0:
                break
        assert join.pending
        assert all(part.num_rows for part, _, _ in join._window.parts())
        assert join.due < float("inf")
        assert sum(one.num_rows for one in join.drain()) == join.stats.rows_in


def test_tuples_that_are_left_share_a_window_with_those_that_come(path):
    with Relation.open(path) as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory=90_000, window=1_000)
        batch = stream(20_000, 1, 0.0)
        assert right(batch, list(join.process([batch])))
        rows = join.view().rows
        assert rows < 900, "a window has more keys than fit"
        assert join.stats.steps < 1.15 * 20_000 / rows


def test_a_window_counts_what_is_not_lent():
    batch = pa.record_batch({"id": np.arange(100)})
    window = Window(batch.schema, 400, 1000)
    assert window.room(batch) < 50
    assert window.room(batch, 10_000) == 100
    window.numbers_of_next(100)[:] = 0
    window.append(batch, lent=True)
    assert window.nbytes == 0
    assert not window.keep()
    window.take(70)
    assert window.keep()
    assert 0 < window.nbytes <= 400
    window.check()
