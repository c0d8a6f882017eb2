"""SSIJ, the semi-streaming index join (§IV): batches of tuples, pages cached by utility, reads by an optimal plan."""

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
    """Joins stream tuples with cached pages immediately; the others wait together for pages that must be read.

    *Pending*: tuples collect in the input buffer. *Online*: a batch of them is sorted and looked up in the index.
    Tuples whose pages are cached are joined and leave. The others go to the stream buffer, in the lists of the pages
    that they wait for. *Join*: the wanted pages are read by the cheapest plan of runs. Each is joined with the tuples
    of its list, and stays cached if it serves more tuples than other pages. Cached pages, both buffers and the lists
    share one block of memory: tuples evict the pages of lowest utility, and pages use the room that tuples leave.

    Parameters
    ----------
    input_tuples
        Tuples that collect before they are looked up (``IB_thresh``). By default 250 k, or what a tenth of the memory
        holds. A higher value makes look-ups in index and cache cheaper, but tuples wait longer.
    buffer_tuples
        Waiting tuples that start a join phase (``SB_thresh``). By default 1 M, 400 k if memory is about one percent of
        R or less, or what half of the memory holds. With more, more tuples share a read, but fewer pages are cached.
    input_limit
        Tuples that `offer` accepts before an iteration is due; by default ``input_tuples``. More leave less cache.
    max_scan
        Maximum pages of a run, including unwanted ones; by default 200. If given, the read buffer holds a whole run.
    replacement
        ``"utility"``; or, for comparison with the paper, ``"lru"`` or ``"none"``, which caches nothing.
    cache_share
        None lets memory move between pages and tuples. A share, such as the paper's 0.2, 0.5 and 0.7, fixes the split.
    utility_kept
        Share of a page's utility that it keeps after a join phase. 0 is the paper's: then chance decides which pages
        are evicted for the next tuples. More estimates a steady stream better, but follows a changing one later.
    plan
        ``"optimal"`` or ``"greedy"``.
    read_ahead
        Whether a thread reads the next pages while the previous ones are joined.
    deadline
        None; seconds after its offer by which each tuple should leave; or a stream column of them: see `deadlines_of`.
    clock
        The clock for deadlines; for a simulated device, its virtual clock.

    Notes
    -----
    With deadlines, the caller must call `step` at `due` at the latest. `missed_deadlines` counts tuples that left late.

    Differences from the paper. A batch is sorted and looked up in bounded portions. Pages are read into separate
    buffers, several runs together, the next while these are joined, and copied if they are kept. The read plan takes
    linear time. A join phase begins as soon as memory is short, and a tuple that waits for more pages than fit takes
    part in several. If a deadline is near, all tuples of the input buffer are looked up, by deadline, while the join
    phase still ends in time. The paper looks up only tuples that would expire during it; others expire soon after.

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
        # On a simulated device reading advances the virtual clock, which must happen in the join's own thread.
        ahead = read_ahead and not relation.device.simulated
        self._options = MemoryOptions(
            input_tuples, buffer_tuples, input_limit, max_scan, replacement, cache_share, read_ahead=ahead
        )
        self._phase = Phase.PENDING
        self._begun, self._early_begun = 0, 0
        self._updates: deque[tuple[Any, Any, Future[Change]]] = deque()
        self._early: deque[pa.RecordBatch] = deque()
        self._rest: Iterator[pa.RecordBatch] = iter(())  # remaining results of a join phase that an update started
        self._unfinished = False  # whether this join phase is not finished
        super().__init__(relation, **common)

    def least_bytes(self) -> int:
        page_map = self.relation.page_count * PageCache.bytes_per_page
        return page_map + least_parts(self.relation.device.frame_bytes, self._options)

    def open_parts(self) -> None:
        codec = self.stream_codec
        self._deadlines.check(codec.schema)
        shape = TupleShape(codec, ranged=self.condition.name == "between", timed=self._deadlines.exist)
        self._memory = memory = SsijMemory(
            self.relation, self.budget, self._options, shape, self.row_bytes, self.pairs_at_once * PAIR_BYTES
        )
        self._schedule = SsijSchedule(self.relation, memory, self._deadlines, self.stream, self.tally)
        parts = self.relation, memory, self._schedule, self.tally
        self._online = OnlinePhase(*parts)
        self._join = JoinPhase(*parts, greedy=self._greedy, utility_kept=self._utility_kept)
        if codec.variable or codec.stride > memory.largest_row:
            self.largest_row = memory.largest_row

    # -- state and counters -------------------------------------------------------------------------------

    @property
    def due(self) -> float | None:
        """The time by which `step` must be called so that all tuples meet their deadlines; None if there is none."""
        return self._schedule.due if self.bound else None

    @property
    def missed_deadlines(self) -> int:
        """Tuples that left after their deadline."""
        return self._schedule.late if self.bound else 0

    @property
    def join_phases(self) -> int:
        """Join phases that have begun."""
        return self._begun

    @property
    def early_phases(self) -> int:
        """Join phases with fewer tuples than the threshold: short memory, a near deadline, or the end of the stream."""
        return self._early_begun

    @property
    def input_tuples(self) -> int:
        """Tuples that collect before they are looked up."""
        return self._memory.thresholds.input_tuples

    @property
    def cached_pages(self) -> int:
        """Pages of R in memory."""
        return len(self._memory.cache)

    @property
    def frames(self) -> int:
        """Frames, of one page each, that cached pages and tuples share."""
        return self._memory.frames

    def caches(self, pages: Ints) -> Bools:
        """Return for each page whether it is in memory."""
        return self._memory.cache.arrays.place[pages] >= 0

    def _offer(self, batch: pa.RecordBatch) -> int:
        self._deadlines.check_offered(batch)
        return super()._offer(batch)

    def absorb(self) -> None:
        memory, limit = self._memory, self._memory.thresholds.input_limit
        self._schedule.offered()
        while len(self.stream) and len(memory.input) < limit:
            for part in self.stream.take(limit - len(memory.input)):
                count = self._take_in(part)
                if count < len(part.keys):
                    self.stream.put_back(Tuples(part.keys[count:], part.batch.slice(count)))
                    return

    def _take_in(self, part: Tuples) -> int:
        """Append tuples to the input buffer, evicting cached pages if needed; return how many were appended."""
        memory, schedule, rows = self._memory, self._schedule, self.stream_codec.encode(part.batch)
        if self._phase is Phase.PENDING:  # during other phases no page may be evicted here
            memory.make_room(memory.frames_for(memory.shape.sizes(rows.lengths)) + memory.spare)
        highs = self.condition.highs(part.batch, part.keys) if memory.shape.ranged else None
        dues = self._deadlines.of(part.batch) if schedule.timed else None
        count = memory.input.append(part.keys, highs, dues, rows, memory.spare)
        self.tally.buffered += count
        if dues is not None:
            schedule.came(part.keys[:count], (part.keys if highs is None else highs)[:count], dues[:count])
        return count

    # -- one iteration ------------------------------------------------------------------------------------

    def turn(self) -> Iterator[pa.RecordBatch]:
        while self._early:
            yield self._early.popleft()
        with suppress(SemistreamError, OSError):  # a read may have failed; the phase below reads again, and raises
            yield from self._rest
        if self._updates or self._unfinished:
            yield from self._results_of(Phase.JOIN)
            self._unfinished = False
            self._install_updates()
        self.absorb()
        for phase in self._schedule.turn(self.closing):
            yield from self._results_of(phase)
            self.absorb()

    def _whole_turn(self) -> Iterator[pa.RecordBatch]:
        if not self.bound:
            self._install_updates()  # no tuple has arrived yet that must see the old R
        yield from super()._whole_turn()

    def _results_of(self, phase: Phase) -> Iterator[pa.RecordBatch]:
        """Run a phase, and yield the results of tuples that leave."""
        with closing(self._run(phase)) as events:  # also ends the phase if the caller stops early
            for event in events:
                if isinstance(event, Met):
                    yield from self.joined(*event[:-1], seen=event.found)
                elif isinstance(event, Alone):
                    yield from self.without_partner(event.stream)
                elif self._on_match is not None:
                    # Sort by key: tuples of several batches wait for a page, and pairs of a key must be adjacent.
                    order = np.argsort(event.keys, kind="stable")
                    self._on_match(event.keys[order], event.data, event.starts[order], event.flags[order])

    def _run(self, phase: Phase, cursor: Ints | None = None) -> Generator[Found | Met | Alone]:
        """Run a phase, and join phases within it if memory is short; ``cursor`` is that of the surrounding look-up."""
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
        """Update R between two iterations; see `Relation.apply`. May be called from any thread.

        The next iteration first runs a join phase, so that tuples that were already looked up see the old R; all others
        see the new R. The future is done when the update is installed, or holds the error if it failed.
        """
        done: Future[Change] = Future()
        self._updates.append((upserts, deletes, done))
        return done

    def _install_updates(self) -> None:
        while self._updates:
            upserts, deletes, done = self._updates.popleft()
            try:
                done.set_result(self.relation.apply(upserts, deletes))
            except Exception as error:  # the stream continues; the caller of update() gets the error
                done.set_exception(error)

    @property
    def amid_turn(self) -> bool:
        return self._phase is not Phase.PENDING  # own updates are installed between the phases of an iteration

    def before_update(self, patch: Patch, undo: list[Undo]) -> None:
        """Join waiting tuples with the old R; the next iteration returns the results. Refuse if they are too large."""
        lacking = sum(size - part.bytes for part, size in self._growth(patch)) - self.budget.free
        if (too_little := self._memory.lacking_for(lacking)) > 0:
            raise self.too_large(too_little, patch)  # too few frames for tuples to arrive, wait and leave
        room, self.result_bytes = self.result_bytes, self.result_bytes // 2
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
            self.result_bytes = room
        super().before_update(patch, undo)

    def _growth(self, patch: Patch) -> list[tuple[Reservation, int]]:
        page_map, wanted = self._memory.page_map, patch.page_count * PageCache.bytes_per_page
        return [*super()._growth(patch), (page_map, max(page_map.bytes, wanted))]

    def give_up(self, lacking: int, patch: Patch) -> Undo:
        """Lend frames. Tuples that waited for pages have left by now; tuples in the input buffer may need too many."""
        if (undo := self._memory.lend_for_update(self.budget.free + lacking)) is None:
            raise self.must_drain(self.pending)
        return undo

    def after_update(self, change: Change) -> None:
        """Evict cached pages that have changed."""
        self._memory.cache.forget(change.pages)
        self._memory.follow_relation()

    # -- inside -------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Stream tuples that were offered and have not left, plus updates to install and result batches to return."""
        return super().pending + len(self._updates) + len(self._early)

    @property
    def waiting(self) -> int:
        return len(self._memory.input) + len(self._memory.index) if self.bound else 0

    def check_parts(self) -> None:
        self._memory.check(amid=self._unfinished)
