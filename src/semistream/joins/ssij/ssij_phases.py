"""The two phases of SSIJ in which tuples leave: online (Algorithm 1) and join (Algorithm 2).

A phase yields tuples that leave, with their matches, and `Ssij` makes results of them. A yielded event is valid until
the next is requested.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

from semistream.core.arrays import Bytes, Ints
from semistream.core.errors import SemistreamError
from semistream.core.statistics import JoinStatistics
from semistream.joins.interface.leaving import Leaving
from semistream.joins.ssij.inverted_index import Served
from semistream.joins.ssij.inverted_layout import DONE, FULL, NO_ROOM, RECORD, TUPLE, W_PAIRS
from semistream.joins.ssij.page_cache import Verdict
from semistream.joins.ssij.ssij_memory import SsijMemory
from semistream.joins.ssij.ssij_schedule import SsijSchedule
from semistream.relation.relation import Relation
from semistream.relation.spans import locate_spans
from semistream.structures.read_plan import ReadPlan

__all__ = ["Alone", "Event", "Found", "JoinPhase", "Met", "OnlinePhase", "Short"]


class Found(NamedTuple):
    """Pairs just found, with R's rows still in their pages; the tuples leave later."""

    keys: Ints
    data: Bytes
    starts: Ints
    flags: Bytes


class Met(NamedTuple):
    """Tuples that leave with rows of R; a tuple appears once per row."""

    keys: Ints
    stream: Leaving
    data: Bytes
    starts: Ints
    flags: Bytes
    found: bool
    """Whether these pairs were already reported by a `Found`."""


class Alone(NamedTuple):
    """Tuples that were joined with all of their pages, and leave without a match."""

    stream: Leaving


class Short(NamedTuple):
    """Memory is short for waiting tuples: a join phase must make room before the next event is requested."""

    cursor: Ints
    """Cursor of the look-up that was interrupted."""


Event: TypeAlias = Found | Met | Alone | Short


class _Working:
    """What both phases share.

    Parameters
    ----------
    relation, memory
        R, and the memory of the join.
    schedule
        Has the clock; learns which tuples were looked up, and the cost of join phases.
    stats
        The counters.
    """

    def __init__(self, relation: Relation, memory: SsijMemory, schedule: SsijSchedule, stats: JoinStatistics) -> None:
        self._relation = relation
        self._memory = memory
        self._schedule = schedule
        self._stats = stats

    def _count(self, served: Served) -> None:
        stats = self._stats
        stats.probes += served.probes
        stats.rows_done += served.finished
        stats.cache_hits += served.hits
        stats.appended += served.waiting
        self._schedule.late += served.late

    def _held(self, starts: Ints) -> Leaving:
        """Return the tuples whose rows start at these bytes of the pool, ready to leave."""
        flat, codec = self._memory.pool.arrays.flat, self._memory.shape.codec
        return Leaving(
            starts.size, codec.sizes_at(flat, starts), lambda begin, end: codec.decode(flat, starts[begin:end])
        )


class OnlinePhase(_Working):
    """Look tuples up, join them with cached pages, and let the others wait.

    Takes ``n log n`` time for the n tuples of a portion, and a binary search for each cached page of a tuple; reads
    nothing.
    """

    def run(self) -> Iterator[Event]:
        """Take a batch of tuples from the input buffer, portion by portion."""
        memory, schedule = self._memory, self._schedule
        left = min(len(memory.input), memory.thresholds.input_tuples)
        while left > 0:
            most = min(left, memory.portion)
            tuples = memory.input.take_most_urgent(most) if schedule.timed else memory.input.front(most)
            left -= tuples.size
            yield from self._look_up(tuples)
            if schedule.timed:
                memory.input.drop_taken()
                schedule.went_on()
            else:
                memory.input.drop_front(tuples.size)
            if schedule.join_cannot_wait:
                break

    def _look_up(self, tuples: Ints) -> Iterator[Event]:
        """Sort tuples by key, look them up in the index, and join them with cached pages."""
        memory, cache, index = self._memory, self._memory.cache, self._memory.index
        words = memory.pool.arrays.words
        tuples = tuples[np.argsort(words[tuples + 1])]
        low = words[tuples + 1]
        high = words[tuples + 2] if memory.shape.ranged else low
        spans = locate_spans(self._relation, low, high)
        if self._schedule.timed:
            self._schedule.looked_up(int(spans.length.sum()))
        alone = np.empty(tuples.size, np.int64)
        cursor = index.start()
        cache.tick()
        while True:
            served = index.serve_cached(
                cache.arrays, self._relation.page_order, tuples, spans,
                self._schedule.now(), cursor, memory.pairs, alone,
            )  # fmt: skip
            self._count(served)
            if served.pairs:
                yield self._met(served.pairs)
            yield Alone(self._held(alone[: served.alone]))
            if served.status == DONE:
                return
            if served.status != FULL:
                index.pages_went(cursor)
            if served.status == NO_ROOM and not memory.give_way(tuples.size - int(cursor[TUPLE])):
                yield Short(cursor)

    def _met(self, count: int) -> Met:
        """Return pairs of tuples with rows of cached pages, ordered by key."""
        pairs, data = self._memory.pairs, self._memory.pool.arrays.flat
        stream = self._held(pairs.tuple_at[:count])
        return Met(pairs.key[:count], stream, data, pairs.start[:count], pairs.flag[:count], found=False)


