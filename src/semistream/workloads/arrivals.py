"""Arrival times of stream tuples: constant and Poisson arrivals, and the interface of all arrivals.

An `Arrivals` is a small picklable description. Its `cursor` iterates over the arrival times, in seconds from the
start of the stream: a number of tuples at a time, or all tuples up to a time. Times are generated internally in
blocks of a fixed size, so they do not depend on how they are requested. Bursty arrivals are in
`semistream.workloads.bursty`.

Example
-------
>>> arrivals = PoissonArrivals(rate=1000.0, seed=1)
>>> cursor = arrivals.cursor()
>>> first = cursor.take(10)
>>> rest = cursor.until(2.0)                        # all others of the first two seconds
>>> whole = arrivals.cursor().take(10 + rest.size)
>>> bool((np.concatenate([first, rest]) == whole).all()), 1800 < whole.size < 2200
(True, True)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semistream.core.compiled import kernel
from semistream.workloads.keys.draws import draw_word, sequence_seed

__all__ = ["BLOCK_ROWS", "ArrivalCursor", "Arrivals", "ConstantArrivals", "PoissonArrivals", "check_rate"]

BLOCK_ROWS = 1 << 16
"""Arrival times per generated block."""


def check_rate(rate: float) -> None:
    """Raise `ValueError` for a rate that no stream can have."""
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"rate must be a positive number of tuples per second, not {rate}")


class Arrivals(ABC):
    """The arrival times of an endless stream."""

    rate: float
    """Average tuples per second."""

    @abstractmethod
    def blocks(self) -> Iterator[NDArray[np.float64]]:
        """Yield all arrival times, ascending, in blocks."""

    def cursor(self) -> ArrivalCursor:
        """Return a cursor at the first tuple."""
        return ArrivalCursor(self.blocks())

    def counts(self, width: float, intervals: int) -> NDArray[np.int64]:
        """Return the number of tuples that arrive in each of the first ``intervals`` intervals of ``width`` seconds.

        >>> ConstantArrivals(rate=100.0).counts(width=0.05, intervals=4).tolist()
        [5, 5, 5, 5]
        """
        if not width > 0 or intervals < 0:
            raise ValueError(f"width must be above 0 and intervals at least 0, not {width} and {intervals}")
        edges = np.arange(1, intervals + 1, dtype=np.float64) * width
        counts = np.zeros(intervals + 1, dtype=np.int64)  # the last one counts tuples after all intervals
        for block in self.blocks():
            first, last = np.searchsorted(edges, block[[0, -1]], side="right")
            # Split a block at the interval edges it contains; each piece belongs to one interval.
            cuts = np.searchsorted(block, edges[first:last], side="left")
            counts[first : last + 1] += np.diff(cuts, prepend=0, append=block.size)
            if last == intervals:
                break
        return counts[:-1]


class ArrivalCursor:
    """A position in a sequence of arrival times that moves forward as times are taken.

    Attributes
    ----------
    position
        Number of times taken so far.
    """

    def __init__(self, blocks: Iterator[NDArray[np.float64]]) -> None:
        self._blocks = blocks
        self._ready: NDArray[np.float64] = np.empty(0, dtype=np.float64)
        self.position = 0

    def take(self, count: int) -> NDArray[np.float64]:
        """Return the next ``count`` arrival times."""
        if count < 0:
            raise ValueError(f"count must be at least 0, not {count}")
        pieces = []
        missing = count
        while missing > self._ready.size:
            missing -= self._ready.size
            pieces.append(self._ready)
            self._ready = next(self._blocks)
        return self._cut(pieces, missing)

    def skip(self, count: int) -> None:
        """Skip the next ``count`` arrival times without keeping them in memory.

        >>> cursor = ConstantArrivals(rate=4.0).cursor()
        >>> cursor.skip(200_000)
        >>> cursor.position, cursor.take(1).tolist()
        (200000, [50000.125])
        """
        while count > 0:
            count -= self.take(min(count, BLOCK_ROWS)).size

    def until(self, time: float) -> NDArray[np.float64]:
        """Return all arrival times before ``time`` that have not been taken yet."""
        pieces = []
        while not self._ready.size or self._ready[-1] < time:
            pieces.append(self._ready)
            self._ready = next(self._blocks)
        return self._cut(pieces, int(np.searchsorted(self._ready, time, side="left")))

    def _cut(self, pieces: list[NDArray[np.float64]], count: int) -> NDArray[np.float64]:
        taken = np.concatenate([*pieces, self._ready[:count]])
        self._ready = self._ready[count:]
        self.position += taken.size
        return taken


@dataclass(frozen=True, slots=True)
class ConstantArrivals(Arrivals):
    """One tuple every ``1 / rate`` seconds, the first after half of that.

    The papers use such arrivals to find the highest rate that a join sustains.

    >>> ConstantArrivals(rate=4.0).cursor().take(4).tolist()
    [0.125, 0.375, 0.625, 0.875]
    """

    rate: float

    def __post_init__(self) -> None:
        check_rate(self.rate)

    def blocks(self) -> Iterator[NDArray[np.float64]]:
        start = 0
        while True:
            # The half keeps arrivals away from the edges of round intervals, where rounding would decide.
            yield (np.arange(start, start + BLOCK_ROWS, dtype=np.float64) + 0.5) / self.rate
            start += BLOCK_ROWS


@kernel
def _fill_poisson(seed: np.uint64, start: int, rate: float, now: float, out: NDArray[np.float64]) -> None:
    for i in range(out.size):
        # 53 bits and a half: never 0, whose logarithm is infinite.
        fraction = (np.float64(draw_word(seed, start + i) >> np.uint64(11)) + 0.5) * 2.0**-53
        now -= math.log(fraction) / rate
        out[i] = now


@dataclass(frozen=True, slots=True)
class PoissonArrivals(Arrivals):
    """Tuples arrive independently of each other: irregular in the short term, smooth over seconds."""

    rate: float
    seed: int = 0

    def __post_init__(self) -> None:
        check_rate(self.rate)

    def blocks(self) -> Iterator[NDArray[np.float64]]:
        seed = sequence_seed(self.seed, "poisson arrivals")
        start, now = 0, 0.0
        while True:
            block = np.empty(BLOCK_ROWS, dtype=np.float64)
            _fill_poisson(seed, start, self.rate, now, block)
            start, now = start + BLOCK_ROWS, float(block[-1])
            yield block
