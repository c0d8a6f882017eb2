"""Brings the rows that a window of ADAPTIVEJOIN asks for into the arena, for as many of its tuples as fit."""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Ints, Slots
from semistream.core.statistics import JoinStatistics
from semistream.joins.adaptive.adaptive_memory import AdaptiveMemory

__all__ = ["RowFinder"]


_RISE, _FALL = 0.15, 0.1
"""Where rows do not fit, keys are taken to need so much more, then twice that; where they fit, a part less of it."""
_TELLING = 1024
"""Keys that tell what others need: of those before, half as much counts then."""
_MOST_GIANTS, _AT_ONCE = 64, 8192
"""Keys that are remembered because the rows of each do not fit, and numbers that are compared with them at once."""
_LARGER = 1.2
"""An arena that is larger by this factor may have room for them."""


class _Mean:
    """A mean of what came last, 1 at first."""

    def __init__(self) -> None:
        self.value = self._count = 1.0

    def add(self, mean: float, count: int) -> None:
        self._count = min(self._count, _TELLING / 2) + count
        self.value += count / self._count * (mean - self.value)


class RowFinder:
    """Pins the keys of a window, and reads those whose rows are not known.

    It learns how many of the keys R lacks, and what the others need of the arena: several rows each, or long ones. Keys
    with more rows than fit are remembered: the tuples before one are served together, and then it by itself.

    Parameters
    ----------
    memory, stats
        Where rows come to, and where it is counted what was looked for.
    """

    def __init__(self, memory: AdaptiveMemory, stats: JoinStatistics) -> None:
        self._memory = memory
        self._stats = stats
        self._absent = 0.0  # share of the keys that were looked for and that R lacks
        self._rows = _Mean()  # of a key that R has
        self._length = _Mean()  # of a row, in rows of usual length
        self._more = 1.0  # what is needed beyond that, because it did not fit
        self._giants: Ints = np.empty(0, np.int64)
        self._too_small = 0  # rows of the arena that did not hold them

    def pin(self) -> tuple[int, int]:
        """Pin only the first tuples of the window, so many as rows of their keys will fit; 0 if not those of the first.

        Returns how many, and the keys that the whole window has.
        """
        arena, window = self._memory.arena, self._memory.window
        keys, count = arena.pinned[0], self._before_giants()
        if count < len(window):
            arena.pin_only(window.numbers[:count])
        return self._pin_fitting(count), keys

    def find(self, count: int) -> int:
        """Have the rows of the first ``count`` tuples, which are pinned, or of fewer if they do not fit.

        Returns for how many tuples; 0 if the rows of a single one are too many. Frames have been let go afterwards.
        """
        arena, window = self._memory.arena, self._memory.window
        usual, rise = self._more, 1.0 + _RISE
        try:
            while count and not self._bring():
                if count == 1:
                    self._giants = np.append(self._giants[1 - _MOST_GIANTS :], arena.keys_of(window.numbers[:1]))
                    self._more, self._too_small = usual, arena.capacity  # one key does not tell of others
                    return 0
                self._more *= rise
                count = max(1, int(count / rise))
                arena.pin_only(window.numbers[:count])
                count, rise = self._pin_fitting(count), 2 * rise - 1
        finally:
            self._memory.fetch.let_go()
        if count:
            self._learn()
        return count

    def release(self) -> None:
        """Pin what is in the window again, and nothing else."""
        arena = self._memory.arena
        arena.unpin()
        arena.pin(self._memory.window.numbers)

    def _before_giants(self) -> int:
        """Return how many tuples come before the first that asks for a key with too many rows."""
        arena, numbers = self._memory.arena, self._memory.window.numbers
        if arena.capacity > _LARGER * self._too_small:
            self._giants = self._giants[:0]
        for begin in range(0, numbers.size if self._giants.size else 0, _AT_ONCE):
            part = numbers[begin : begin + _AT_ONCE]
            giant = (part >= 0) & np.isin(arena.keys_of(part), self._giants)
            if giant.any():
                return begin + int(giant.argmax())
        return int(numbers.size)

    def _pin_fitting(self, count: int) -> int:
        """Of the first ``count`` tuples, which are pinned, pin only so many as rows of their keys will fit."""
        arena, window = self._memory.arena, self._memory.window
        need = self._need * self._more
        while True:
            unknown = arena.unknown().size
            needed = arena.pinned_rows + unknown * (1.0 - self._absent) * need
            if unknown == 0 or needed < arena.capacity + 1 or count <= 1:
                return count
            # as many tuples fewer have not as many keys fewer: this goes on until it is enough
            count = max(1, min(count - 1 - count // 64, int(count * arena.capacity / needed)))
            arena.pin_only(window.numbers[:count])

    def _bring(self) -> bool:
        """Read the rows of all pinned keys that are not known; return False if they do not fit."""
        arena, fetch = self._memory.arena, self._memory.fetch
        unknown = arena.unknown()
        self._stats.probes += unknown.size
        before = fetch.pages_wanted
        try:
            fitted = fetch.bring(arena, unknown, self._memory.rows_a_key)
        finally:
            self._stats.pages_useful += fetch.pages_wanted - before
        if fitted and unknown.size:
            rows, absent, _ = arena.first_rows(unknown)
            self._absent += 0.25 * (absent / unknown.size - self._absent)
            if self._memory.relation.codec.variable:
                self._learn_length(rows[rows >= 0][:_TELLING])
        return fitted

    @property
    def _need(self) -> float:
        """Rows of usual length that a key which R has usually needs."""
        return self._rows.value * max(1.0, self._length.value)

    def _learn_length(self, rows: Slots) -> None:
        if rows.size:
            mean = float(np.mean(self._memory.arena.sizes(rows)))
            self._length.add(mean / self._memory.stored_row_bytes, int(rows.size))

    def _learn(self) -> None:
        """Learn from the keys that are pinned, whose rows have fitted."""
        arena = self._memory.arena
        rows, (pinned, absent) = arena.pinned_rows, arena.pinned
        if pinned == absent:
            return
        if not arena.unique:
            self._rows.add(rows / (pinned - absent), pinned - absent)
            self._memory.learn_rows_a_key(self._rows.value)
        most = max(1.0, arena.capacity / (pinned - absent) / self._need)
        self._more = min(most, self._more + _FALL * (1.0 - self._more))
