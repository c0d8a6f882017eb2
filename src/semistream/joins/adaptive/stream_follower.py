"""How the memory of ADAPTIVEJOIN follows the stream: the sizes of batches, and the keys that they request.

A batch that is passed to `Join.feed`, for example by `Join.process`, is owned by the caller until all of its tuples are
accepted. Slices of it are views, so the window holds only the numbers of its tuples. Tuples that are still in the
window when `feed` ends count as the join's own. If every batch is drained, none remain, and rows get the memory that
the tuples would need. A window then spans a whole batch if the rows of its keys fit.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from functools import partial

from semistream.joins.adaptive.adaptive_memory import READ, USUAL, AdaptiveMemory
from semistream.joins.adaptive.adaptive_split import Split, best_window
from semistream.joins.interface.following import Undo
from semistream.relation.filters.key_filter import FilterSize

__all__ = ["StreamFollower", "use_filter"]

_DRIFT = 0.7
_OTHER = 0.4
_FORGET = 6
"""Shares of known keys, relative to the usual share. Below `_DRIFT`, the stream has drifted, and frequencies are halved
once. Below `_OTHER`, it is another stream, and frequencies are halved `_FORGET` times."""
_BATCHES = 8
"""Micro-batches whose sizes are remembered: memory is kept for the longest of them."""
_ALIKE = 0.97
"""Batches at least this long, relative to the last length, count as equally long: a new length costs a new search for
the best window."""
_TELLING, _TELLING_ALL = 16, 512
"""Tuples: minimum number in a window to estimate the exponent from. A new estimate has the weight of the window's
tuples divided by the second number, at most 0.5."""
_LITTLE, _LITTLE_OF_FEW = 0.02, 0.2
"""Differences of exponents up to which a new estimate is ignored: usually, and if a window has few tuples."""
_WORTH_IT = 1.2
"""Memory moves if the best number of tuples or rows differs from the current one by this factor."""


class StreamFollower:
    """Learns from the stream, and moves memory to where it is worth most.

    Parameters
    ----------
    memory
        The memory of the join.
    """

    def __init__(self, memory: AdaptiveMemory) -> None:
        self._memory = memory
        self._exponent = 1.0
        self._read = memory.relation.counters.pages
        self._batch = 0  # tuples since the last drain
        self._pieces = 0  # pieces in which these tuples arrived
        self._batches: deque[tuple[int, int]] = deque(maxlen=_BATCHES)
        self._reckoned = 0.0
        self._requested = 0  # keys that were not in the arena

    def piece_came(self) -> None:
        """Record that a piece of the stream has arrived."""
        self._pieces += 1

    def drained(self) -> None:
        """Record the end of a batch."""
        if self._batch:
            self._batches.append((self._batch, self._pieces))
        self._batch = self._pieces = 0
        self._rearrange()

    def served(self, tuples: int, keys: int, distinct: int, missing: int) -> None:
        """Learn from a window that was served completely or in part, and move memory to where it is worth more now.

        The window had ``tuples`` tuples and ``keys`` keys. Of the ``distinct`` keys that were served, ``missing`` were
        not in the arena. If far more are missing than usual, the stream requests other keys than before. Then old
        frequencies are reduced, so that formerly frequent keys can be evicted.
        """
        memory, learned = self._memory, self._memory.learned
        left = len(memory.window)
        self._batch += tuples - left
        before, self._read = self._read, memory.relation.counters.pages
        learned[READ] += self._read - before
        self._requested += missing
        if distinct >= 64:
            known = 1.0 - missing / distinct
            usual = learned[USUAL]
            if known < _DRIFT * usual:
                memory.arena.age(1 if known > _OTHER * usual else _FORGET)
                usual = known  # the arena needs time to fill: do not count this as another change
            learned[USUAL] = usual + (0.5 if known > usual else 0.05) * (known - usual)
        if tuples >= _TELLING:
            seen = memory.split.exponent_of(tuples, keys)
            # Ignore small differences: they would only move memory back and forth.
            if abs(seen - self._exponent) > (_LITTLE if tuples >= _TELLING_ALL / 2 else _LITTLE_OF_FEW):
                self._exponent += min(0.5, tuples / _TELLING_ALL) * (seen - self._exponent)
        self._rearrange()

    def _about(self, batch: float) -> float:
        """Return the batch length to plan for: the previous one, if it is only a little longer than ``batch``."""
        if not _ALIKE * self._reckoned <= batch <= self._reckoned:
            self._reckoned = batch
        return self._reckoned

    def _rearrange(self) -> None:
        """Resize the window to the best length for batches like the last ones, if this is worth it.

        While tuples are in the window it is only shortened, as they leave.
        """
        memory = self._memory
        if memory.is_fixed:
            self._remember()
            return
        held, now = len(memory.window), memory.split.tuple_bytes
        most = max((tuples for tuples, _ in self._batches), default=0)
        # A continuous stream, or a batch longer than all before, may have any length.
        batch = math.inf if self._batch > 2 * most else self._about(float(max(most, 1)))
        lent = most > 0 and self._pieces <= 1 and all(pieces == 1 for _, pieces in self._batches)
        each = now if held else memory.bytes_held(lent=lent and batch < math.inf)
        exponent = round(self._exponent, 2)
        split, frames = memory.best_frames(each, exponent, batch, stay=held > 0)
        best = best_window(split, exponent, batch)
        # Add a little for batches that are slightly longer, but not memory that rows need.
        best += min(best // 32, max(0, int((split.room / each - best) / 8)))
        worth_it = memory.differs(best, each, _WORTH_IT)
        if held:
            if worth_it:
                memory.shorten(best)
        elif self._filtered(split, exponent, batch):
            self._rearrange()
        elif worth_it or each != now or frames != memory.fetch.count:
            memory.split = dataclasses.replace(memory.split, tuple_bytes=each)
            memory.move(best, frames)

    def _filtered(self, split: Split, exponent: float, batch: float) -> bool:
        """Read the filter of absent keys, or release it, if this is worth it; return whether memory was moved."""
        if self._requested < _TELLING_ALL:
            return False
        cost = partial(_cost, split, exponent, batch)
        size, differs = self._memory.absent.best(cost, exponent, batch, split.tuple_bytes)
        return differs and use_filter(self._memory, size)

    def _remember(self) -> None:
        """Note for the next process, which may have arrays of other sizes, whether a filter is worth its memory."""
        memory = self._memory
        if memory.options.arrays is None or memory.may_hold_all or memory.arena.whole or not self._batches:
            return
        if self._requested >= _TELLING_ALL:
            exponent, batch = round(self._exponent, 2), float(max(tuples for tuples, _ in self._batches))
            cost = partial(_cost, memory.split, exponent, batch)
            size, differs = memory.absent.best(cost, exponent, batch, anew=True)
            if differs:
                memory.absent.remember(memory.options.arrays, size)


def _cost(split: Split, exponent: float, batch: float, more: int, saved: float) -> float:
    """Return the seconds per tuple if a filter takes ``more`` bytes from rows and saves a share ``saved`` of reads."""
    other = dataclasses.replace(split, room=split.room - more, saved=saved)
    return other.seconds(best_window(other, exponent, batch), exponent)


def use_filter(memory: AdaptiveMemory, size: FilterSize | None) -> bool:
    """Read a filter of this size, or release it; rows give or get the memory.

    Return False if it is in use.
    """
    absent, free = memory.absent, memory.absent.free
    undo: Undo | None = None
    if (lacking := absent.lacking(size)) > 0 and (undo := memory.lend(lacking)) is None:
        return False
    if not absent.load(size) and undo is not None:
        undo()
    if (more := absent.free - free) > 0:
        memory.widen(more)
    memory.split = dataclasses.replace(memory.split, saved=absent.saved)
    return True
