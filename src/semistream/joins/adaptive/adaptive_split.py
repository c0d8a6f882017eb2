"""How much of a budget is worth most as window, and how much as arena: what ADAPTIVEJOIN moves memory by.

A longer window lets more tuples share a page; a larger arena answers more of them without one. With ``n`` tuples in the
window, ``p`` the share of the stream that asks for a key and ``h`` the keys that the arena keeps beside those that are
read for the window,

    m(n) = Σ over the keys not kept of (1 - e^{-n·p})      keys to be read for a window
    P    = pages · (1 - e^{-m/pages})                      their pages, if keys lie anywhere in R
    c(n) = min(P · (S + T), S + pages · T) / n             seconds for a tuple, pages singly or in one scan

with a page's share of a call in ``T``, and the best window is where ``c(n)`` is least, among those whose keys fit into
what they leave of the memory. The law of the keys is Zipf's, its exponent the one under which a window has as many
distinct keys as were seen in one.

Examples
--------
>>> split = Split(room=57e6, keys=10**7, pages=152_000, tuple_bytes=24, key_bytes=151, seek=6e-6, transfer=3e-6)
>>> 500_000 < split.best(exponent=1.0) < 900_000
True
>>> split.best(exponent=0.0) < split.best(exponent=1.0)
True
>>> round(split.exponent_of(100_000, split.distinct(100_000, 0.8)), 2)
0.8
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from semistream.core.arrays import Floats

__all__ = ["Split", "best_window"]


_CLASSES = 96
_LEAST_WINDOW = 64.0
_STEPS_AN_OCTAVE = 4
_PARTS_OF_A_STEP = 8
_MOST_EXPONENT = 3.0
_FILL = 0.985
"""Share of the arena that the keys of a window may take: more would be cut in two too often."""


@dataclass(frozen=True)
class _Law:
    first: Floats
    count: Floats
    share: Floats


@functools.lru_cache(maxsize=256)
def _law(keys: int, exponent: float) -> _Law:
    """Return the keys by popularity, in classes: how many are more popular, how many it has, and the share of each."""
    single = np.arange(min(keys, 32) + 1.0)
    tail = np.round(single[-1] * (keys / max(single[-1], 1.0)) ** (np.arange(1, _CLASSES + 1) / _CLASSES))
    edges = np.unique(np.append(single, tail))
    count = np.diff(edges)
    share = ((edges[:-1] + edges[1:] + 1.0) / 2) ** -exponent
    return _Law(edges[:-1], count, share / np.dot(share, count))


@dataclass(frozen=True)
class Split:
    """A memory to be split.

    Parameters
    ----------
    room
        Bytes for window and rows together.
    keys, pages
        Distinct keys and pages of R.
    tuple_bytes, key_bytes
        What a tuple costs in the window, and the rows of a key in the arena.
    seek, transfer
        Seconds of a seek when many are asked for together, and of the transfer of a page.
    call
        Seconds of the processor that a page takes as one of those that are read by one call of a scan.
    work, turn
        Seconds that a tuple, and a window, take beside all reading.
    """

    room: float
    keys: int
    pages: int
    tuple_bytes: float
    key_bytes: float
    seek: float
    transfer: float
    call: float = 0.0
    work: float = 2e-7
    turn: float = 1e-3

    def distinct(self, tuples: float, exponent: float) -> float:
        """Return the distinct keys of a window."""
        law = _law(self.keys, round(exponent, 3))
        return float(np.dot(law.count, -np.expm1(-tuples * law.share)))

    def exponent_of(self, tuples: float, distinct: float) -> float:
        """Return the exponent under which so many tuples have so many distinct keys."""
        low, high = 0.0, _MOST_EXPONENT
        for _ in range(12):
            middle = (low + high) / 2
            low, high = (middle, high) if self.distinct(tuples, middle) > distinct else (low, middle)
        return (low + high) / 2

    def missing(self, tuples: float, exponent: float) -> float:
        """Return the keys to be read for a window."""
        law = _law(self.keys, round(exponent, 3))
        asked = law.count * -np.expm1(-tuples * law.share)
        held = max(0.0, (self.room - tuples * self.tuple_bytes) / self.key_bytes)
        missing = float(asked.sum())
        for _ in range(24):
            kept = np.clip(max(0.0, held - missing) - law.first, 0.0, law.count) / law.count
            missing += 0.5 * (float(np.dot(asked, 1.0 - kept)) - missing)
        return missing

    def fits(self, tuples: float, exponent: float) -> bool:
        """Say whether the keys of a window fit into what it leaves of the room."""
        held = (self.room - tuples * self.tuple_bytes) / self.key_bytes
        return held * _FILL >= self.distinct(tuples, exponent)

    def seconds(self, tuples: float, exponent: float) -> float:
        """Return what a tuple costs in windows of so many; without end if their keys do not fit."""
        if not self.fits(tuples, exponent):
            return float("inf")
        pages = self.pages * -np.expm1(-self.missing(tuples, exponent) / self.pages)
        singly = pages * (self.seek + self.transfer + 2 * self.call)  # twice as many calls, of half the frames
        reading = min(singly, self.seek + self.pages * (self.transfer + self.call))
        return float((reading + self.turn) / tuples + self.work)

    def best(self, exponent: float, most: float = float("inf")) -> int:
        """Return the tuples of the best window, ``most`` at most: that is what comes at once."""
        if self.room <= 0:
            return 1
        best, least, finer, step = 1.0, float("inf"), 1.0, 2 ** (1 / _STEPS_AN_OCTAVE)
        tuples = min(_LEAST_WINDOW, self.room / self.tuple_bytes / 2)
        while tuples > 1 and not self.fits(tuples, exponent):  # keys of many rows
            tuples /= step
        while True:
            tried = min(tuples, most)
            cost = self.seconds(tried, exponent)
            # a longer window must be worth it: tuples wait for it
            if cost < 0.99 * least:
                best, least, finer = tried, cost, tried
            if cost == float("inf") or tried == most:
                break
            tuples *= step
        # up to a step more, where that is worth as much again
        for part in range(1, _PARTS_OF_A_STEP):
            tried = min(best * 2 ** (part / _PARTS_OF_A_STEP / _STEPS_AN_OCTAVE), most)
            if self.seconds(tried, exponent) < least * (1.0 - 0.01 * part / _PARTS_OF_A_STEP):
                finer = tried
        return max(1, int(finer))


@functools.lru_cache(maxsize=256)
def best_window(split: Split, exponent: float, batch: float) -> int:
    """Return the tuples of the best window for batches of so many, or without end: all of one, or equal parts."""
    if batch == float("inf"):
        return split.best(exponent)
    best, least, parts = batch, float("inf"), 1
    while batch / parts >= _LEAST_WINDOW or parts == 1:
        cost = split.seconds(batch / parts, exponent)
        if cost < 0.98 * least:
            best, least = batch / parts, cost
        parts += max(1, parts // 8)
    return int(best) + 1 if least < float("inf") else split.best(exponent, batch)
