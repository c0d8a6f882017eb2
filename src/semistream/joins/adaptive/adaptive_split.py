"""The best split of a budget between window and arena: how ADAPTIVEJOIN decides where memory moves.

With a longer window more tuples share a page; a larger arena answers more tuples without a read. Let the window have
``n`` tuples, ``p`` be a key's share of the stream, and ``h`` the number of keys that the arena keeps in addition to the
keys read for the window. Then

    m(n) = Σ over the keys not kept of (1 - e^{-n·p})      keys to read for a window
    P    = pages · (1 - e^{-m/pages})                      their pages, if keys are spread over R at random
    c(n) = min(P · (S + T), S + pages · T) / n             seconds per tuple, pages singly or in one scan

where ``T`` includes a page's share of a call. The best window minimises ``c(n)`` among the windows whose keys fit into
the memory that they leave. Keys are assumed to follow Zipf's law. Its exponent is chosen so that a window has the
number of distinct keys that was observed.

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


_CLASSES = 96  # classes of keys of similar popularity, in addition to the most popular keys
_LEAST_WINDOW = 64.0  # tuples of the shortest window that is tried
_STEPS_AN_OCTAVE = 4  # window lengths tried per doubling
_PARTS_OF_A_STEP = 8  # finer steps between the best length and the next
_MOST_EXPONENT = 3.0  # upper end of the search for the exponent
_FILL = 0.985
"""Maximum share of the arena for the keys of a window: with more, windows would be cut in two too often."""


@dataclass(frozen=True)
class _Law:
    first: Floats
    count: Floats
    share: Floats


@functools.lru_cache(maxsize=256)
def _law(keys: int, exponent: float) -> _Law:
    """Return classes of keys by popularity: number of more popular keys, number of keys, and each key's share."""
    single = np.arange(min(keys, 32) + 1.0)
    tail = np.round(single[-1] * (keys / max(single[-1], 1.0)) ** (np.arange(1, _CLASSES + 1) / _CLASSES))
    edges = np.unique(np.append(single, tail))
    count = np.diff(edges)
    share = ((edges[:-1] + edges[1:] + 1.0) / 2) ** -exponent
    return _Law(edges[:-1], count, share / np.dot(share, count))


@dataclass(frozen=True)
class Split:
    """The parameters of a split of memory.

    Parameters
    ----------
    room
        Bytes for window and rows together.
    keys, pages
        Distinct keys and pages of R.
    tuple_bytes, key_bytes
        Bytes of a tuple in the window, and of a key's rows in the arena.
    seek, transfer
        Seconds of a seek when many are requested together, and of the transfer of a page.
    call
        CPU seconds per page: its share of a call that reads several pages of a scan.
    work, turn
        Seconds of a tuple, and of a window, without reading.
    saved
        Share of the keys to read that a filter reports absent.
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
    saved: float = 0.0

    def distinct(self, tuples: float, exponent: float) -> float:
        """Return the expected number of distinct keys of a window."""
        law = _law(self.keys, round(exponent, 3))
        return float(np.dot(law.count, -np.expm1(-tuples * law.share)))

    def exponent_of(self, tuples: float, distinct: float) -> float:
        """Return the exponent for which ``tuples`` tuples have ``distinct`` distinct keys."""
        low, high = 0.0, _MOST_EXPONENT
        for _ in range(12):
            middle = (low + high) / 2
            low, high = (middle, high) if self.distinct(tuples, middle) > distinct else (low, middle)
        return (low + high) / 2

    def missing(self, tuples: float, exponent: float) -> float:
        """Return the number of keys to read for a window."""
        law = _law(self.keys, round(exponent, 3))
        asked = law.count * -np.expm1(-tuples * law.share)
        held = max(0.0, (self.room - tuples * self.tuple_bytes) / self.key_bytes)
        missing = float(asked.sum())
        for _ in range(24):
            kept = np.clip(max(0.0, held - missing) - law.first, 0.0, law.count) / law.count
            missing += 0.5 * (float(np.dot(asked, 1.0 - kept)) - missing)
        return missing

    def fits(self, tuples: float, exponent: float) -> bool:
        """Return whether the keys of a window fit into the room that it leaves."""
        held = (self.room - tuples * self.tuple_bytes) / self.key_bytes
        return held * _FILL >= self.distinct(tuples, exponent)

    def seconds(self, tuples: float, exponent: float) -> float:
        """Return the seconds per tuple in windows of ``tuples`` tuples; infinity if their keys do not fit."""
        if not self.fits(tuples, exponent):
            return float("inf")
        pages = self.pages * -np.expm1((self.saved - 1.0) * self.missing(tuples, exponent) / self.pages)
        singly = pages * (self.seek + self.transfer + 2 * self.call)  # twice the calls, each of half the frames
        reading = min(singly, self.seek + self.pages * (self.transfer + self.call))
        return float((reading + self.turn) / tuples + self.work)

    def best(self, exponent: float, most: float = float("inf")) -> int:
        """Return the tuples of the best window, at most ``most``, the size of a batch."""
        if self.room <= 0:
            return 1
        best, least, finer, step = 1.0, float("inf"), 1.0, 2 ** (1 / _STEPS_AN_OCTAVE)
        tuples = min(_LEAST_WINDOW, self.room / self.tuple_bytes / 2)
        while tuples > 1 and not self.fits(tuples, exponent):  # keys of many rows
            tuples /= step
        while True:
            tried = min(tuples, most)
            cost = self.seconds(tried, exponent)
            # A longer window must save at least 1 %, because tuples wait for it.
            if cost < 0.99 * least:
                best, least, finer = tried, cost, tried
            if cost == float("inf") or tried == most:
                break
            tuples *= step
        # Try lengths up to the next step; each must save its part of 1 %.
        for part in range(1, _PARTS_OF_A_STEP):
            tried = min(best * 2 ** (part / _PARTS_OF_A_STEP / _STEPS_AN_OCTAVE), most)
            if self.seconds(tried, exponent) < least * (1.0 - 0.01 * part / _PARTS_OF_A_STEP):
                finer = tried
        return max(1, int(finer))


@functools.lru_cache(maxsize=256)
def best_window(split: Split, exponent: float, batch: float) -> int:
    """Return the tuples of the best window for batches of ``batch`` tuples: a whole batch, or equal parts of it.

    An infinite ``batch`` stands for a continuous stream.
    """
    if batch == float("inf"):
        return split.best(exponent)
    best, least, parts = batch, float("inf"), 1
    while batch / parts >= _LEAST_WINDOW or parts == 1:
        cost = split.seconds(batch / parts, exponent)
        if cost < 0.98 * least:
            best, least = batch / parts, cost
        parts += max(1, parts // 8)
    return int(best) + 1 if least < float("inf") else split.best(exponent, batch)
