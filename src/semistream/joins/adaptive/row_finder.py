"""Brings the rows that a window of ADAPTIVEJOIN asks for into the arena, for as many of its tuples as fit."""

from __future__ import annotations

from semistream.core.statistics import JoinStatistics
from semistream.joins.adaptive.adaptive_memory import AdaptiveMemory

__all__ = ["RowFinder"]


class RowFinder:
    """Pins the keys of a window, and reads those whose rows are not known.

    Parameters
    ----------
    memory, stats
        Where rows come to, and where it is counted what was looked for.
    """

    def __init__(self, memory: AdaptiveMemory, stats: JoinStatistics) -> None:
        self._memory = memory
        self._stats = stats
        self._absent = 0.0  # share of the keys that were looked for and that R lacks

    def pin(self) -> tuple[int, int]:
        """Pin only the first tuples of the window, so many as rows of their keys will fit.

        Returns how many, and the keys that the whole window has.
        """
        arena, window = self._memory.arena, self._memory.window
        count, keys = len(window), None
        while True:
            pinned, absent = arena.pinned
            keys = pinned if keys is None else keys
            needed = pinned - absent - int(self._absent * arena.unknown().size)
            if needed <= arena.capacity or count <= 1:
                return count, keys
            # as many tuples fewer have not as many keys fewer: this goes on until it is enough
            count = max(1, min(count - 1, int(count * arena.capacity / needed)))
            arena.pin_only(window.numbers[:count])

    def find(self, count: int) -> int:
        """Have the rows of the first ``count`` tuples, which are pinned, or of fewer if they do not fit.

        Returns for how many tuples; 0 if the rows of a single one are too many. Frames have been let go afterwards.
        """
        try:
            while not self._bring():
                count //= 2  # the rows of so many tuples do not fit: half of them first
                if count == 0:
                    break
                self._memory.arena.pin_only(self._memory.window.numbers[:count])
        finally:
            self._memory.fetch.let_go()
        return count

    def release(self) -> None:
        """Pin what is in the window again, and nothing else."""
        arena = self._memory.arena
        arena.unpin()
        arena.pin(self._memory.window.numbers)

    def _bring(self) -> bool:
        """Read the rows of all pinned keys that are not known; return False if they do not fit."""
        arena, fetch = self._memory.arena, self._memory.fetch
        unknown = arena.unknown()
        self._stats.probes += unknown.size
        before = fetch.pages_wanted
        try:
            fitted = fetch.bring(arena, unknown)
        finally:
            self._stats.pages_useful += fetch.pages_wanted - before
        if fitted and unknown.size:
            absent = arena.first_rows(unknown)[1] / unknown.size
            self._absent += 0.25 * (absent - self._absent)
        return fitted
