"""The inverted index against dictionaries: who waits for what, who meets whom, and that all of it is given back."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest

from semistream.core.arrays import Ints
from semistream.joins.ssij.frame_pool import FramePool
from semistream.joins.ssij.inverted_index import InvertedIndex
from semistream.joins.ssij.inverted_layout import DONE, FOLLOWS, FULL, NO_ROOM, RECORD, W_PAIRS, Pairs
from semistream.joins.ssij.page_cache import ABSENT, PageCache, list_wanted
from semistream.joins.ssij.tuple_log import TupleLog, TupleShape
from semistream.relation.pages.page_layout import PageLayout, pack_pages
from semistream.relation.rows.row_codec import RowCodec

FRAME = 256
NOW = 50.0
R = RowCodec(pa.schema({"row": pa.int64()}))
STREAM = RowCodec(pa.schema({"n": pa.int64()}))
NOTED = RowCodec(pa.schema({"n": pa.int64(), "note": pa.string()}))


class Table:
    """R of rows numbered from 0, in pages of a few rows each; ``copies`` rows a key at most."""

    def __init__(self, random: np.random.Generator, copies: int) -> None:
        keys = np.repeat(np.arange(0, 240, 2), random.integers(1, copies + 1, 120))
        layout = PageLayout(FRAME, R.stride)
        breaks = np.append(np.arange(0, keys.size, layout.capacity(FRAME)), keys.size)
        rows = R.encode(pa.record_batch({"row": np.arange(keys.size)}))
        self.keys = keys
        self.pages = pack_pages(layout, keys, np.ones(keys.size, np.uint8), rows, breaks)
        self.first, self.last = keys[breaks[:-1]], keys[breaks[1:] - 1]

    def span(self, low: int, high: int) -> tuple[int, int]:
        """Return the first of the pages with a key in a range, and how many there are."""
        first = int(np.searchsorted(self.last, low))
        return first, max(0, int(np.searchsorted(self.first, high, side="right")) - first)

    def partners(self, low: int, high: int) -> set[int]:
        return set(np.flatnonzero((self.keys >= low) & (self.keys <= high)).tolist())


@dataclass
class Asked:
    """A stream tuple, as the model has it."""

    low: int
    high: int
    due: float
    met: set[int] = field(default_factory=set)
    left: bool = False


class Bench:
    """An index, a cache and an input buffer in one pool, driven as a join drives them; and the model."""

    def __init__(self, seed: int, *, ranged: bool, timed: bool, copies: int, frames: int, noted: bool) -> None:
        self.random = np.random.default_rng(seed)
        self.table = Table(self.random, copies)
        self.codec = NOTED if noted else STREAM
        self.shape = TupleShape(self.codec, ranged=ranged, timed=timed)
        self.pool = FramePool(np.zeros((frames, FRAME), np.uint8))
        self.cache = PageCache(self.pool, len(self.table.pages))
        self.input = TupleLog(self.pool, self.shape)
        self.index = InvertedIndex(self.pool, self.shape, R.stride, True, copies == 1)
        self.pairs = Pairs.empty(7)
        self.copies = np.empty(5 * R.stride, np.uint8)
        self.asked: list[Asked] = []
        self.late = 0
        self.statuses: set[int] = set()

    # -- what a join does ---------------------------------------------------------------------------------

    def look_up(self, count: int) -> None:
        """Let tuples come, be looked up, and wait for pages that are not cached."""
        tuples, pages_of = self._come(count)
        if tuples.size == 0:
            return
        lengths = np.array([length for _, length in pages_of])
        spans = np.arange(tuples.size + 1), np.array([first for first, _ in pages_of]), lengths
        alone, cursor = np.empty(tuples.size, np.int64), self.index.start()
        while True:
            served = self.index.serve_cached(
                self.cache.arrays, np.empty(0, np.int64), tuples, spans, NOW, cursor, self.pairs, alone
            )  # fmt: skip
            self.statuses.add(served.status)
            self._meet(self.pairs.tuple_at[: served.pairs], self.pool.arrays.flat, self.pairs.start[: served.pairs])
            self._leave(alone[: served.alone])
            self.late += served.late
            if cursor[RECORD] != FOLLOWS:  # else its leader's pages are counted up one by one
                self.check()
            if served.status == DONE:
                break
            if served.status != FULL:
                self.index.pages_went(cursor)
            if served.status == NO_ROOM and self.cache.evict(2) == 0:
                self.join(cursor)
        self.input.drop_front(tuples.size)
        self.check()

    def join(self, cursor: Ints | None = None) -> None:
        """Let wanted pages meet those who wait for them, a few pages at a time, and flush."""
        if cursor is not None:
            self.index.suspend(cursor)
        wanted = np.empty(len(self.table.pages), np.int32)
        wanted = wanted[: list_wanted(self.cache.arrays.place, 0, wanted)]
        assert wanted.size == self.index.wanted
        verdict = self.cache.decide(self.index.wanted, self.index.tally)
        gathered = self.index.start_waiting()
        for begin in range(0, wanted.size, 2):
            pages = wanted[begin : begin + 2].astype(np.int64)
            frames = self.table.pages[pages]
            utility = self.index.utilities(self.cache.arrays, pages, np.empty(2, np.float32))
            self.index.next_pages(gathered)
            while True:
                served = self.index.serve_waiting(
                    self.cache.arrays, pages, frames, NOW, gathered, self.pairs, self.copies
                )
                self.late += served.late
                if served.status == DONE:
                    break
                self._meet_kept(gathered)
            self.cache.settle(pages, frames, utility, verdict)
        self._meet_kept(gathered)
        place = self.index.begin()
        while (lonely := self.index.unmatched(place, 3)).size:
            self._leave(lonely)
        if cursor is not None:
            self.index.resume(cursor)
        self.index.clear()
        assert (len(self.index), self.index.wanted, float(self.index.earliest[0])) == (0, 0, np.inf)
        self.check()

    def check(self) -> None:
        self.cache.check()
        self.index.check(self.cache.arrays)
        self.input.check()
        self.pool.check([self.input, *self.index.logs], self.cache.frames())

    # -- the model ----------------------------------------------------------------------------------------

    def _come(self, count: int) -> tuple[Ints, list[tuple[int, int]]]:
        first, random = len(self.asked), self.random
        low = random.integers(-2, 244, count) if random.random() < 0.7 else random.choice([4, 30, 31], count)
        high = low + random.integers(0, 12, count) if self.shape.ranged else low
        due = random.choice([10.0, 60.0, 70.0, np.inf], count)
        columns: dict[str, object] = {"n": np.arange(first, first + count)}
        if self.codec is NOTED:
            columns["note"] = ["x" * int(size) for size in random.integers(0, 40, count)]
        rows = self.codec.encode(pa.record_batch(columns, schema=self.codec.schema))
        self.cache.evict(4)
        taken = self.input.append(
            low, high if self.shape.ranged else None, due if self.shape.timed else None, rows, spare=6
        )
        self.asked += [Asked(int(low[i]), int(high[i]), float(due[i])) for i in range(taken)]
        tuples = self.input.front(taken)
        order = np.argsort(low[:taken], kind="stable")
        return tuples[order], [self.table.span(int(low[i]), int(high[i])) for i in order]

    def _numbers(self, starts: Ints) -> list[int]:
        found: list[int] = self.codec.decode(self.pool.arrays.flat, starts).column("n").to_pylist()
        return found

    def _meet(self, tuples: Ints, data: np.ndarray, starts: Ints) -> None:
        rows = R.decode(data, starts).column("row").to_pylist()
        for number, row in zip(self._numbers(tuples), rows, strict=True):
            assert row not in self.asked[number].met, "a pair came twice"
            assert not self.asked[number].left, "a tuple has left without a partner, and met one"
            self.asked[number].met.add(row)

    def _meet_kept(self, gathered: Ints) -> None:
        count = int(gathered[W_PAIRS])
        self.index.next_pairs(gathered)
        self._meet(self.pairs.tuple_at[:count], self.copies, self.pairs.kept[:count])

    def _leave(self, starts: Ints) -> None:
        for number in self._numbers(starts):
            assert not self.asked[number].left, "a tuple left twice"
            self.asked[number].left = True

    def assert_all_served(self) -> None:
        for asked in self.asked:
            partners = self.table.partners(asked.low, asked.high)
            assert asked.met == partners
            assert asked.left == (not partners)
        assert self.late == (sum(asked.due < NOW for asked in self.asked) if self.shape.timed else 0)
        self.cache.evict(self.pool.count)
        assert self.pool.free == self.pool.count - self.input.frames().size


CASES = [
    {"ranged": False, "timed": False, "copies": 1},
    {"ranged": False, "timed": False, "copies": 30},
    {"ranged": False, "timed": True, "copies": 4},
    {"ranged": True, "timed": False, "copies": 3},
    {"ranged": True, "timed": True, "copies": 1},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_tuple_meets_all_of_its_partners_once(case: dict[str, int]) -> None:
    statuses: set[int] = set()
    for seed in range(12):
        frames = (12, 40)[seed % 2]
        bench = Bench(seed, frames=frames, noted=seed % 4 > 1, **case)  # type: ignore[arg-type]
        for _ in range(12):
            bench.look_up(int(bench.random.integers(1, 60)))
            if bench.random.random() < 0.3:
                bench.join()
        bench.join()
        bench.assert_all_served()
        statuses |= bench.statuses
    assert statuses == {DONE, FULL, NO_ROOM}, "some of what can happen did not"


@pytest.mark.parametrize("copies", [1, 4])
def test_utilities_are_the_tuples_that_wait(copies: int) -> None:
    bench = Bench(3, ranged=False, timed=True, copies=copies, frames=200, noted=False)
    wanting = np.zeros(len(bench.table.pages), int)
    for _ in range(3):
        begin = len(bench.asked)
        bench.look_up(50)
        waiting = [asked for asked in bench.asked[begin:] if bench.table.span(asked.low, asked.high)[1]]
        for asked in waiting:
            first, length = bench.table.span(asked.low, asked.high)
            wanting[first : first + length] += 1
    pages = np.arange(wanting.size)
    found = bench.index.utilities(bench.cache.arrays, pages, np.empty(wanting.size, np.float32))
    assert found.tolist() == wanting.tolist()
    assert bench.index.wanted == np.count_nonzero(wanting)
    bits = wanting[wanting > 0].astype(np.float32).view(np.uint32).astype(np.int64)
    for shift in (24, 16, 8, 0):
        for prefix in np.unique(bits >> shift + 8):
            counts = np.zeros(256, np.int64)
            bench.index.tally(bench.cache.arrays, int(prefix), shift, counts)
            assert counts.sum() == np.count_nonzero(bits >> shift + 8 == prefix)
            assert counts.tolist() == np.bincount(bits[bits >> shift + 8 == prefix] >> shift & 255, None, 256).tolist()
    served = np.flatnonzero(wanting)[::2]  # as by a phase that failed later: nobody wants these pages any more
    before, bench.cache.arrays.place[served] = bench.cache.arrays.place[served], ABSENT
    counts = np.zeros(256, np.int64)
    bench.index.tally(bench.cache.arrays, 0, 24, counts)
    assert counts.sum() == np.count_nonzero(wanting) - served.size
    bench.cache.arrays.place[served] = before
    waiting = [asked for asked in bench.asked if bench.table.span(asked.low, asked.high)[1]]
    assert len(bench.index) == len(waiting)
    assert bench.index.earliest[0] == min(asked.due for asked in waiting)


def test_tuples_of_a_key_share_what_they_wait_with() -> None:
    bench = Bench(0, ranged=False, timed=False, copies=30, frames=60, noted=False)
    bench.random = np.random.default_rng(1)
    for _ in range(8):
        bench.look_up(50)
    waiting = [asked.low for asked in bench.asked if bench.table.span(asked.low, asked.high)[1]]
    assert len(bench.index) == len(waiting) > 2 * len(set(waiting))
    assert len(bench.index.buffer) == len(set(waiting)), "one record a key, the others follow"
    bench.join()
    bench.assert_all_served()


def test_a_list_that_lost_a_tuple_is_noticed() -> None:
    bench = Bench(5, ranged=False, timed=False, copies=4, frames=60, noted=False)
    bench.look_up(40)
    halves = bench.pool.arrays.halves
    record = int(bench.index.buffer.front(1)[0])
    halves[2 * record] += 8  # says that it waits for one page more
    with pytest.raises(AssertionError):
        bench.index.check(bench.cache.arrays)
    halves[2 * record] -= 8
    bench.check()
