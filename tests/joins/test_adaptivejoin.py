"""ADAPTIVEJOIN: results in the order of the stream, each page once a window, memory that moves, what R lacks known."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.core.budget import MemoryBudget
from semistream.core.clock import VirtualClock
from semistream.core.errors import UpdateRefusedError
from semistream.joins.adaptive.adaptive_split import Split, best_window
from semistream.joins.adaptive.frame_memory import FrameMemory
from semistream.joins.adaptive.page_fetch import PageFetch
from semistream.joins.interface.output import has_no_partner
from semistream.relation.relation import Relation
from semistream.relation.synthetic import synthetic_relation
from semistream.relation.updates import upsert
from semistream.relation.version_changes import changed_keys
from semistream.structures.array_source import MappedArrays
from semistream.workloads import ZipfKeys
from semistream_lab.workloads import ShiftingKeys

ROWS = 40_000


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adaptive")
    table = pa.table(
        {"id": np.arange(ROWS), "name": [f"n{i % 977}" for i in range(ROWS)], "price": np.arange(ROWS) / 4}
    )
    Relation.build(table, folder / "r", key="id").close()
    return folder / "r"


def stream(rows: int, seed: int = 1, exponent: float = 1.0) -> pa.RecordBatch:
    keys = ZipfKeys(2 * ROWS, exponent, "random", seed=seed).keys(0, rows)  # half of them are not in R
    return pa.record_batch({"id": pa.array(keys, mask=np.arange(rows) % 89 == 3), "at": np.arange(rows)})


def served(join, batches) -> pa.Table:
    results = list(join.process(batches))
    return pa.Table.from_batches(results, schema=join.output_schema)


@pytest.mark.parametrize("how", ["left", "inner"])
def test_results_come_in_the_order_of_the_stream(path, how):
    batch = stream(30_000)
    with Relation.open(path) as relation:
        found = served(
            semistream.create("adaptivejoin", relation, on="id", how=how, memory=relation.nbytes * 8 // 100), [batch]
        )
        ids = batch["id"].to_pylist()
        there = [key is not None and key < ROWS for key in ids]
        wanted = [at for at in range(len(ids)) if how == "left" or there[at]]
        assert found["at"].to_pylist() == wanted
        assert found["price"].to_pylist() == [ids[at] / 4 if there[at] else None for at in wanted]
        assert found["name"].to_pylist() == [f"n{ids[at] % 977}" if there[at] else None for at in wanted]


def test_a_key_is_read_once_a_window_and_remembered_also_if_r_lacks_it(path):
    batch = stream(5_000)
    with Relation.open(path) as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory=relation.nbytes * 35 // 100)
        served(join, [batch])
        distinct = len(set(batch["id"].to_pylist()) - {None})
        assert 0 < join.stats.pages_read <= min(distinct, join.stats.steps * relation.page_count)
        first = join.stats
        served(join, [batch])
        assert join.stats.pages_read == first.pages_read
        assert join.stats.since(first).hit_ratio == 1.0  # a NULL key needs no answer


def test_an_r_that_fits_is_read_once(path):
    with Relation.open(path) as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory=relation.nbytes * 300 // 100)
        for seed in range(4):
            served(join, [stream(20_000, seed, 0.0)])
        assert join.stats.pages_read <= 3 * relation.page_count
        before = join.stats.pages_read
        served(join, [stream(20_000, 9, 0.0)])
        assert join.stats.pages_read == before
        change = pa.table({"id": [7, 2 * ROWS - 1], "name": ["seven", "new"], "price": [0.0, 1.0]})
        relation.apply(change, deletes=pa.array([8]))
        found = served(join, [pa.record_batch({"id": [7, 8, 9, 2 * ROWS - 1], "at": [0, 1, 2, 3]})])
        assert found["name"].to_pylist() == ["seven", None, "n9", "new"]
        join.check()


def test_memory_answers_all_tuples_of_an_r_that_it_holds(tmp_path):
    """One page, read once, for tuples that all waited for it: the ratio was 0."""
    Relation.build(pa.table({"id": range(10), "name": ["n"] * 10}), tmp_path / "small", key="id").close()
    with Relation.open(tmp_path / "small") as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory="1 MB")
        batch = pa.record_batch({"id": pa.array([*range(20), None] * 50)})  # half of the keys are not in R
        for _ in range(2):
            list(join.process([batch]))
        assert (join.stats.rows_done, join.stats.null_keys, join.stats.pages_read) == (2100, 100, relation.page_count)
        assert join.stats.cache_hits == 2000
        assert join.stats.hit_ratio == 1.0


def test_tuples_without_a_partner_come_apart_where_asked(path):
    batch = stream(3_000)
    with Relation.open(path) as relation:
        join = semistream.create("adaptivejoin", relation, on="id", memory=relation.nbytes // 10, apart=True)
        results = list(join.process([batch]))
    alone = sum(result.num_rows for result in results if has_no_partner(result))
    assert alone == join.stats.unmatched > 0
    assert all(result["name"].null_count in (0, result.num_rows) for result in results)


def test_memory_moves_with_the_batches(path):
    with Relation.open(path) as relation:
        join = semistream.create(
            "adaptivejoin", relation, on="id", memory=relation.nbytes * 40 // 100, schema=stream(1).schema
        )
        for number in range(6):
            served(join, [stream(500, number)])
        before = join.view()
        short = before.window_tuples
        assert short < 1_000
        join.check()
        for number in range(6):
            served(join, [stream(15_000, number)])
        after = join.view()
        assert after.window_tuples > 2 * short
        rows_and_frames = [one.parts["arena"] + one.parts["frames"] for one in (before, after)]
        assert rows_and_frames[1] < rows_and_frames[0], "who gave it may be either"
        assert join.budget.peak <= join.budget.total
        join.check()


def test_a_hot_set_that_changes_is_followed():
    size, rows = 100_000, 5_000
    relation = synthetic_relation(size)
    keys = ShiftingKeys(size, shifts=(200_000,), seed=2)
    join = semistream.create("adaptivejoin", relation, on="id", how="inner", memory=relation.nbytes // 10)
    ratios = []
    for number in range(80):
        before = join.stats
        served(join, [pa.record_batch({"id": keys.keys(number * rows, rows)})])
        ratios.append(join.stats.since(before).hit_ratio)
    steady = np.mean(ratios[30:40])
    fulls = -(-5 * join.view().rows // rows)
    assert np.mean(ratios[40 + fulls : 40 + fulls + 5]) >= 0.95 * steady, (steady, ratios[38 : 50 + fulls])


def test_the_best_window_is_all_of_a_batch_or_equal_parts():
    split = Split(room=57e6, keys=10**7, pages=152_000, tuple_bytes=24, key_bytes=117, seek=6e-6, transfer=3e-6)
    assert best_window(split, 1.0, 100_000.0) == 100_001
    parts = 3_000_000 / (best_window(split, 1.0, 3_000_000.0) - 1)
    assert parts == pytest.approx(round(parts), abs=0.01)
    assert split.seconds(10_000_000, 1.0) == float("inf")


class TestDeadlines:
    def join(self, path, **options):
        clock = VirtualClock()
        relation = Relation.open(path)
        join = semistream.create(
            "adaptivejoin",
            relation,
            on="id",
            memory=relation.nbytes // 5,
            schema=stream(1).schema,
            clock=clock,
            **options,
        )
        return clock, join

    def test_tuples_wait_for_others_until_they_must_leave(self, path):
        clock, join = self.join(path, wait="2s")
        batch = stream(300)
        join.offer(batch.slice(0, 100))
        assert list(join.step()) == []
        clock.advance(1.0)
        join.offer(batch.slice(100))
        assert list(join.step()) == []
        assert join.pending == 300
        clock.advance_to(join.due)
        assert sum(result.num_rows for result in join.step()) == 300
        assert (join.missed_deadlines, join.due) == (0, None)
        join.offer(batch)
        assert sum(result.num_rows for result in join.drain()) == 300

    @pytest.mark.parametrize("rule", ["block", "shed"])
    def test_what_is_too_late_is_counted(self, path, rule):
        clock, join = self.join(path, wait=1.0, on_overload=rule)
        join.offer(stream(50))
        clock.advance(5.0)
        join.offer(stream(30, 2))
        rows = sum(result.num_rows for result in join.step())
        assert rows == (80 if rule == "block" else 30)
        assert (join.missed_deadlines, join.shed_tuples) == ((50, 0) if rule == "block" else (0, 50))
        assert join.pending == 0
        assert join.stats.rows_done == 80
        join.check()

    def test_a_column_says_when(self, path):
        relation, clock = Relation.open(path), VirtualClock()
        join = semistream.create(
            "adaptivejoin", relation, on="id", memory=relation.nbytes // 5, deadline="by", clock=clock
        )
        join.offer(pa.record_batch({"id": [1, 2, 3], "by": pa.array([9.0, 4.0, None])}))
        assert list(join.step()) == []
        assert join.due == 4.0
        clock.advance(4.0)
        assert sum(result.num_rows for result in join.step()) == 3

    @pytest.mark.parametrize("options", [{"wait": "soon"}, {"wait": 0}, {"on_overload": "drop"},
                                         {"wait": 1, "deadline": "by"}])  # fmt: skip
    def test_nonsense_is_refused(self, path, options):
        with pytest.raises(ValueError, match=r"wait|overload"):
            self.join(path, **options)


def test_another_version_of_r_leaves_a_warm_arena_what_has_not_changed(tmp_path):
    path, keys = tmp_path / "r", np.arange(3000)
    Relation.build(pa.table({"id": keys, "price": keys}), path, key="id").close()
    hot = pa.record_batch({"id": np.tile(np.arange(0, 400, 2), 20)})

    def run(changed=None):
        with Relation.open(path) as relation:
            arrays = MappedArrays(tmp_path / "warm")
            join = semistream.create(
                "adaptivejoin",
                relation,
                on="id",
                memory=120_000,
                how="inner",
                schema=hot.schema,
                arrays=lambda _: arrays,
            )
            if changed is not None:
                join.forget_rows(changed)
            found = served(join, [hot])
            return dict(zip(found["id"].to_pylist(), found["price"].to_pylist(), strict=True)), join.stats

    before, _ = run()
    version = upsert(path, pa.table({"id": [0, 2, 4], "price": [0, -1, -2]}))
    changed = changed_keys(path, 1, version)
    assert changed.tolist() == [2, 4]
    after, stats = run(changed)
    assert after == before | {2: -1, 4: -2}
    assert stats.cache_hits > 0.98 * hot.num_rows


@pytest.mark.parametrize("factor", [1.5, 5.0, 20.0])
def test_updates_of_an_r_that_had_one_row(tmp_path, factor):
    """Its rows are then far shorter than the pages had told: what the arena takes is what was reckoned first."""
    relation = Relation.build(pa.table({"id": [0], "v": ["x" * 9]}), tmp_path / "r", "id", page_size=1024)
    tuples = pa.record_batch({"id": np.arange(50), "n": np.arange(50)})
    kind = semistream.joins.find("adaptivejoin")
    memory = int(kind.minimum_memory(relation, tuples.schema, on="id") * factor)
    join = kind(relation, on="id", how="inner", memory=memory)
    rows, installed = {0: 1}, 0
    for number in range(6):
        assert sum(batch.num_rows for batch in join.process([tuples])) == sum(key < 50 for key in rows)
        keys = np.arange(number * 30, number * 30 + 30) * 3
        try:
            relation.apply(pa.table({"id": keys, "v": ["y" * 20] * 30}))
        except UpdateRefusedError:
            continue
        rows |= dict.fromkeys(keys.tolist(), 1)
        installed += 1
        join.check()
    assert join.budget.peak <= join.budget.total
    assert installed >= (6 if factor == 20.0 else 1)


def test_small_budgets_read_many_pages_at_a_call():
    frames = [PageFetch.frames_for(spare, 8192, 10**6, 2e-6) for spare in (0, 60_000, 400_000, 6_000_000, 10**8)]
    assert frames[:2] == [1, 2]
    assert frames[2] == 1 + 100_000 // 8200, "a fourth of a few hundred KB"
    assert frames[3] == 1 + 1_200_000 // 8200, "a fifth of a few MB"
    assert frames[4] == 1 + 10**8 // 16 // 8200
    assert PageFetch.frames_for(10**8, 8192, 9, 2e-6) == 9, "no more than R has pages"
    assert PageFetch.frames_for(400_000, 8192, 10**6, 1e-4) == 6, "a slow disk has no use for long calls"


def test_more_frames_where_a_call_does_not_take_long_and_r_does_not_fit():
    few, spare = 473, 62_000_000
    assert PageFetch.more_frames_for(few, spare, 8192, 160_000, 2e-6) == (few, spare // 8 // 8200, 1000)
    assert PageFetch.more_frames_for(few, spare, 8192, 160_000, 1e-4) == (few,)
    assert PageFetch.more_frames_for(few, spare, 8192, 7_000, 2e-6) == (few,)


def test_frames_are_more_where_fewer_calls_are_worth_more_than_rows(path):
    with Relation.open(path) as relation:
        frames = FrameMemory(relation, MemoryBudget(10**9), (64, 192), 16)
        extra = frames.more_bytes(192)
        uniform = Split(12e6, 10**6, 15_600, tuple_bytes=4, key_bytes=160, seek=5e-6, transfer=2.6e-6)
        split, count = frames.best(uniform, 0.0, 1e6)
        assert (count, split.room) == (192, 12e6 - extra), "windows are many anyhow"
        tuples = 100_000
        needed = (uniform.distinct(tuples, 1.0) * 160 + tuples * 4) * 1.02
        tight = dataclasses.replace(uniform, room=needed)
        assert frames.best(tight, 1.0, tuples)[1] == 64, "or it would be two windows"
        frames.resize(192)
        back, count = frames.best(dataclasses.replace(split, room=12e6 - extra), 0.0, 1e6)
        assert (count, back.room) == (192, 12e6 - extra)
        assert frames.best(dataclasses.replace(tight, room=needed - extra), 1.0, tuples)[1] == 64
        frames.resize(64)
        narrow = dataclasses.replace(uniform, room=extra / 2, key_bytes=6)
        assert frames.best(narrow, 0.0, 1e6)[1] == 64, "there is no room for more at all"
        assert dataclasses.replace(narrow, room=-1.0).best(0.0) == 1


@pytest.mark.slow
def test_text_keys_of_which_a_third_is_absent_in_little_memory(tmp_path):
    """The likeness of a shop: a budget of a few pages, where a call for each page or absent key is what costs."""
    generator = np.random.default_rng(5)
    names = np.array([f"SKU-{i * 7919 % 1_000_003:07d}" for i in range(30_000)])
    master = pa.table({"sku": generator.permutation(names)[:20_000], "price": np.arange(20_000)})
    batch = pa.record_batch({"sku": names[ZipfKeys(names.size, 1.0, "random", seed=3).keys(0, 40_000)]})
    with Relation.build(master, tmp_path / "r", key="sku") as relation:
        pages, calls = {}, []
        for algorithm in ("inlj", "ssij", "adaptivejoin"):
            join = semistream.create(algorithm, relation, on="sku", memory=200_000, schema=batch.schema)
            read, ring = relation.device.read, relation.device.ring
            calls.clear()
            relation.device.read = lambda *a, read=read: (calls.append(1), read(*a))[1]
            relation.device.ring = lambda *a, ring=ring: (calls.append(1), ring(*a))[1]
            try:
                assert sum(part.num_rows for part in join.process([batch])) == batch.num_rows
            finally:
                del relation.device.read, relation.device.ring
            pages[algorithm] = join.stats.pages_read, len(calls)
    assert pages["adaptivejoin"][0] < 0.7 * pages["inlj"][0], pages
    assert pages["adaptivejoin"][1] < 0.5 * min(pages["inlj"][1], pages["ssij"][1]), pages
