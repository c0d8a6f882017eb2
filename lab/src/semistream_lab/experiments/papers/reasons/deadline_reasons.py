"""What fits into a deadline of SSIJ, whatever the implementation: the paper's phases, an ideal cache, the best plan."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from semistream.core.arrays import Ints
from semistream.structures.read_plan import optimal_plan

__all__ = ["DeadlineLimit"]

_DRAWS = 1 << 21
"""Tuples drawn from the stream. No phase of interest has more."""


@dataclass(frozen=True)
class DeadlineLimit:
    """The highest rate at which SSIJ can keep a deadline.

    A tuple that arrives as a join phase begins waits for this phase and the next. So a phase takes at most half of the
    deadline, and must read the pages of the tuples that arrived in the same time. Nothing but reads takes time, the
    cache holds the pages of the most frequent keys and nothing else is in memory, and each plan of reads is the best:
    a run of ``i`` pages, up to ``max_scan``, costs ``S + i·T``, as in the paper (§IV-D).

    Parameters
    ----------
    keys, pages_of_key
        Keys of R, the most frequent first, and the pages of each.
    cached_pages
        Pages that fit into memory.
    seek, transfer, max_scan
        Seconds of a seek and of the transfer of a page; the longest run in pages.

    Examples
    --------
    >>> few = DeadlineLimit(1000, 1.0, 100, seek=0.01, transfer=0.001, max_scan=10)
    >>> few.seconds(0), few.rate(2.0) < few.rate(20.0)
    (0.0, True)
    """

    keys: int
    pages_of_key: float
    cached_pages: int
    seek: float
    transfer: float
    max_scan: int

    @property
    def scan_seconds(self) -> float:
        """Seconds to read all of R."""
        pages = self.keys * self.pages_of_key
        return math.ceil(pages / self.max_scan) * self.seek + pages * self.transfer

    def missed_keys(self, tuples: int) -> int:
        """Return how many distinct keys outside the cache occur among this many tuples."""
        keys = np.unique(self._missed()[:tuples])
        return int(np.count_nonzero(keys >= 0))

    def seconds(self, tuples: int) -> float:
        """Return the seconds of the cheapest read plan for the pages of this many tuples."""
        keys = np.unique(self._missed()[:tuples])
        keys = keys[keys >= 0]
        if keys.size == 0:
            return 0.0
        first, last = (np.floor(keys * self.pages_of_key), np.ceil((keys + 1) * self.pages_of_key) - 1)
        most = math.ceil(self.pages_of_key) + 1
        pages = (first[:, None] + np.arange(most)[None, :]).astype(np.int64)
        wanted = np.unique(pages[pages <= last.astype(np.int64)[:, None]]).astype(np.int32)
        return optimal_plan(wanted, seek=self.seek, transfer=self.transfer, max_scan=self.max_scan).cost

    def rate(self, deadline: float) -> float:
        """Return the highest rate in tuples per second; infinite if all draws fit into half of the deadline."""
        low, high = 0, 64
        while self.seconds(high) <= deadline / 2:
            if high == _DRAWS:
                return math.inf
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.seconds(middle) <= deadline / 2 else (low, middle)
        return low / (deadline / 2)

    def _missed(self) -> Ints:
        return _drawn(self.keys, int(self.cached_pages / self.pages_of_key))


@functools.lru_cache(maxsize=4)
def _drawn(keys: int, cached: int) -> Ints:
    """Return the keys of a stream with skew 1; -1 for keys that are cached."""
    shares = np.cumsum(1.0 / np.arange(1, keys + 1))
    drawn = np.searchsorted(shares, np.random.default_rng(1).random(_DRAWS) * shares[-1])
    missed: Ints = np.where(drawn < cached, -1, drawn)
    return missed
