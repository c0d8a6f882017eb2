"""SSIJ, the semi-streaming index join (§IV): tuples in batches, pages by utility, reads by an optimal plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bytes, Ints
from semistream.joins.interface.following import Undo
from semistream.joins.interface.leaving import Leaving
from semistream.joins.interface.stream_buffer import Tuples
from semistream.joins.ssij.inverted_index import Served
from semistream.joins.ssij.inverted_kernels import DONE, FULL, NO_PLAN, NO_ROOM, RECORD, TUPLE, W_PAIRS
from semistream.joins.ssij.ssij_schedule import SsijSchedule
from semistream.relation.changes.overlay import Change
from semistream.relation.changes.patch import Patch
from semistream.relation.relation import Relation
from semistream.relation.spans import locate_spans
from semistream.structures.read_plan import ReadPlan

__all__ = ["Ssij"]


class Ssij(SsijSchedule):
    """Stream tuples meet cached pages at once, and wait together for the pages that have to be read.

    *Pending*: tuples gather in the input buffer. *Online*: a batch of them is sorted and walked through the index;
    those whose pages are cached are joined and leave, the others go to the stream buffer, in the lists of the pages
    they wait for. *Join*: the wanted pages are read by the cheapest plan of runs, each meets the tuples of its list,
    and stays cached if it serves more tuples than others do. Cached pages, both buffers and the lists share one
    block of memory: tuples that need room push out the pages of least utility, and pages return when tuples have left.

    Parameters
    ----------
    input_tuples
        Tuples that gather before they are looked up (``IB_thresh``). By default 250 k, or what a tenth of the memory
        holds. More makes the walk through the index and the cache cheaper, and tuples wait longer.
    buffer_tuples
        Waiting tuples that start a join phase (``SB_thresh``). By default 1 M, 400 k if memory is about one percent of
        R or less, or what half of the memory holds. More share the reads; fewer pages are cached.
    input_limit
        Tuples that `offer` takes before a turn is due; by default ``input_tuples``. More lets bursts in, at the expense
        of cached pages.
    max_scan
        Pages read in one run at most, those nobody wants included.
    replacement
        ``"utility"``; or the paper's comparators ``"lru"`` and ``"none"``, which caches nothing.
    cache_share
        None lets memory move between pages and tuples. A share, such as the paper's 0.2, 0.5 and 0.7, fixes the split.
    utility_kept
        Share of a page's utility that it takes into the time after a join phase. 0 is the paper's: all pages are then
        equal, and which of them make way for the next tuples is left to chance. More estimates a steady stream better,
        and follows a moving one later.
    plan
        ``"optimal"`` or ``"greedy"``.
    read_ahead
        Whether the next pages are read, by a thread, while the last ones are joined.
    deadline
        None; or seconds after its offer by which each tuple is to leave; or the name of a stream column with the
        moment, in seconds of ``clock``, NULL meaning none.
    clock
        What deadlines are measured with; for a simulated device, its virtual clock.

    Notes
    -----
    With deadlines, somebody must call `step` at `due` at the latest. `missed_deadlines` counts those that left later.

    Departures from the paper. A batch is sorted and looked up in portions, so that what this takes is bounded. Pages
    are read into buffers of their own, several runs at once and the next while these are joined, and copied if they
    are to be kept; the read plan takes linear time. A tuple that waits for more pages than fit is taken through several
    join phases. When deadlines press, all tuples of the input buffer are looked up, in the order of their deadlines, as
    long as the join phase still ends in time; the paper takes only those that would expire during it, and those that
    expire soon after are late.

    Examples
    --------
    >>> import pyarrow as pa, tempfile, semistream
    >>> events = pa.table({"at": range(0, 100, 10), "event": list("abcdefghij")})
    >>> spans = pa.record_batch({"low": [15, 98], "high": [42, 99]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     relation = semistream.Relation.build(events, f"{folder}/events", key="at")
    ...     join = semistream.create("ssij", relation, on=("low", "high"), condition="between", how="left")
    ...     result = pa.Table.from_batches(join.process([spans]))
    >>> result.sort_by("at").to_pylist()
    [{'low': 15, 'high': 42, 'at': 20, 'event': 'c'}, {'low': 15, 'high': 42, 'at': 30, 'event': 'd'},
     {'low': 15, 'high': 42, 'at': 40, 'event': 'e'}, {'low': 98, 'high': 99, 'at': None, 'event': None}]
    """

    id = "ssij"
    title = "SSIJ: batched look-ups, pages cached by utility, planned reads"
    place = 130
    conditions = ("equal", "between")

    def __init__(
        self,
        relation: Relation,
        *,
        plan: Literal["optimal", "greedy"] = "optimal",
        utility_kept: float = 0.5,
        **options: Any,
    ) -> None:
        if plan not in ("optimal", "greedy"):
            raise ValueError(f"plan must be 'optimal' or 'greedy', not {plan!r}")
        if not 0.0 <= utility_kept < 1.0:
            raise ValueError(f"utility_kept must be at least 0 and less than 1, not {utility_kept}")
        self._greedy = plan == "greedy"
        self._utility_kept = utility_kept
        self._updates: deque[tuple[Any, Any, Future[Change]]] = deque()
        self._early: deque[pa.RecordBatch] = deque()
        self._turning = False
        self.online_phases = 0
        self.join_phases = 0
        super().__init__(relation, **options)

    # -- pending: tuples come in --------------------------------------------------------------------------

    def _absorb(self) -> None:
        limit = self._input_limit
        while len(self._stream) and len(self._input) < limit:
            for part in self._stream.take(limit - len(self._input)):
                count = self._take_in(part)
                if count < len(part.keys):
                    self._stream.put_back(Tuples(part.keys[count:], part.batch.slice(count)))
                    return

    def _take_in(self, part: Tuples) -> int:
        """Append tuples to the input buffer, cached pages making room; return how many."""
        rows = self.stream_codec.encode(part.batch)
        self._make_room(self._frames_for(self._shape.sizes(rows.lengths)) + self._spare)
        ranged = self._shape.ranged
        highs = self.condition.highs(part.batch, part.keys) if ranged else None
        dues = self._dues(part.batch) if self._timed else None
        count = self._input.append(part.keys, highs, dues, rows, self._spare)
        self._stats.buffered += count
        if dues is not None and count:
            spans = locate_spans(self.relation, part.keys[:count], (part.keys if highs is None else highs)[:count])
            self._input_pages += int(spans.length.sum())
            self._input_due = min(self._input_due, float(dues[:count].min()))
        return count

    # -- one turn -----------------------------------------------------------------------------------------

    def _step(self) -> Iterator[pa.RecordBatch]:
        while self._early:
            yield self._early.popleft()
        if self._updates:
            yield from self._turn_of(self._join_phase())
            self._install_updates()
        self._absorb()
        if self._waiting_press():
            yield from self._turn_of(self._join_phase())
            self._absorb()
        if self._online_is_due():
            yield from self._turn_of(self._online_phase())
            self._absorb()
        if self._join_is_due():
            yield from self._turn_of(self._join_phase())
        self._absorb()

    def _turn(self) -> Iterator[pa.RecordBatch]:
        if not self._bound:
            self._install_updates()  # no tuple has come yet that has to see R as it was
        yield from super()._turn()

    def _turn_of(self, phase: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run a phase, amid which pages stay where they are, whatever is offered between its results."""
        self._turning = True
        try:
            yield from phase
        finally:
            self._turning = False

    # -- online: look up, join what is cached, let the rest wait (Algorithm 1) ----------------------------

    def _online_phase(self) -> Iterator[pa.RecordBatch]:
        self.online_phases += 1
        left = min(len(self._input), self._input_tuples)
        while left > 0:
            tuples = self._next_portion(min(left, self._portion))
            left -= tuples.size
            yield from self._look_up(tuples)
            self._drop_portion(tuples.size)
            if len(self._index) >= self._buffer_tuples or self._clock_is_at(self._join_due()):
                break

    def _next_portion(self, most: int) -> Ints:
        """Return the addresses of tuples in the input buffer, those due first."""
        return self._input.take_most_urgent(most) if self._timed else self._input.front(most)

    def _drop_portion(self, count: int) -> None:
        if not self._timed:
            self._input.drop_front(count)
            return
        self._input.drop_taken()
        self._input_due = self._input.due_bounds()[0]
        if len(self._input) == 0:
            self._input_pages = 0

    def _look_up(self, tuples: Ints) -> Iterator[pa.RecordBatch]:
        """Sort tuples by key, walk them through the index, and serve them as far as pages are cached."""
        words = self._pool.arrays.words
        tuples = tuples[np.argsort(words[tuples + 1])]
        low = words[tuples + 1]
        high = words[tuples + 2] if self._shape.ranged else low
        spans = locate_spans(self.relation, low, high)
        self._input_pages = max(0, self._input_pages - int(spans.length.sum())) if self._timed else 0
        alone = np.empty(tuples.size, np.int64)
        cursor = self._index.start()
        self._cache.tick()
        while True:
            served = self._index.serve_cached(
                self._cache.arrays, self.relation.page_order, tuples, spans,
                self._planner.capacity, self._clock.now(), cursor, self._pairs, alone,
            )  # fmt: skip
            self._count(served)
            yield from self._emit_cached(served.pairs)
            yield from self._without_partner(self._held(alone[: served.alone]))
            if served.status == DONE:
                return
            if served.status != FULL:
                self._index.pages_went(cursor)
            short_of_room = served.status == NO_ROOM and not self._give_way(tuples.size - int(cursor[TUPLE]))
            short_of_plan = served.status == NO_PLAN and not self._grow_plan()
            if short_of_room or short_of_plan:
                yield from self._join_phase(cursor)

    def _count(self, served: Served) -> None:
        stats = self._stats
        stats.probes += served.probes
        stats.rows_done += served.finished
        stats.cache_hits += served.hits
        stats.appended += served.waiting
        self.missed_deadlines += served.late

    def _emit_cached(self, count: int) -> Iterator[pa.RecordBatch]:
        """Yield pairs of tuples with rows of cached pages; they are in key order."""
        if count:
            pairs = self._pairs
            stream = self._held(pairs.tuple_at[:count])
            data = self._pool.arrays.flat
            yield from self._joined(pairs.key[:count], stream, data, pairs.start[:count], pairs.flag[:count])

    def _held(self, starts: Ints) -> Leaving:
        """Let tuples leave whose rows start at these bytes of the pool."""
        flat, codec = self._pool.arrays.flat, self.stream_codec
        return Leaving(
            starts.size, codec.sizes_at(flat, starts), lambda begin, end: codec.decode(flat, starts[begin:end])
        )

    # -- join: read what is wanted and serve those who wait (Algorithm 2) ---------------------------------

    def _join_phase(self, cursor: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """Serve all waiting tuples; ``cursor`` is that of the look-up that ran out of memory, if one did."""
        if len(self._index) == 0:
            return
        self.join_phases += 1
        began = self._clock.now()
        index, cache = self._index, self._cache
        if cursor is not None:
            index.suspend(cursor)
        wanted = self._wanted_pages()
        verdict = cache.decide(index.utilities(cache.arrays, wanted, self._utilities))
        plan = self._planner.plan_greedily(wanted) if self._greedy else self._planner.plan(wanted)
        gathered = index.start_waiting()
        for pages, frames in self._planned(plan):
            utility = index.utilities(cache.arrays, pages, self._chunk_utilities)
            index.next_pages(gathered)
            while True:
                before = int(gathered[W_PAIRS])
                served = index.serve_waiting(
                    cache.arrays, pages, frames, self._clock.now(), gathered, self._kept_pairs, self._copies
                )
                self._count(served)
                self._notice(frames, before, served.pairs)
                if served.status == FULL or self._timed:
                    yield from self._emit_kept(gathered)
                if served.status == DONE:
                    break
            cache.settle(pages, frames, utility, verdict)
        yield from self._emit_kept(gathered)
        yield from self._flush(cursor)
        cache.age(self._utility_kept)
        self.costs.observe(wanted.size, self._clock.now() - began)

    def _planned(self, plan: ReadPlan) -> Iterator[tuple[Ints, Bytes]]:
        """Yield the pages of a plan, some runs at a time; where there are two buffers, the next are read meanwhile."""
        coming: deque[tuple[Ints, Bytes, Future[None] | None]] = deque()
        at, turn = 0, 0
        while at < plan.pages.size or coming:
            while at < plan.pages.size and len(coming) < len(self._read_buffers):
                listed, frames = self._read_buffers[turn]
                turn = (turn + 1) % len(self._read_buffers)
                pages, at = plan.list_pages(at, listed)
                frames = frames[: pages.size]
                ahead = None if self._reader is None else self._reader.submit(self.relation.read, pages, frames)
                coming.append((pages, frames, ahead))
            pages, frames, reading = coming.popleft()
            if reading is None:
                self.relation.read(pages, frames)
            else:
                reading.result()
            yield pages, frames

    def _notice(self, frames: Bytes, begin: int, end: int) -> None:
        """Show pairs to whoever observes, those of a key together: tuples of several batches wait for a page."""
        if self._on_match is not None and begin < end:
            pairs = self._kept_pairs
            order = begin + np.argsort(pairs.key[begin:end], kind="stable")
            self._on_match(pairs.key[order], frames.reshape(-1), pairs.start[order], pairs.flag[order])

    def _emit_kept(self, gathered: Ints) -> Iterator[pa.RecordBatch]:
        """Yield pairs of waiting tuples with copies of R's rows."""
        count, pairs = int(gathered[W_PAIRS]), self._kept_pairs
        self._index.next_pairs(gathered)
        if count == 0:
            return
        stream = self._held(pairs.tuple_at[:count])
        yield from self._joined(
            pairs.key[:count], stream, self._copies, pairs.kept[:count], pairs.flag[:count], seen=True
        )

    def _flush(self, cursor: Ints | None) -> Iterator[pa.RecordBatch]:
        """Empty the stream buffer; tuples in it without a match have met all of their pages."""
        index = self._index
        place = index.begin()
        while (lonely := index.unmatched(place, self._portion)).size:
            yield from self._without_partner(self._held(lonely))
        partial = 0
        if cursor is not None:
            partial = int(cursor[RECORD] >= 0)
            index.resume(cursor)
        self._stats.evicted += len(index) - partial
        index.clear()

    # -- updates of R (§IV-E) -----------------------------------------------------------------------------

    def update(self, upserts: Any = None, deletes: Any = None) -> Future[Change]:
        """Have R changed between two turns; see `Relation.apply`. May be called from any thread.

        The next turn first runs a join phase, so that tuples that were looked up see R as it was; all others see R as
        it will be. The future is done when the update is installed, or holds the reason why it could not be.
        """
        done: Future[Change] = Future()
        self._updates.append((upserts, deletes, done))
        return done

    def _install_updates(self) -> None:
        while self._updates:
            upserts, deletes, done = self._updates.popleft()
            try:
                done.set_result(self.relation.apply(upserts, deletes))
            except Exception as error:  # the stream goes on; whoever wants the update is told
                done.set_exception(error)

    @property
    def _amid_turn(self) -> bool:
        return self._turning  # its own updates come between the phases of a turn

    def before_update(self, patch: Patch, undo: list[Undo]) -> None:
        """Serve the tuples that wait with R as it is, update or not; the results come with the next turn."""
        self._check_room(patch)
        self._early.extend(self._turn_of(self._join_phase()))
        super().before_update(patch, undo)

    def after_update(self, change: Change) -> None:
        """Forget cached pages that are not what they were."""
        self._cache.forget(change.pages)
        self._follow_relation()

    @property
    def pending(self) -> int:
        """Stream tuples that were offered and have not left, and updates that are not installed."""
        return super().pending + len(self._updates) + len(self._early)

    @property
    def _waiting(self) -> int:
        return len(self._input) + len(self._index) if self._bound else 0
