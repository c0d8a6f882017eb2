"""What the papers' own models allow, which explains published figures that are not met.

CMESHJOIN §3.2. A cached tuple has ``u`` bytes, ``h`` tuples of ``R_t`` are cached, they answer the share ``p(h)`` of
the stream, and MESHJOIN's rate is proportional to its memory. If only reading R costs time, the front stage's gain is

    ``gain(h) = (M - u·h) / M / (1 - p(h))``

Suppose that each waiting tuple also costs ``c`` seconds of processor time in the hash table, and that reading costs
``t`` seconds per tuple at full memory. Then MESHJOIN needs ``t + c`` per tuple and CMESHJOIN
``(1 - p)·(t·M / (M - u·h) + c)``. Whatever ``c`` is, the gain stays below ``1 / (1 - p(M / u))``: all memory spent on
the cache, and waiting tuples at no cost. Every tuple costs ``e`` seconds to read and emit in both joins. This is added
to both and moves their ratio towards 1.

X-HYBRIDJOIN §6.3. The part of R that is not pinned has ``n`` partitions, pinned rows answer the share ``p_N`` of the
stream, ``w`` tuples enter per iteration and ``h_S`` wait. The paper gives for the matches of an iteration (Eq. 9)

    ``w = (h_S - w)·p_old·(1 - p_old) + w·p_new·(1 - p_new)``,   ``p_old = 1/n``,   ``p_new = p_N + (1 - p_N)/n``

These are the variances of binomial counts; their means have no factor ``1 - p``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from semistream.core.arrays import Floats
from semistream.workloads.keys.zipf import ZipfLaw

__all__ = ["FrontStageGain", "NearestCosts", "PinnedTurn", "nearest_costs"]


_CACHED = 128  # bytes of a cached tuple in the paper: 120 + 8
_WAITING = 164  # bytes of a waiting tuple in the paper: 8 times its 20, and 4 in the queue
_BYTES_PER_SECOND = 100e6  # sequential reads of the simulated disk


@dataclass(frozen=True)
class FrontStageGain:
    """The gain over MESHJOIN by CMESHJOIN's model, with the paper's bytes: 120 + 8 cached, 164 waiting."""

    rows: int
    memory: float
    exponent: float = 1.0
    row_bytes: int = 120

    @property
    def law(self) -> ZipfLaw:
        """Frequencies of the keys."""
        return ZipfLaw(self.rows, self.exponent)

    @property
    def read_seconds(self) -> float:
        """``t``: seconds to read R once, divided by the tuples that memory holds."""
        return self.rows * self.row_bytes / _BYTES_PER_SECOND / (self.memory / _WAITING)

    @functools.cached_property
    def _sizes(self) -> tuple[Floats, Floats, Floats]:
        """Sizes of the cache as shares of the memory; the share of the stream it misses; the memory it leaves."""
        most = min(self.memory / _CACHED, self.rows)
        shares = np.linspace(0.005, 0.995, 199)
        missed = np.array([1.0 - self.law.share(int(share * most)) for share in shares])
        return shares * most * _CACHED / self.memory, missed, 1.0 - shares * most * _CACHED / self.memory

    def best(self, hash_seconds: float = 0.0, every_seconds: float = 0.0) -> tuple[float, float]:
        """Return the highest gain over all cache sizes, and the cache's share of the memory there.

        ``hash_seconds`` is the processor time per waiting tuple, ``every_seconds`` the time per tuple in both joins.
        """
        shares, missed, room = self._sizes
        read = self.read_seconds
        gains = (read + hash_seconds + every_seconds) / (missed * (read / room + hash_seconds) + every_seconds)
        at = int(np.argmax(gains))
        return float(gains[at]), float(shares[at])

    def at(self, share: float) -> float:
        """Return the gain with a share of the memory given to the cache, if only reading R costs time."""
        cached = min(int(share * self.memory / _CACHED), self.rows)
        return (1.0 - share) / (1.0 - self.law.share(cached))

    @functools.cached_property
    def best_share(self) -> float:
        """The cache's share of the memory with the highest gain, if only reading R costs time; 0 if no share gains.

        >>> round(FrontStageGain(100_000_000, 1.2e9).best_share, 2), FrontStageGain(1_000_000, 12e6, 0.0).best_share
        (0.2, 0.0)
        """
        gain, share = max((self.at(share), share) for share in np.logspace(-5, -0.05, 100).tolist())
        return float(share) if gain > 1.0 else 0.0

    @property
    def bound(self) -> float:
        """An upper bound of the gain for any cost of the hash table."""
        cached = min(int(self.memory / _CACHED), self.rows)
        missed = 1.0 - self.law.share(cached)
        return 1.0 / missed if missed > 0 else float("inf")

    def hash_seconds_for(self, gain: float) -> float | None:
        """Return the processor time per waiting tuple at which the model reaches ``gain``; None if it never does.

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
    """The processor times with which the model is closest to two published gains, and the gains it gives then."""

    hash_seconds: float
    every_seconds: float
    gains: tuple[float, float]
    apart: float
    """The larger of the two relative distances from the published gains."""


def nearest_costs(models: tuple[FrontStageGain, FrontStageGain], published: tuple[float, float]) -> NearestCosts:
    """Search for processor times, per waiting tuple and per tuple, that would explain two published gains together.

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
    """An iteration of X-HYBRIDJOIN by its paper's formulas: waiting tuples, rows pinned, rows read, rows of R.

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
        """``w`` with means instead of variances."""
        old, new = self._chances
        return self.waiting * old / (1.0 + old - new)
