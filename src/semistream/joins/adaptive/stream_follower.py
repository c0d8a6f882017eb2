"""How the memory of ADAPTIVEJOIN follows the stream: the batches that come, and the keys they ask for.

A batch that is given with `Join.feed`, as `Join.process` does, stays with whoever gives it until all of it is taken in,
and slices of it are views: of its tuples the window holds only their numbers. What is left of it in the window when
`feed` ends counts as the join's own. Where each batch is drained, none is left, and the memory that tuples would take
goes to rows: a window then spans a batch as long as the rows of its keys fit.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque

from semistream.joins.adaptive.adaptive_memory import READ, USUAL, AdaptiveMemory
from semistream.joins.adaptive.adaptive_split import best_window

__all__ = ["StreamFollower"]

_DRIFT = 0.7
_OTHER = 0.4
_FORGET = 6
"""Shares of the keys known that there usually are, below which the stream is taken to have moved, or to be another."""
_BATCHES = 8
"""Micro-batches whose sizes are remembered: memory for the longest of them is kept."""
_ALIKE = 0.97
"""Batches that are as long as this part of those before are taken for as long: each length is reckoned anew."""
_TELLING, _TELLING_ALL = 16, 512
"""Tuples of a window that tells something of the keys' law, and of one that tells as much as it can."""
_LITTLE, _LITTLE_OF_FEW = 0.02, 0.2
"""Differences of exponents that are none, and those that are chance where tuples are few."""
_WORTH_IT = 1.2
"""Memory moves when the window should be longer or shorter, or rows more or fewer, by this factor."""


class StreamFollower:
    """Learns what comes, and moves memory to where it is worth most then.

    Parameters
    ----------
    memory
        What moves.
    """

    def __init__(self, memory: AdaptiveMemory) -> None:
        self._memory = memory
        self._exponent = 1.0
        self._read = memory.relation.counters.pages
        self._batch = 0  # tuples since the last drain,
        self._pieces = 0  # and in how many pieces they came
        self._batches: deque[tuple[int, int]] = deque(maxlen=_BATCHES)
        self._reckoned = 0.0

    def piece_came(self) -> None:
        """Take note that the stream goes on."""
        self._pieces += 1

    def drained(self) -> None:
        """Take note of the end of a batch."""
        if self._batch:
            self._batches.append((self._batch, self._pieces))
        self._batch = self._pieces = 0
        self._rearrange()

    def served(self, tuples: int, keys: int, distinct: int, missing: int) -> None:
        """Learn from a window that has been served, or some of it, and move memory to where it is worth more now.

        It had so many ``tuples`` and ``keys``. Of the ``distinct`` keys that were served so many were ``missing`` in
        the arena. When far more are than usual, the stream asks for other keys than it did, and those that were
        frequent must not stay for that.
        """
        memory, learned = self._memory, self._memory.learned
        left = len(memory.window)
        self._batch += tuples - left
        before, self._read = self._read, memory.relation.counters.pages
        learned[READ] += self._read - before
        if distinct >= 64:
            known = 1.0 - missing / distinct
            usual = learned[USUAL]
            if known < _DRIFT * usual:
                memory.arena.age(1 if known > _OTHER * usual else _FORGET)
                usual = known  # it takes some time to learn: that is no other change
            learned[USUAL] = usual + (0.5 if known > usual else 0.05) * (known - usual)
        if tuples >= _TELLING:
            seen = memory.split.exponent_of(tuples, keys)
            # a little more or less is left alone: it would only make memory move to and fro
            if abs(seen - self._exponent) > (_LITTLE if tuples >= _TELLING_ALL / 2 else _LITTLE_OF_FEW):
                self._exponent += min(0.5, tuples / _TELLING_ALL) * (seen - self._exponent)
        self._rearrange()

    def _about(self, batch: float) -> float:
        """Return the length of batches to reckon with: that of before, if it is but a little more than this."""
        if not _ALIKE * self._reckoned <= batch <= self._reckoned:
            self._reckoned = batch
        return self._reckoned

    def _rearrange(self) -> None:
        """Have the window that is best for batches such as the last, if that is worth it.

        While tuples are left in the window it only gets shorter, as they leave.
        """
        memory = self._memory
        if memory.is_fixed:
            return
        held, now = len(memory.window), memory.split.tuple_bytes
        most = max((tuples for tuples, _ in self._batches), default=0)
        # a stream that goes on, or a batch longer than all before, may have any length
        batch = math.inf if self._batch > 2 * most else self._about(float(max(most, 1)))
        lent = most > 0 and self._pieces <= 1 and all(pieces == 1 for _, pieces in self._batches)
        each = now if held else memory.bytes_held(lent=lent and batch < math.inf)
        exponent = round(self._exponent, 2)
        split, frames = memory.best_frames(each, exponent, batch, stay=held > 0)
        best = best_window(split, exponent, batch)
        # some more, for batches that are a little longer, but not of what rows need
        best += min(best // 32, max(0, int((split.room / each - best) / 8)))
        worth_it = memory.differs(best, each, _WORTH_IT)
        if held:
            if worth_it:
                memory.shorten(best)
        elif worth_it or each != now or frames != memory.fetch.count:
            memory.split = dataclasses.replace(memory.split, tuple_bytes=each)
            memory.move(best, frames)
