"""SSIJ, the semi-streaming index join (§IV): tuples in batches, pages by utility, reads by an optimal plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bools, Ints
from semistream.core.budget import Reservation
from semistream.core.clock import Clock
from semistream.core.errors import SemistreamError, UpdateRefusedError
from semistream.core.units import format_bytes
from semistream.joins.interface.following import Undo
from semistream.joins.interface.join import Join
from semistream.joins.interface.stream_buffer import Tuples
from semistream.joins.shares import PAIR_BYTES
from semistream.joins.ssij.page_cache import PageCache, Replacement
from semistream.joins.ssij.ssij_layout import MemoryOptions, least_parts
from semistream.joins.ssij.ssij_memory import SsijMemory
from semistream.joins.ssij.ssij_phases import Alone, Found, JoinPhase, Met, OnlinePhase, Short
from semistream.joins.ssij.ssij_schedule import Deadlines, Phase, SsijSchedule
from semistream.joins.ssij.tuple_log import TupleShape
from semistream.relation.changes.overlay import Change
from semistream.relation.changes.patch import Patch
from semistream.relation.relation import Relation
from semistream.relation.rows.row_sizes import batch_bytes

__all__ = ["Ssij"]


class Ssij(Join):
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
        Pages read in one run at most, those nobody wants included; by default 200. If given, the read buffer holds one.
    replacement
        ``"utility"``; or the paper's comparators ``"lru"`` and ``"none"``, which caches nothing.
    cache_share
        None lets memory move between pages and tuples. A share, such as the paper's 0.2, 0.5 and 0.7, fixes the split.
    utility_kept
        Share of a page's utility that it takes into the time after a join phase. 0 is the paper's: chance says which
        pages make way for the next tuples. More estimates a steady stream better, and follows a moving one later.
    plan
        ``"optimal"`` or ``"greedy"``.
    read_ahead
        Whether the next pages are read, by a thread, while the last ones are joined.
    deadline
        None; or seconds after its offer by which each tuple is to leave; or the name of a stream column with the
        moment (see `deadlines_of`), NULL meaning none.
    clock
        What deadlines are measured with; for a simulated device, its virtual clock.

    Notes
    -----
    With deadlines, somebody must call `step` at `due` at the latest. `missed_deadlines` counts those that left later.

    Departures from the paper. A batch is sorted and looked up in bounded portions. Pages are read into buffers of
    their own, several runs at once and the next while these are joined, and copied to be kept; the read plan takes
    linear time. A join phase begins as soon as memory is short, and a tuple that waits for more pages than fit is taken
    through several. When deadlines press, all tuples of the input buffer are looked up, by deadline, as long as the
    join phase still ends in time; the paper takes only those that would expire during it, and others soon after do.

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
    when = "Batches of many tuples with deadlines, frequent keys together in R, a disk that gains from planned reads."
    place, calibrated = 130, True
    conditions = ("equal", "between")
    _memory: SsijMemory
    _schedule: SsijSchedule

    def __init__(
        self,
        relation: Relation,
        *,
        input_tuples: int | None = None,
        buffer_tuples: int | None = None,
        input_limit: int | None = None,
        max_scan: int | None = None,
        replacement: Replacement = "utility",
        cache_share: float | None = None,
        utility_kept: float = 0.5,
        plan: Literal["optimal", "greedy"] = "optimal",
        read_ahead: bool = True,
        deadline: float | str | None = None,
        clock: Clock | None = None,
        **common: Any,
    ) -> None:
        if plan not in ("optimal", "greedy"):
            raise ValueError(f"plan must be 'optimal' or 'greedy', not {plan!r}")
        if not 0.0 <= utility_kept < 1.0:
            raise ValueError(f"utility_kept must be at least 0 and less than 1, not {utility_kept}")
        self._greedy = plan == "greedy"
        self._utility_kept = utility_kept
        self._deadlines = Deadlines(deadline, clock)
        # virtual time goes by while pages are read, and must not do so behind the join's back
        ahead = read_ahead and not relation.device.simulated
        self._options = MemoryOptions(
            input_tuples, buffer_tuples, input_limit, max_scan, replacement, cache_share, read_ahead=ahead
        )
        self._phase = Phase.PENDING
        self._begun, self._early_begun = 0, 0
        self._updates: deque[tuple[Any, Any, Future[Change]]] = deque()
        self._early: deque[pa.RecordBatch] = deque()
        self._rest: Iterator[pa.RecordBatch] = iter(())  # of a join phase that an update began,
        self._unfinished = False  # and whether it is not at its end
        super().__init__(relation, **common)

    def _minimum(self) -> int:
        page_map = self.relation.page_count * PageCache.bytes_per_page
        return page_map + least_parts(self.relation.device.frame_bytes, self._options)

    def _open(self) -> None:
        codec = self.stream_codec
        self._deadlines.check(codec.schema)
        shape = TupleShape(codec, ranged=self.condition.name == "between", timed=self._deadlines.exist)
        self._memory = memory = SsijMemory(
            self.relation, self.budget, self._options, shape, self._row_bytes, self._cap * PAIR_BYTES
        )
        self._schedule = SsijSchedule(self.relation, memory, self._deadlines, self._stream, self._stats)
        parts = self.relation, memory, self._schedule, self._stats
        self._online = OnlinePhase(*parts)
        self._join = JoinPhase(*parts, greedy=self._greedy, utility_kept=self._utility_kept)
        if codec.variable or codec.stride > memory.largest_row:
            self._largest_row = memory.largest_row

    # -- what can be seen of it ---------------------------------------------------------------------------

    @property
    def due(self) -> float | None:
        """The moment by which `step` must be called for all tuples to meet their deadlines; None if any time."""
        return self._schedule.due if self._bound else None

    @property
    def missed_deadlines(self) -> int:
        """Tuples that left after their deadline."""
        return self._schedule.late if self._bound else 0

    @property
    def join_phases(self) -> int:
        """Join phases that have begun."""
        return self._begun

    @property
    def early_phases(self) -> int:
        """Those with fewer tuples than the threshold: memory was short, a deadline pressed, or no more came."""
        return self._early_begun

    @property
    def input_tuples(self) -> int:
        """Tuples that gather before they are looked up."""
        return self._memory.thresholds.input_tuples

    @property
    def cached_pages(self) -> int:
        """Pages of R in memory."""
        return len(self._memory.cache)

    @property
    def frames(self) -> int:
        """Frames of a page each that cached pages and tuples share."""
        return self._memory.frames

    def caches(self, pages: Ints) -> Bools:
        """Say of each page whether it is in memory."""
        return self._memory.cache.arrays.place[pages] >= 0

    # -- pending: tuples come in --------------------------------------------------------------------------

    def _absorb(self) -> None:
        memory, limit = self._memory, self._memory.thresholds.input_limit
        self._schedule.offered()
        while len(self._stream) and len(memory.input) < limit:
            for part in self._stream.take(limit - len(memory.input)):
                count = self._take_in(part)
                if count < len(part.keys):
                    self._stream.put_back(Tuples(part.keys[count:], part.batch.slice(count)))
                    return

    def _take_in(self, part: Tuples) -> int:
        """Append tuples to the input buffer, cached pages making room; return how many."""
        memory, schedule, rows = self._memory, self._schedule, self.stream_codec.encode(part.batch)
        if self._phase is Phase.PENDING:  # amid a phase, pages stay where they are
            memory.make_room(memory.frames_for(memory.shape.sizes(rows.lengths)) + memory.spare)
        highs = self.condition.highs(part.batch, part.keys) if memory.shape.ranged else None
        dues = self._deadlines.of(part.batch) if schedule.timed else None
        count = memory.input.append(part.keys, highs, dues, rows, memory.spare)
        self._stats.buffered += count
        if dues is not None:
            schedule.came(part.keys[:count], (part.keys if highs is None else highs)[:count], dues[:count])
        return count

    # -- one turn -----------------------------------------------------------------------------------------

    def _step(self) -> Iterator[pa.RecordBatch]:
        while self._early:
            yield self._early.popleft()
        with suppress(SemistreamError, OSError):  # a read may have failed; the phase below reads again, and tells
            yield from self._rest
        if self._updates or self._unfinished:
            yield from self._results_of(Phase.JOIN)
            self._unfinished = False
            self._install_updates()
        self._absorb()
        for phase in self._schedule.turn(self._closing):
            yield from self._results_of(phase)
            self._absorb()

    def _turn(self) -> Iterator[pa.RecordBatch]:
        if not self._bound:
            self._install_updates()  # no tuple has come yet that has to see R as it was
        yield from super()._turn()

    def _results_of(self, phase: Phase) -> Iterator[pa.RecordBatch]:
        """Run a phase, and make results of those who leave."""
        with closing(self._run(phase)) as events:  # whatever happens to the results, the phase is over then
            for event in events:
                if isinstance(event, Met):
                    yield from self._joined(*event[:-1], seen=event.found)
                elif isinstance(event, Alone):
                    yield from self._without_partner(event.stream)
                elif self._on_match is not None:
                    # those of a key together: tuples of several batches wait for a page
                    order = np.argsort(event.keys, kind="stable")
                    self._on_match(event.keys[order], event.data, event.starts[order], event.flags[order])

    def _run(self, phase: Phase, cursor: Ints | None = None) -> Generator[Found | Met | Alone]:
        """Run a phase, and join phases amid it where memory is short; ``cursor`` is that of the look-up around one."""
        if phase is Phase.JOIN:
            if (waiting := len(self._memory.index)) == 0:
                return
            self._begun += 1
            self._early_begun += waiting < self._memory.thresholds.buffer_tuples
        before, self._phase = self._phase, phase
        try:
            for event in self._online.run() if phase is Phase.ONLINE else self._join.run(cursor):
                if isinstance(event, Short):
                    yield from self._run(Phase.JOIN, event.cursor)
                else:
                    yield event
        finally:
            self._phase = before

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
    def amid_turn(self) -> bool:
        return self._phase is not Phase.PENDING  # its own updates come between the phases of a turn

    def before_update(self, patch: Patch, undo: list[Undo]) -> None:
        """Serve the tuples that wait with R as it is; results come with the next turn, or are too many: refused."""
        lacking = sum(size - part.bytes for part, size in self._growth(patch)) - self.budget.free
        if (too_little := self._memory.lacking_for(lacking)) > 0:
            raise self._too_large(too_little, patch)  # too few frames for tuples to come in, wait and leave
        room, self._result_bytes = self._result_bytes, self._result_bytes // 2
        self._rest, self._unfinished = self._results_of(Phase.JOIN), True
        try:
            for result in self._rest:
                self._early.append(result)
                if 2 * sum(map(batch_bytes, self._early)) > room:
                    raise UpdateRefusedError(
                        f"results of {self.id} take more than {format_bytes(room)}; drain the join, or use its update()"
                    )
            self._unfinished = False
        finally:
            self._result_bytes = room
        super().before_update(patch, undo)

    def _growth(self, patch: Patch) -> list[tuple[Reservation, int]]:
        page_map, wanted = self._memory.page_map, patch.page_count * PageCache.bytes_per_page
        return [*super()._growth(patch), (page_map, max(page_map.bytes, wanted))]

    def _give_up(self, lacking: int, patch: Patch) -> Undo:
        """Lend frames; the tuples that wait for pages have left by now, others may have taken too many."""
        if (undo := self._memory.lend_for_update(self.budget.free + lacking)) is None:
            raise self._must_drain(self.pending)
        return undo

    def after_update(self, change: Change) -> None:
        """Forget cached pages that are not what they were."""
        self._memory.cache.forget(change.pages)
        self._memory.follow_relation()

    # -- inside -------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Stream tuples that were offered and have not left, and updates that are not installed."""
        return super().pending + len(self._updates) + len(self._early)

    @property
    def _waiting(self) -> int:
        return len(self._memory.input) + len(self._memory.index) if self._bound else 0

    def _check(self) -> None:
        self._memory.check(amid=self._unfinished)
