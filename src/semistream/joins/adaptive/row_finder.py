"""Brings the rows that a window of ADAPTIVEJOIN asks for into the arena, for as many of its tuples as fit."""

from __future__ import annotations

from semistream.core.statistics import JoinStatistics
from semistream.joins.adaptive.adaptive_memory import AdaptiveMemory

__all__ = ["RowFinder"]


_RISE, _FALL = 0.15, 0.1
"""Where rows do not fit, keys are taken to need so much more, then twice that; where they fit, a part less of it."""


class RowFinder:
    """Pins the keys of a window, and reads those whose rows are not known.

    It learns how many of the keys R lacks, and what the others need of the arena: several rows each, or long ones.

    Parameters
    ----------
    memory, stats
        Where rows come to, and where it is counted what was looked for.
    """

    def __init__(self, memory: AdaptiveMemory, stats: JoinStatistics) -> None:
        self._memory = memory
        self._stats = stats
        self._absent = 0.0  # share of the keys that were looked for and that R lacks
        self._need = 1.0  # rows of usual length that a key which R has needs

    def pin(self) -> tuple[int, int]:
        """Pin only the first tuples of the window, so many as rows of their keys will fit.

        Returns how many, and the keys that the whole window has.
        """
        keys = self._memory.arena.pinned[0]
        return self._pin_fitting(len(self._memory.window)), keys

    def find(self, count: int) -> int:
        """Have the rows of the first ``count`` tuples, which are pinned, or of fewer if they do not fit.

        Returns for how many tuples; 0 if the rows of a single one are too many. Frames have been let go afterwards.
        """
        arena, window, more = self._memory.arena, self._memory.window, 1.0 + _RISE
        try:
            while not self._bring():
                if count == 1:
                    return 0
                self._need *= more
                count = max(1, int(count / more))
                arena.pin_only(window.numbers[:count])
                count, more = self._pin_fitting(count), 2 * more - 1
        finally:
            self._memory.fetch.let_go()
        self._learn()
        return count

    def release(self) -> None:
        """Pin what is in the window again, and nothing else."""
        arena = self._memory.arena
        arena.unpin()
        arena.pin(self._memory.window.numbers)

    def _pin_fitting(self, count: int) -> int:
        """Of the first ``count`` tuples, which are pinned, pin only so many as rows of their keys will fit."""
        arena, window = self._memory.arena, self._memory.window
        while True:
            pinned, absent = arena.pinned
            needed = (pinned - absent - self._absent * arena.unknown().size) * self._need
            if needed < arena.capacity + 1 or count <= 1:
                return count
            # as many tuples fewer have not as many keys fewer: this goes on until it is enough
            count = max(1, min(count - 1, int(count * arena.capacity / needed)))
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
            absent = arena.first_rows(unknown)[1] / unknown.size
            self._absent += 0.25 * (absent - self._absent)
        return fitted

    def _learn(self) -> None:
        """Learn what the keys that are pinned needed."""
        arena, rows_a_key = self._memory.arena, 1.0
        if not arena.unique:
            pinned, absent = arena.pinned
            rows_a_key = arena.pinned_rows / (pinned - absent) if pinned > absent else self._memory.rows_a_key
            self._memory.learn_rows_a_key(rows_a_key)
        self._need = max(rows_a_key, self._need + _FALL * (rows_a_key - self._need))
