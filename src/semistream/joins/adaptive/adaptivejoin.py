"""ADAPTIVEJOIN: a window of the stream joined in its own order, at the speed of the disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Ints, Slots
from semistream.core.clock import Clock
from semistream.joins.adaptive.adaptive_layout import AdaptiveOptions, least_memory, mean_decoded_row
from semistream.joins.adaptive.adaptive_memory import AdaptiveMemory
from semistream.joins.adaptive.adaptive_view import AdaptiveView
from semistream.joins.adaptive.range_sweep import sweep
from semistream.joins.adaptive.row_finder import RowFinder
from semistream.joins.adaptive.stream_follower import StreamFollower
from semistream.joins.adaptive.window_schedule import SHED, WindowSchedule
from semistream.joins.interface.conditions import ConditionName
from semistream.joins.interface.following import Undo
from semistream.joins.interface.join import Join
from semistream.joins.interface.leaving import Leaving
from semistream.joins.interface.progress import Progress
from semistream.joins.interface.stream_buffer import Tuples
from semistream.joins.shares import PAIR_BYTES
from semistream.relation.changes.overlay import Change
from semistream.relation.relation import Relation
from semistream.relation.rows.row_gather import RowGather
from semistream.relation.rows.selection import keep_rows, take_rows
from semistream.structures.array_source import ArraySource

if TYPE_CHECKING:
    from semistream.relation.changes.patch import Patch

__all__ = ["AdaptiveJoin"]

_ENCODED = 1 << 16
"""Maximum tuples whose keys are encoded together."""
_MOST_RESULTS, _MOST_RESULT_BYTES = 1 << 16, 1 << 24


class AdaptiveJoin(Join):
    """Joins a window of the stream at a time: looks up each distinct key once, and returns results in stream order.

    A window of the stream is held as Arrow batches. Each tuple gets the number of its key in the arena of R's rows.
    Keys without rows there are sorted and located in one pass through the index. Their pages are read by the plan that
    is cheapest at the device's measured costs. Several requests are in flight, and the next pages are read while
    earlier ones are searched. One gather per column of R writes the results. The stream's own columns are not copied.

    Rows stay in the arena until room is needed; then rows that fewer windows requested are evicted first. The arena
    also records keys that R does not have. An R that fits is held completely. Of a history (``as_of=``) it holds
    single versions. On ranges (``condition="between"``) each page is read once for a window; results are in R's order.

    Parameters
    ----------
    window
        Maximum tuples of a window. None moves memory between window and arena to where it is worth most.
    wait
        How long tuples may wait for others that need the same pages, such as ``"2s"``. A window is served when it is
        full or due; call `step` by the time that `due` returns. None serves tuples in every iteration.
    deadline
        Instead of ``wait``: the stream column with each tuple's deadline; see `deadlines_of`. NULL means none.
    on_overload
        ``"block"`` also serves tuples after their deadline (`missed_deadlines`). ``"shed"`` drops tuples whose deadline
        has passed when their iteration begins, without a result (`shed_tuples`).
    clock
        The clock for deadlines; for a simulated device, its virtual clock.
    aging
        See `HotRows`.
    arrays
        Where the arena lives, if not in this process; it may contain rows that another process left there.
    apart
        Return tuples without a match in separate, marked batches (`output.has_no_partner`), not in stream order.
    """

    id = "adaptivejoin"
    title = "ADAPTIVEJOIN: windows in stream order, each key once, planned reads"
    when = "If in doubt: memory moves to where it helps most, and results are in stream order."
    place = 200
    conditions = ("equal", "between", "as_of")
    default_for = ("equal", "as_of")  # ranges share pages; SSIJ caches pages, ADAPTIVEJOIN does not
    mixes = in_order = keeps_cache = calibrated = True
    stands_behind = False  # tuples bypass the stream buffer

    _memory: AdaptiveMemory
    _follower: StreamFollower

    def __init__(
        self,
        relation: Relation,
        *,
        window: int | None = None,
        wait: float | str | None = None,
        deadline: str | None = None,
        on_overload: Literal["block", "shed"] = "block",
        clock: Clock | None = None,
        aging: float = 48.0,
        arrays: ArraySource | None = None,
        apart: bool = False,
        condition: ConditionName = "equal",
        as_of: str | None = None,
        **common: Any,
    ) -> None:
        self._options = AdaptiveOptions(window, aging, arrays, ranged=condition == "between", as_of=as_of is not None)
        self._schedule = WindowSchedule(wait, deadline, on_overload, clock)
        self._apart = apart
        self._on_loan = False
        super().__init__(relation, condition=condition, as_of=as_of, **common)

    def least_bytes(self) -> int:
        return least_memory(self.relation, ranged=self._options.ranged, as_of=self._options.as_of)

    def open_parts(self) -> None:
        relation = self.relation
        assert self.schema is not None
        self._schedule.check(self.schema)
        self._memory = memory = AdaptiveMemory(
            relation, self._options, self.budget, self._inbox, self._updates_part, self.schema, self.row_bytes,
            self.pairs_at_once * PAIR_BYTES + self.result_bytes,
        )  # fmt: skip
        self._window, self._arena = memory.window, memory.arena
        self._finder, self._follower = RowFinder(memory, self.tally), StreamFollower(memory)
        fields = [] if self._options.ranged else self.condition.fields  # a range join decodes results from pages
        self._gather = RowGather(relation.codec, [field.name for field in fields])
        self._gather_key = RowGather(relation.codec, [] if relation.key.exact else list(relation.key.names))
        row = mean_decoded_row(relation) + self.row_bytes
        self._most_results = max(1, min(self.pairs_at_once, _MOST_RESULTS, int(_MOST_RESULT_BYTES / row)))

    # -- state and counters -------------------------------------------------------------------------------

    @property
    def due(self) -> float | None:
        """The time by which `step` must be called so that all waiting tuples leave in time; None if there is none."""
        return self._schedule.due(self.pending)

    @property
    def missed_deadlines(self) -> int:
        """Tuples that left after their deadline."""
        return self._schedule.missed

    @property
    def shed_tuples(self) -> int:
        """Tuples that were dropped because their deadline had passed when their iteration began."""
        return self._schedule.shed

    def view(self) -> AdaptiveView:
        window = self._window
        return AdaptiveView(
            **vars(super().view()), window_tuples=window.tuples, window_limit=window.limit, window_bytes=window.nbytes,
            lent=window.lent, rows=self._arena.capacity,
        )  # fmt: skip

    # -- tuples arrive ------------------------------------------------------------------------------------

    def feed(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._check_usable()
        if not self.bound:
            self.bind(batch.schema, batch)
        self._on_loan = batch.schema == self.schema  # otherwise the batch is cast, which copies it
        self._follower.piece_came()
        try:
            yield from super().feed(batch)
            progress = Progress(self)
            while not self._window.keep():
                self.more_coming = True  # tuples must not wait: there is no room for them
                yield from self.step()
                progress.turned()
        finally:
            self._on_loan = self.more_coming = False
            self._memory.own_lent()

    def drain(self) -> Iterator[pa.RecordBatch]:
        yield from super().drain()
        if self.bound:
            self._follower.drained()

    def _offer(self, batch: pa.RecordBatch) -> int:
        if self._in_turn:
            return 0  # the numbers of the window must not change during an iteration
        self._schedule.check_offered(batch)
        # Detect a lent row that is larger than the memory.
        ranged, lent = self._options.ranged, self._on_loan and not self._options.ranged
        most = self._memory.most_intervals if ranged else _ENCODED
        count = min(self._window.room(batch.slice(0, most), self.budget.total if lent else None), most)
        if count == 0:
            return 0
        coming = min(batch.num_rows, self._window.free) - count if count == most else 0
        batch = batch.slice(0, count)
        if count == 1:
            self._check_row(batch)
        keys, valid = self.condition.lows(batch)
        numbers = self._window.numbers_of_next(count)
        if ranged:
            numbers[:] = np.where(valid, 0, -1)  # -1 marks tuples without bounds
        else:
            count, hits = self._finder.number(self.condition, batch, keys, valid, numbers, coming)
            if count == 0:
                self._window.refused = True
                return 0
            batch, valid = batch.slice(0, count), valid[:count]
            self.tally.cache_hits += hits
        self._window.append(batch, self._schedule.came(batch), lent=lent)
        null = count - int(np.count_nonzero(valid))
        self.tally.rows_in += count
        self.tally.null_keys += null
        self.tally.probes += count - null
        return count

    # -- one iteration ------------------------------------------------------------------------------------

    def turn(self) -> Iterator[pa.RecordBatch]:
        schedule, window = self._schedule, self._window
        if len(window) == 0 or (not (self.closing or self.more_coming) and schedule.may_wait(window)):
            return
        began, tuples = schedule.clock.now(), len(window)
        if schedule.shed_late(window):
            self._arena.pin_only(window.numbers)
        if self._options.ranged:
            yield from self._serve(tuples)
            schedule.took(schedule.clock.now() - began, tuples, window)
            return
        if self._memory.should_hold_all():
            self.tally.cache_hits += self._memory.hold_all()
        count, keys = self._finder.pin()
        distinct, missing = self._arena.pinned[0], self._arena.unknown().size
        try:
            count = self._finder.find(count)
            yield from self._serve(count) if count else self._serve_alone()
        finally:
            self._finder.release()
        schedule.took(schedule.clock.now() - began, tuples - len(window), window)
        self._follower.served(tuples, keys, distinct, missing)

    def _serve(self, count: int) -> Iterator[pa.RecordBatch]:
        """Join the first tuples of the window; on equality their rows are in the arena."""
        most = self._memory.most_intervals or self._most_results
        while count > 0:
            batch, numbers, due = self._window.take(min(count, most))
            count -= batch.num_rows
            if (numbers == SHED).any():
                batch, numbers = self._without_shed(batch, numbers)
            if numbers.size:
                yield from self._swept(batch, numbers) if self._options.ranged else self._emit(batch, numbers)
            self._schedule.left(batch, due)

    def _without_shed(self, batch: pa.RecordBatch, numbers: Slots) -> tuple[pa.RecordBatch, Slots]:
        """Drop and count the tuples that are shed."""
        served = numbers != SHED
        shed = int(numbers.size - np.count_nonzero(served))
        self._schedule.shed += shed
        self.tally.rows_done += shed
        return keep_rows(batch, served), numbers[served]

    def _serve_alone(self) -> Iterator[pa.RecordBatch]:
        """Join the first tuple, whose rows do not fit into the arena, page by page."""
        batch, _, due = self._window.take(1)
        yield from self.looked_up(Tuples(self.condition.lows(batch)[0], batch), self._single)
        self._schedule.left(batch, due)

    # -- results ------------------------------------------------------------------------------------------

    def _emit(self, batch: pa.RecordBatch, numbers: Slots) -> Iterator[pa.RecordBatch]:
        rows, alone, several = self._arena.first_rows(numbers)
        if not self.relation.key.exact and alone < numbers.size:
            alone += self._part_strangers(batch, numbers, rows)
        self.tally.rows_done += numbers.size
        if alone and (self.how == "inner" or self._apart):
            there = rows >= 0
            yield from self.without_partner(self.rows_of(batch).at(np.flatnonzero(~there)))
            batch, numbers, rows = keep_rows(batch, there), numbers[there], rows[there]
        else:
            self.tally.unmatched += alone
            if alone and self.missing is not None:
                self.missing.add(keep_rows(batch, rows < 0), self.on)
        if numbers.size == 0:
            return
        stream = self.rows_of(batch)
        if several == 0:
            yield from self._beside(stream.all(), rows)
            return
        begin, row = 0, -1
        while begin < numbers.size:
            positions, rows, begin, row = self._arena.expand(numbers, begin, row, self._most_results, alone=True)
            yield from self._beside(stream.at(positions), rows)

    def _swept(self, batch: pa.RecordBatch, numbers: Slots) -> Iterator[pa.RecordBatch]:
        """Join on ranges: results in R's order; each page is read once for all tuples."""
        low, _ = self.condition.lows(batch)
        high = self.condition.highs(batch, low)
        served = np.flatnonzero(numbers >= 0)
        rows, matched = self.rows_of(batch), np.zeros(numbers.size, np.bool_)
        frames, most = self._memory.fetch.frames, self.pairs_at_once
        for positions, keys, starts, flags in sweep(self.relation, low[served], high[served], frames, most):
            positions = served[positions]
            matched[positions] = True
            yield from self.joined(keys, rows.at(positions), frames.reshape(-1), starts, flags)
        self.tally.rows_done += batch.num_rows
        yield from self.without_partner(rows.at(np.flatnonzero(~matched)))

    def _beside(self, stream: Leaving, rows: Slots) -> Iterator[pa.RecordBatch]:
        """Yield tuples joined with one row of R each; columns of R are NULL if there is none."""
        sizes = self._arena.sizes(rows) + self._blank_bytes
        for begin, end in self._cut(stream, sizes, lambda: self._arena.locate(rows)):
            yield from self._made(
                begin, end, lambda begin, end: [self._result(stream.some(begin, end), rows[begin:end])]
            )

    def _result(self, batch: pa.RecordBatch, rows: Slots) -> pa.RecordBatch:
        columns = self._gather(*self._arena.locate(rows)) + ([] if self._found_as is None else [pa.array(rows >= 0)])
        return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=self.output_schema)

    def _part_strangers(self, batch: pa.RecordBatch, numbers: Slots, rows: Slots) -> int:
        """Detach the rows of tuples whose key only shares its hash with R's key; return the number of such tuples."""
        there = np.flatnonzero(rows >= 0)
        names = self.relation.key.names
        ours = pa.RecordBatch.from_arrays(self._gather_key(*self._arena.locate(rows[there])), names=list(names))
        stream = batch if there.size == rows.size else take_rows(batch, there)
        strange = there[~self.relation.key.verify(stream, self.on, ours)]
        numbers[strange] = rows[strange] = -1
        return int(strange.size)

    # -- updates of R -------------------------------------------------------------------------------------

    def after_update(self, change: Change) -> None:
        """Forget the changed keys; they are read again for waiting tuples."""
        if self.bound:
            self._arena.unique = self.relation.unique or self._options.as_of
            self._finder.forget(change.keys)

    def forget_rows(self, keys: Ints) -> None:
        self._finder.forget(keys)

    def give_up(self, lacking: int, patch: Patch) -> Undo:
        """Release memory: shorten the window and the arena, or else start over with fewer keys and frames as well."""
        if self._options.arrays is not None:  # an arena in files keeps its size
            raise self.too_large(lacking, patch)
        return self._memory.lend(lacking) or self.start_over(patch)

    def drop_parts(self) -> None:
        del self._memory, self._window, self._arena, self._finder, self._follower, self._single, self.stream

    # -- inside -------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return len(self._window) if self.bound else 0

    def check_parts(self) -> None:
        self._memory.check()
