"""How the memory of ADAPTIVEJOIN moves: with the batches that come, with the keys they ask for, with updates of R.

A batch that is given with `Join.feed`, as `Join.process` does, stays with whoever gives it until all of it is taken in,
and slices of it are views: of its tuples the window holds only their numbers. What is left of it in the window when
`feed` ends counts as the join's own. Where each batch is drained, none is left, and the memory that tuples would take
goes to rows: a window then spans a batch as long as the rows of its keys fit.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semistream.core.arrays import Ints
from semistream.joins.adaptive.adaptive_memory import (
    LEAST_KEYS,
    LEAST_TUPLES,
    LEAST_WINDOW,
    READ,
    USUAL,
    AdaptiveMemory,
)
from semistream.joins.adaptive.adaptive_split import best_window
from semistream.joins.adaptive.window import Window
from semistream.joins.interface.following import Undo
from semistream.joins.interface.progress import Progress
from semistream.relation.relation import Relation
from semistream.structures.hot.hot_rows import HotRows

if TYPE_CHECKING:
    from semistream.relation.changes.patch import Patch

__all__ = ["AdaptiveMoving"]

_DRIFT = 0.7
_OTHER = 0.4
_FORGET = 6
"""Shares of the keys known that there usually are, below which the stream is taken to have moved, or to be another."""
_BATCHES = 8
"""Micro-batches whose sizes are remembered: memory for the longest of them is kept."""
_WORTH_IT = 1.2
"""Memory moves when the window that it should be is longer, or shorter, by this factor."""


class AdaptiveMoving(AdaptiveMemory):
    """The part of ADAPTIVEJOIN that moves memory."""

    def __init__(self, relation: Relation, **options: Any) -> None:
        self._exponent = 1.0
        self._on_loan = False
        self._batch = 0
        self._pieces = 0  # in which the tuples since the last drain came
        self._batches: deque[tuple[int, int]] = deque(maxlen=_BATCHES)
        super().__init__(relation, **options)

    def feed(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._on_loan = self.schema is None or batch.schema == self.schema  # or a copy is made that fits
        self._pieces += 1
        try:
            yield from super().feed(batch)
            progress = Progress(self)
            while self._bound and not self._window.keep():
                self._more_coming = True  # there is no room for tuples to wait
                yield from self.step()
                progress.turned()
        finally:
            self._on_loan = self._more_coming = False

    def drain(self) -> Iterator[pa.RecordBatch]:
        yield from super().drain()
        if self._batch:
            self._batches.append((self._batch, self._pieces))
        self._batch = self._pieces = 0
        if self._bound:
            self._rearrange()

    # -- with the stream ----------------------------------------------------------------------------------

    def _follow_stream(self, tuples: int, distinct: int, missing: int) -> None:
        """Learn from a window that has been served, and move memory to where it is worth more now.

        Of its ``distinct`` keys so many were ``missing`` in the arena. When far more are than usual, the stream asks
        for other keys than it did, and those that were frequent must not stay for that.
        """
        self._batch += tuples
        before, self._read_before = self._read_before, (self.relation.counters - self._counters).pages
        self._learned[READ] += self._read_before - before
        if distinct >= 64:
            known = 1.0 - missing / distinct
            usual = self._learned[USUAL]
            if known < _DRIFT * usual:
                self._arena.age(1 if known > _OTHER * usual else _FORGET)
                usual = known  # it takes some time to learn: that is no other change
            self._learned[USUAL] = usual + (0.5 if known > usual else 0.05) * (known - usual)
        if tuples >= 256:
            seen = self._split.exponent_of(tuples, distinct)
            # a little more or less is left alone: it would only make memory move to and fro
            if abs(seen - self._exponent) > 0.02:
                self._exponent += 0.5 * (seen - self._exponent)
        self._rearrange()

    def _rearrange(self) -> None:
        """Have the window that is best for batches such as the last, if that is worth it."""
        if self._arrays is not None or self._window_wish is not None or len(self._window) or self._fits:
            return
        # what updates of R hold is not in the split: memory stays where it is
        if self._arena.whole or self._updates_part.bytes or self.condition.name == "between":
            return
        most = max((tuples for tuples, _ in self._batches), default=0)
        # a stream that goes on, or a batch longer than all before, may have any length
        batch = math.inf if self._batch > 2 * most else float(max(most, 1))
        lent = most > 0 and self._pieces <= 1 and all(pieces == 1 for _, pieces in self._batches)
        split = dataclasses.replace(self._split, tuple_bytes=self._bytes_held(lent=lent and batch < math.inf))
        best = best_window(split, round(self._exponent, 2), batch)
        best += best // 32
        moved = not 1 / _WORTH_IT < best / self._window.tuples < _WORTH_IT
        if moved or split.tuple_bytes != self._split.tuple_bytes:
            self._split = split
            self._move(best)

    def _move(self, tuples: int) -> bool:
        """Make the window so long, and the arena as large as that leaves; return False if too much is in use for it."""
        # updates of R may have taken what was free when the room was reckoned
        there = self._inbox.bytes + self._arena_part.bytes + self.budget.free - HotRows.fixed_bytes()
        if there < self._room:
            self._have(there, self._most_rows)
        window, tuples, rows = self._parts_for(tuples)
        taken = window + tuples * Window.bytes_per_tuple
        if rows < self._arena.capacity and not self._arena.resize(rows):
            return False
        self._arena_part.resize(min(self._arena_part.bytes, self._arena.nbytes))
        if not self._window.resize(window, tuples):
            return False
        self._inbox.resize(min(self._inbox.bytes, taken))
        if rows > self._arena.capacity:
            self._arena.resize(rows)
        self._arena_part.resize(self._arena.nbytes)
        self._inbox.resize(taken)
        return True

    # -- updates of R -------------------------------------------------------------------------------------

    def _forget(self, keys: Ints) -> None:
        """Forget what is known of keys that an update has changed."""
        self._arena.forget(keys)

    def _give_up(self, lacking: int, patch: Patch) -> Undo:
        """Do with less: a shorter window and fewer rows."""
        before = self._room, self._window.tuples, self._most_rows
        row, key = self._row_and_key()
        least = LEAST_WINDOW + LEAST_TUPLES * Window.bytes_per_tuple + LEAST_KEYS * row + self._keys * key
        taken = self._inbox.bytes + self._arena_part.bytes - HotRows.fixed_bytes()
        if self._arrays is not None or taken - lacking < least:
            raise self._too_large(lacking - max(0, taken - least), patch)
        held = max(len(self._window), math.ceil(self._window.nbytes / self._split.tuple_bytes))
        needed, room = self.budget.free + lacking, taken - lacking
        while self.budget.free < needed:
            if room < least:
                self._take_back(*before)
                raise self._too_large(least - room, patch)
            self._have(room, self._most_rows)
            shorter = int(self._window.tuples * self._room / taken)
            if not self._move(max(held + held // 16, shorter)):
                self._take_back(*before)
                raise self._must_drain(self.pending)
            room -= max(0, needed - self.budget.free)  # arrays are a little larger than reckoned
        return partial(self._take_back, *before)

    def _take_back(self, room: int, tuples: int, most_rows: int | None) -> None:
        self._have(room, most_rows)
        self._move(tuples)

    def _have(self, room: int, most_rows: int | None) -> None:
        """Share so many bytes out from now on; all rows of R are to fit only if they do."""
        key = HotRows.bytes_per_key()
        least = LEAST_WINDOW + LEAST_TUPLES * Window.bytes_per_tuple
        fits = most_rows is not None and most_rows * self._row_and_key()[0] + self._keys * key + least <= room
        self._room, self._most_rows = room, most_rows if fits else None
        self._split = dataclasses.replace(self._split, room=room - self._keys * key)
