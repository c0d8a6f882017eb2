"""What the papers' own models allow: the reasons behind published figures that are not met.

CMESHJOIN §3.2. With ``u`` bytes a cached tuple, ``h`` tuples cached of ``R_t``, ``p(h)`` the share of the stream they
answer, and MESHJOIN's rate proportional to the memory it has, the gain of the front stage is

    ``gain(h) = (M - u·h) / M / (1 - p(h))``

when reading R is all that costs time. If each waiting tuple also costs ``c`` seconds of processor time in the hash
table, and reading costs ``t`` seconds a tuple at full memory, MESHJOIN takes ``t + c`` a tuple and CMESHJOIN
``(1 - p)·(t·M / (M - u·h) + c)``. Whatever ``c`` is, the gain stays below ``1 / (1 - p(M / u))``: all memory spent on
the cache, and waiting tuples for free. What every tuple costs in both joins, ``e`` seconds to read and emit it, is
added to both and brings their ratio towards 1.

X-HYBRIDJOIN §6.3. With ``n`` partitions of what is not pinned, ``p_N`` the share of the stream that is, ``w`` tuples
entering in a turn and ``h_S`` waiting, the paper has for the matches of a turn (Eq. 9)

    ``w = (h_S - w)·p_old·(1 - p_old) + w·p_new·(1 - p_new)``,   ``p_old = 1/n``,   ``p_new = p_N + (1 - p_N)/n``

which are the variances of binomial counts; their means have no ``1 - p``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from semistream.core.arrays import Floats
from semistream.workloads.keys.zipf import ZipfLaw

__all__ = ["FrontStageGain", "NearestCosts", "PinnedTurn", "nearest_costs"]


_CACHED = 128
_WAITING = 164
_BYTES_PER_SECOND = 100e6


@dataclass(frozen=True)
class FrontStageGain:
    """The gain that CMESHJOIN's model gives over MESHJOIN, with the paper's bytes: 120 + 8 cached, 164 waiting."""

    rows: int
    memory: float
    exponent: float = 1.0
    row_bytes: int = 120

    @property
    def law(self) -> ZipfLaw:
        """How often each key occurs."""
        return ZipfLaw(self.rows, self.exponent)

    @property
    def read_seconds(self) -> float:
        """``t``: reading R once, shared by the tuples that memory holds."""
        return self.rows * self.row_bytes / _BYTES_PER_SECOND / (self.memory / _WAITING)

    @functools.cached_property
    def _sizes(self) -> tuple[Floats, Floats, Floats]:
        """Sizes of the cache as shares of the memory; what it misses of the stream; what it leaves of the memory."""
        most = min(self.memory / _CACHED, self.rows)
        shares = np.linspace(0.005, 0.995, 199)
        missed = np.array([1.0 - self.law.share(int(share * most)) for share in shares])
        return shares * most * _CACHED / self.memory, missed, 1.0 - shares * most * _CACHED / self.memory

    def best(self, hash_seconds: float = 0.0, every_seconds: float = 0.0) -> tuple[float, float]:
        """Return the highest gain over all cache sizes, and the share of memory it gives to the cache.

        ``hash_seconds`` is the processor time of a waiting tuple, ``every_seconds`` that of any tuple in either join.
        """
        shares, missed, room = self._sizes
        read = self.read_seconds
        gains = (read + hash_seconds + every_seconds) / (missed * (read / room + hash_seconds) + every_seconds)
        at = int(np.argmax(gains))
        return float(gains[at]), float(shares[at])

    def at(self, share: float) -> float:
        """Return the gain with a share of the memory given to the cache, if reading R is all that costs time."""
        cached = min(int(share * self.memory / _CACHED), self.rows)
        return (1.0 - share) / (1.0 - self.law.share(cached))

    @functools.cached_property
    def best_share(self) -> float:
        """The share of the memory at which the gain is highest, if reading R is all that costs time; 0 if none gains.

        >>> round(FrontStageGain(100_000_000, 1.2e9).best_share, 2), FrontStageGain(1_000_000, 12e6, 0.0).best_share
        (0.2, 0.0)
        """
        gain, share = max((self.at(share), share) for share in np.logspace(-5, -0.05, 100).tolist())
        return float(share) if gain > 1.0 else 0.0

    @property
    def bound(self) -> float:
        """The gain that no cost of the hash table can exceed."""
        cached = min(int(self.memory / _CACHED), self.rows)
        missed = 1.0 - self.law.share(cached)
        return 1.0 / missed if missed > 0 else float("inf")

    def hash_seconds_for(self, gain: float) -> float | None:
        """Return the processor time of a waiting tuple at which the model reaches ``gain``; None if never.

        >>> round(FrontStageGain(100_000_000, 1.2e9).best()[0], 1)
        3.8
        >>> FrontStageGain(100_000_000, 0.12e9).hash_seconds_for(5.0) is None
        True
        """
        low, high = 0.0, 1.0
        if self.best(low)[0] >= gain:
            return 0.0
        if self.best(high)[0] < gain:
            return None
        for _ in range(40):
            middle = (low + high) / 2
            if self.best(middle)[0] >= gain:
                high = middle
            else:
                low = middle
        return high


class NearestCosts(NamedTuple):
    """Processor times that bring the model as near as can be to two published gains, and what it gives with them."""

    hash_seconds: float
    every_seconds: float
    gains: tuple[float, float]
    apart: float
    """The larger of both relative distances from the published gains."""


def nearest_costs(models: tuple[FrontStageGain, FrontStageGain], published: tuple[float, float]) -> NearestCosts:
    """Look for processor times, of waiting tuples and of all, that would explain two published gains at once.

    >>> small, large = FrontStageGain(20_000_000, 1.2e9), FrontStageGain(100_000_000, 1.2e9)
    >>> nearest_costs((small, large), (4.5, 6.5)).apart > 0.3
    True
    """
    times = [0.0, *np.logspace(-8, -1, 43).tolist()]

    def at(hash_seconds: float, every_seconds: float) -> NearestCosts:
        first, second = (model.best(hash_seconds, every_seconds)[0] for model in models)
        apart = max(abs(first / published[0] - 1), abs(second / published[1] - 1))
        return NearestCosts(hash_seconds, every_seconds, (first, second), apart)

    return min((at(of_waiting, of_all) for of_waiting in times for of_all in times), key=lambda found: found.apart)


@dataclass(frozen=True)
class PinnedTurn:
    """A turn of X-HYBRIDJOIN by its paper's formulas: tuples that wait, rows that are pinned and read, rows of R.

    >>> turn = PinnedTurn(251_000, 28_400, 28_400, 2_000_000)
    >>> round(turn.matches), round(turn.expected)
    (4380, 12367)
    """

    waiting: float
    pinned: float
    swapped: float
    rows: int

    @property
    def _chances(self) -> tuple[float, float]:
        """``p_old`` and ``p_new``."""
        share = ZipfLaw(self.rows, 1.0).share(int(self.pinned))
        one = self.swapped / (self.rows - self.pinned)
        return one, share + (1.0 - share) * one

    @property
    def matches(self) -> float:
        """``w`` as printed (Eq. 9)."""
        old, new = (chance * (1.0 - chance) for chance in self._chances)
        return self.waiting * old / (1.0 + old - new)

    @property
    def expected(self) -> float:
        """``w`` with means for variances."""
        old, new = self._chances
        return self.waiting * old / (1.0 + old - new)