class JoinPhase(_Working):
    """Read the wanted pages and join them with the waiting tuples.

    Takes one step per page of R to list the wanted ones. Reads each of these once, and pages between them where this is
    cheaper than a seek. Uses only memory that `SsijMemory` has reserved.

    Parameters
    ----------
    greedy
        Whether the read plan is the greedy one.
    utility_kept
        Share of a page's utility that it keeps after the phase.
    """

    def __init__(
        self,
        relation: Relation,
        memory: SsijMemory,
        schedule: SsijSchedule,
        stats: JoinStatistics,
        *,
        greedy: bool,
        utility_kept: float,
    ) -> None:
        super().__init__(relation, memory, schedule, stats)
        self._greedy = greedy
        self._utility_kept = utility_kept

    def run(self, cursor: Ints | None = None) -> Iterator[Event]:
        """Join all waiting tuples; ``cursor`` is that of the look-up that ran out of memory, if any."""
        memory, schedule, cache, index = self._memory, self._schedule, self._memory.cache, self._memory.index
        began = schedule.now()
        if cursor is not None:
            index.suspend(cursor)
        wanted = index.wanted
        verdict = cache.decide(wanted, index.tally)
        plans = memory.plans(greedily=self._greedy)
        gathered = index.start_waiting()
        try:
            yield from self._serve(plans, verdict, gathered)
        except SemistreamError:
            yield from self._met(gathered)  # these count as joined; the others wait for another phase
            raise
        yield from self._met(gathered)
        yield from self._flush(cursor)
        cache.age(self._utility_kept)
        if cursor is not None:  # the look-up continues
            cache.count_anew()
        schedule.observe(wanted, schedule.now() - began)

    def _serve(self, plans: Iterator[ReadPlan], verdict: Verdict, gathered: Ints) -> Iterator[Found | Met]:
        """Join the waiting tuples with the pages of the plans."""
        memory, schedule, cache, index = self._memory, self._schedule, self._memory.cache, self._memory.index
        for pages, frames in memory.read_buffer.pages(plans):
            utility = index.utilities(cache.arrays, pages, memory.read_utilities)
            index.next_pages(gathered)
            while True:
                before = int(gathered[W_PAIRS])
                served = index.serve_waiting(
                    cache.arrays, pages, frames, schedule.now(), gathered, memory.pairs, memory.copies
                )
                self._count(served)
                if before < served.pairs:
                    yield self._found(frames, before, served.pairs)
                if served.status == FULL or schedule.timed:
                    yield from self._met(gathered)
                if served.status == DONE:
                    break
            cache.settle(pages, frames, utility, verdict)

    def _found(self, frames: Bytes, begin: int, end: int) -> Found:
        pairs = self._memory.pairs
        return Found(pairs.key[begin:end], frames.reshape(-1), pairs.start[begin:end], pairs.flag[begin:end])

    def _met(self, gathered: Ints) -> Iterator[Met]:
        """Yield the collected pairs of waiting tuples and copies of R's rows, if any, and start a new collection."""
        count, pairs = int(gathered[W_PAIRS]), self._memory.pairs
        self._memory.index.next_pairs(gathered)
        if count:
            stream = self._held(pairs.tuple_at[:count])
            copies = self._memory.copies
            yield Met(pairs.key[:count], stream, copies, pairs.kept[:count], pairs.flag[:count], found=True)

    def _flush(self, cursor: Ints | None) -> Iterator[Alone]:
        """Empty the stream buffer; its tuples without a match have been joined with all of their pages."""
        index = self._memory.index
        place = index.begin()
        while (lonely := index.unmatched(place, self._memory.portion)).size:
            yield Alone(self._held(lonely))
        partial = 0
        if cursor is not None:
            partial = int(cursor[RECORD] >= 0)
            index.resume(cursor)
        self._stats.evicted += len(index) - partial
        index.clear()
