"""Reads the rows that a window of ADAPTIVEJOIN needs into the arena, for the first tuples whose rows fit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bools, Ints, Slots
from semistream.core.statistics import JoinStatistics
from semistream.joins.adaptive.adaptive_memory import AdaptiveMemory
from semistream.joins.adaptive.key_needs import KeyNeeds, Mean
from semistream.joins.interface.conditions import AsOf, Condition
from semistream.structures.hot.hot_versions import HotVersions

__all__ = ["STALE", "RowFinder"]

STALE = -3
"""The number of a tuple whose row must be looked up: R changed after the tuple had got a number for a version."""


_RISE = 0.15
"""If rows do not fit, the estimated need per key rises by this part, then by twice this part, and so on."""
_SAMPLE = 1024
"""Rows whose length is measured."""
_MOST_GIANTS, _AT_ONCE = 64, 2048
"""Maximum number of giants to remember (keys whose rows alone do not fit), and how many numbers to compare with them
together."""
_LARGER = 1.2
"""An arena that is larger by this factor may have room for the giants."""


class RowFinder:
    """Pins the keys of a window, and reads the rows of unknown keys.

    The need of a key is learned (`KeyNeeds`). A giant, a key whose rows are too many or too long for the arena, is
    remembered: the tuples before it are served together, and then its tuple alone.

    Parameters
    ----------
    memory, stats
        The memory that rows are read into, and the counters.
    """

    def __init__(self, memory: AdaptiveMemory, stats: JoinStatistics) -> None:
        self._memory = memory
        self._stats = stats
        self._needs = KeyNeeds()
        self._rows_a_key = Mean(1.0)  # of all keys that are served, known or not
        self._giants: Ints = np.empty(0, np.int64)
        self._too_small = 0  # rows of the arena that did not hold them

    def number(
        self, condition: Condition, batch: pa.RecordBatch, keys: Ints, valid: Bools, numbers: Slots, coming: int
    ) -> tuple[int, int]:
        """Write the number of each tuple's key, or version of it; see `HotRows.number`."""
        arena = self._memory.arena
        if isinstance(condition, AsOf) and isinstance(arena, HotVersions):
            return arena.number_at(keys, condition.times(batch), valid, numbers, coming)
        return arena.number(keys, valid, numbers, coming)

    def pin(self) -> tuple[int, int]:
        """Pin only the first tuples of the window whose rows are expected to fit; 0 if the first tuple needs a giant.

        Returns the number of these tuples, and the number of keys of the whole window.
        """
        arena, window = self._memory.arena, self._memory.window
        keys, count = arena.pinned[0], self._before_giants()
        if count < len(window):
            arena.pin_only(window.numbers[:count])
        return self._pin_fitting(count), keys

    def find(self, count: int) -> int:
        """Read the rows of the first ``count`` tuples, which are pinned, or of fewer if they do not fit.

        Returns the number of tuples whose rows are in the arena; 0 if the rows of the first tuple alone do not fit.
        Releases the frames.
        """
        arena, window = self._memory.arena, self._memory.window
        rise = 1.0 + _RISE
        try:
            while count and not self._bring():
                if count == 1:
                    self._remember_giant()
                    return 0
                self._needs.did_not_fit(rise)
                count = max(1, int(count / rise))
                arena.pin_only(window.numbers[:count])
                count, rise = self._pin_fitting(count), 2 * rise - 1
        finally:
            self._memory.fetch.let_go()
        if count:
            self._learn(at_once=rise == 1.0 + _RISE)
        return count

    def release(self) -> None:
        """Pin the keys of all tuples in the window again, and no others."""
        arena = self._memory.arena
        arena.unpin()
        arena.pin(self._memory.window.numbers)

    def forget(self, keys: Ints) -> None:
        """Forget what is known of keys, for example after an update of R."""
        arena, numbers = self._memory.arena, self._memory.window.numbers
        self._memory.absent.changed(keys)
        if isinstance(arena, HotVersions):
            numbers[np.isin(numbers, arena.drop(keys))] = STALE
        else:
            arena.forget(keys)
        if self._giants.size:
            self._giants = self._giants[~np.isin(self._giants, keys)]

    # -- keys that fit ------------------------------------------------------------------------------------

    def _pin_fitting(self, count: int) -> int:
        """Of the first ``count`` tuples, which are pinned, keep only the first whose rows are expected to fit."""
        arena, window = self._memory.arena, self._memory.window
        while count > 1 and (unknown := int(arena.unknown().size)):
            needed = arena.pinned_rows + unknown * self._needs.need
            if needed < arena.capacity + 1:
                break
            # The number of keys falls more slowly than the number of tuples: repeat until they fit.
            count = max(1, min(count - 1 - count // 64, int(count * arena.capacity / needed)))
            arena.pin_only(window.numbers[:count])
        return count

    def _bring(self) -> bool:
        """Read the rows of all pinned unknown keys; return False if they do not fit."""
        arena, fetch = self._memory.arena, self._memory.fetch
        unknown = arena.unknown()
        if unknown.size == 0:
            return True
        self._stats.probes += unknown.size
        before, known = fetch.pages_wanted, 0 if arena.unique else arena.pinned_rows
        try:
            left = self._memory.absent.left_of(arena, unknown)
            fitted = fetch.bring(arena, left, self._needs.rows * unknown.size / max(1, left.size))
        finally:
            self._stats.pages_useful += fetch.pages_wanted - before
            requests = int(unknown.size)
            if isinstance(arena, HotVersions):
                arena.merge(self._memory.window.numbers)
                unknown = arena.in_use(unknown)
        if fitted:
            first, absent, _ = arena.first_rows(unknown)
            present = int(unknown.size) - absent
            rows = present if arena.unique else arena.pinned_rows - known
            self._needs.came(requests, absent, rows, self._length_of(first[first >= 0][:_SAMPLE]))
            self._memory.absent.share = self._needs.absent
        return fitted

    def _length_of(self, rows: Slots) -> float | None:
        """Return the mean length of rows, relative to the mean of R; None if rows have a fixed width."""
        codec = self._memory.relation.codec
        if not codec.variable or rows.size == 0:
            return None
        return float(np.mean(self._memory.arena.lengths(rows))) / self._memory.stored_row_bytes

    def _learn(self, *, at_once: bool) -> None:
        """Learn from the pinned keys, whose rows fitted."""
        arena = self._memory.arena
        pinned, absent = arena.pinned
        if (present := pinned - absent) == 0:
            return
        rows = present if arena.unique else arena.pinned_rows
        self._needs.fitted(arena.capacity / rows, at_once=at_once)
        if not arena.unique:
            self._rows_a_key.add(rows / present, present)
            self._memory.learn_rows_a_key(self._rows_a_key.value)

    # -- keys that do not ---------------------------------------------------------------------------------

    def _before_giants(self) -> int:
        """Return the number of tuples before the first that needs a giant, or whose version may be another one now."""
        arena, numbers = self._memory.arena, self._memory.window.numbers
        if isinstance(arena, HotVersions) and (stale := numbers == STALE).any():
            numbers = numbers[: int(stale.argmax())]
        if arena.whole or arena.capacity > _LARGER * self._too_small:
            self._giants = self._giants[:0]
        for begin in range(0, numbers.size if self._giants.size else 0, _AT_ONCE):
            part = numbers[begin : begin + _AT_ONCE]
            giant = (part >= 0) & np.isin(arena.keys_of(part), self._giants)
            if giant.any():
                return begin + int(giant.argmax())
        return int(numbers.size)

    def _remember_giant(self) -> None:
        arena, number = self._memory.arena, self._memory.window.numbers[:1]
        self._too_small = min(self._too_small, arena.capacity) if self._giants.size else arena.capacity
        self._giants = np.append(self._giants[1 - _MOST_GIANTS :], arena.keys_of(number))
        self._needs.did_not_fit_alone(None if arena.unique else arena.capacity)
