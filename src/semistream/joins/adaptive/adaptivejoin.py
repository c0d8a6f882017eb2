"""ADAPTIVEJOIN: a window of the stream joined in its own order, at the speed of the disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Ints, Slots
from semistream.joins.adaptive.adaptive_ranges import AdaptiveRanges
from semistream.joins.adaptive.adaptive_schedule import SHED
from semistream.joins.interface.leaving import Leaving, portions
from semistream.joins.interface.stream_buffer import Tuples
from semistream.relation.changes.overlay import Change
from semistream.relation.relation import Relation
from semistream.relation.rows.selection import keep_rows, take_rows

__all__ = ["AdaptiveJoin"]


_ENCODED = 1 << 16
"""Tuples whose keys are made at once."""


class AdaptiveJoin(AdaptiveRanges):
    """Tuples wait as they came, each distinct key is looked up once, and results leave in the order of the stream.

    A window of the stream is held as Arrow batches. Each tuple becomes the number of its key in the arena of R's rows;
    keys whose rows are not there are sorted, located in one walk through the index, and their pages read on the plan
    that is cheapest by the device's measured costs, several requests in flight and the next pages on their way while
    the last are searched. Then each column of R is written in stream order by one gather, beside the stream's own
    columns, which were never touched.

    What was read stays in the arena until the room is needed; then rows that fewer windows asked for go first. Keys
    that R does not have are remembered as such. An R that fits is held whole. On ranges (``condition="between"``) a
    window is swept along R instead, each page read once for all of its intervals, and results leave in R's order.

    Parameters
    ----------
    window
        Tuples of a window at most; None lets memory move between window and arena, to where it is worth most.
    wait
        How long tuples may wait for others that need the same pages, such as ``"2s"``: a window is then served when it
        is full or must be; `due` says when that is, and somebody must call `step` by then. None serves at every turn.
    deadline
        Instead, the stream's column with the moment, in seconds of ``clock``, by which a tuple is to leave; NULL: none.
    on_overload
        ``"block"`` serves tuples also after their deadline, counted in `missed_deadlines`. ``"shed"`` does not serve
        those whose deadline has passed when their turn begins: they leave without a result, in `shed_tuples`.
    clock
        What deadlines are measured with; for a simulated device, its virtual clock.
    aging
        See `HotRows`.
    arrays
        Where the arena lives, if not in this process: one that another process left is taken up.
    apart
        Let tuples without a partner come in batches of their own, marked (`output.has_no_partner`), which takes the
        results out of the stream's order.
    """

    id = "adaptivejoin"
    title = "ADAPTIVEJOIN: windows in stream order, each key once, planned reads"
    place = 200
    mixes = True
    conditions = ("equal", "between")
    in_order = True
    stands_behind = False  # tuples go past the stream buffer

    def __init__(self, relation: Relation, *, apart: bool = False, **options: Any) -> None:
        self._apart = apart
        self._absent = 0.0  # share of the keys that were looked for and that R lacks
        super().__init__(relation, **options)

    # -- tuples come in -----------------------------------------------------------------------------------

    def _offer(self, batch: pa.RecordBatch) -> int:
        if self._ranged:
            return self._offer_ranges(batch)
        if self._in_turn:
            return 0  # amid a turn the numbers of the window stand for what they stood for when it began
        # no row of a lent batch takes more than the memory, or it is found out here
        lent = self._on_loan
        count = min(self._window.room(batch.slice(0, _ENCODED), self.budget.total if lent else None), _ENCODED)
        if count == 0:
            return 0
        batch = batch.slice(0, count)
        if count == 1:
            self._check_row(batch)
        keys, valid = self.condition.lows(batch)
        numbers = self._window.numbers_of_next(count)
        done, hits = self._arena.number(keys, valid, numbers)
        if done < count:
            batch, valid = batch.slice(0, done), valid[:done]
        self._window.append(batch, self._due_of(batch), lent=lent)
        null = done - int(np.count_nonzero(valid))
        self._stats.rows_in += done
        self._stats.null_keys += null
        self._stats.probes += done - null
        self._stats.cache_hits += hits
        return done

    # -- one turn -----------------------------------------------------------------------------------------

    def _step(self) -> Iterator[pa.RecordBatch]:
        if len(self._window) == 0 or self._may_wait():
            return
        began = self.clock.now()
        self._shed_late()
        if self._ranged:
            tuples = len(self._window)
            yield from self._serve_ranges()
            self._took(self.clock.now() - began, tuples - len(self._window))
            return
        if self._should_hold_all():
            self._hold_all()
        tuples, count = len(self._window), self._fitting()
        distinct, missing = self._arena.pinned[0], self._arena.unknown().size
        try:
            yield from self._serve(count)
        finally:
            self._fetch.let_go()
            self._arena.unpin()
            self._arena.pin(self._window.numbers)
        self._took(self.clock.now() - began, tuples - len(self._window))
        self._follow_stream(tuples - len(self._window), distinct, missing)

    def _fitting(self) -> int:
        """Pin only the first tuples of the window, so many as rows of their keys will fit; return how many."""
        count = len(self._window)
        while True:
            pinned, absent = self._arena.pinned
            unknown = self._arena.unknown().size
            needed = pinned - absent - int(self._absent * unknown)
            if needed <= self._arena.capacity or count <= 1:
                return count
            # as many tuples fewer have not as many keys fewer: this goes on until it is enough
            count = max(1, min(count - 1, int(count * self._arena.capacity / needed)))
            self._arena.pin_only(self._window.numbers[:count])

    def _serve(self, count: int) -> Iterator[pa.RecordBatch]:
        while not self._resolve():
            # the rows of so many tuples do not fit: half of them first
            count //= 2
            if count == 0:
                self._fetch.let_go()
                yield from self._serve_alone()
                return
            self._arena.pin_only(self._window.numbers[:count])
        self._fetch.let_go()
        while count > 0:
            batch, numbers, due = self._window.take(min(count, self._most_results))
            count -= batch.num_rows
            if (numbers == SHED).any():
                batch, numbers = self._without_shed(batch, numbers)
            if numbers.size:
                yield from self._emit(batch, numbers)
            self._left(batch, due)

    def _without_shed(self, batch: pa.RecordBatch, numbers: Slots) -> tuple[pa.RecordBatch, Slots]:
        """Let tuples go that are not served, counted."""
        served = numbers != SHED
        shed = int(numbers.size - np.count_nonzero(served))
        self.shed_tuples += shed
        self._stats.rows_done += shed
        return keep_rows(batch, served), numbers[served]

    def _serve_alone(self) -> Iterator[pa.RecordBatch]:
        """Let the first tuple leave, whose rows do not fit into the arena: page after page."""
        batch, _, _ = self._window.take(1)
        keys, _ = self.condition.lows(batch)
        yield from self._looked_up(Tuples(keys, batch), self._single)

    def _resolve(self) -> bool:
        """Read the rows of all pinned keys that are not known; return False if they do not fit."""
        unknown = self._arena.unknown()
        self._stats.probes += unknown.size
        before = self._fetch.pages_wanted
        try:
            fitted = self._fetch.bring(self._arena, unknown)
        finally:
            self._stats.pages_useful += self._fetch.pages_wanted - before
        if fitted and unknown.size:
            absent = self._arena.first_rows(unknown)[1] / unknown.size
            self._absent += 0.25 * (absent - self._absent)
        return fitted

    # -- results ------------------------------------------------------------------------------------------

    def _emit(self, batch: pa.RecordBatch, numbers: Slots) -> Iterator[pa.RecordBatch]:
        rows, alone, several = self._arena.first_rows(numbers)
        if not self.relation.key.exact and alone < numbers.size:
            alone += self._part_strangers(batch, numbers, rows)
        self._stats.rows_done += numbers.size
        if alone and (self.how == "inner" or self._apart):
            there = rows >= 0
            yield from self._without_partner(self._rows_of(batch).at(np.flatnonzero(~there)))
            batch, numbers, rows = keep_rows(batch, there), numbers[there], rows[there]
        else:
            self._stats.unmatched += alone
            if alone and self.missing is not None:
                self.missing.add(keep_rows(batch, rows < 0), self.on)
        if numbers.size == 0:
            return
        stream = self._rows_of(batch)
        if several == 0:
            yield from self._beside(stream.all(), rows)
            return
        begin, row = 0, -1
        while begin < numbers.size:
            positions, rows, begin, row = self._arena.expand(numbers, begin, row, self._most_results, alone=True)
            yield from self._beside(stream.at(positions), rows)

    def _beside(self, stream: Leaving, rows: Slots) -> Iterator[pa.RecordBatch]:
        """Yield tuples with the columns of a row of R each, NULL where there is none."""
        sizes = stream.sizes + self._arena.sizes(rows) + self._blank_bytes
        for begin, end in portions(stream.rows, sizes, self._result_bytes):
            yield from self._made(
                begin, end, lambda begin, end: [self._result(stream.some(begin, end), rows[begin:end])]
            )

    def _result(self, batch: pa.RecordBatch, rows: Slots) -> pa.RecordBatch:
        columns = self._gather(*self._arena.locate(rows))
        return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=self.output_schema)

    def _part_strangers(self, batch: pa.RecordBatch, numbers: Slots, rows: Slots) -> int:
        """Take the rows from tuples whose key has only the same hash as R's; return how many tuples there are."""
        there = np.flatnonzero(rows >= 0)
        names = self.relation.key.names
        ours = pa.RecordBatch.from_arrays(self._gather_key(*self._arena.locate(rows[there])), names=list(names))
        stream = batch if there.size == rows.size else take_rows(batch, there)
        strange = there[~self.relation.key.verify(stream, self.on, ours)]
        numbers[strange] = rows[strange] = -1
        return int(strange.size)

    # -- updates of R -------------------------------------------------------------------------------------

    def after_update(self, change: Change) -> None:
        """Forget the keys that were changed; tuples that wait will have them read anew."""
        if self._bound:
            self._arena.unique = self.relation.unique
            self._forget(change.keys)

    def forget_rows(self, keys: Ints) -> None:
        self._forget(keys)

    @property
    def _waiting(self) -> int:
        return len(self._window) if self._bound else 0
