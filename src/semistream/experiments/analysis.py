"""What the papers' own models allow: the reasons behind published figures that are not met.

CMESHJOIN §3.2. With ``u`` bytes a cached tuple, ``h`` tuples cached of ``R_t``, ``p(h)`` the share of the stream they
answer, and MESHJOIN's rate proportional to the memory it has, the gain of the front stage is

    ``gain(h) = (M - u·h) / M / (1 - p(h))``

when reading R is all that costs time. If each waiting tuple also costs ``c`` seconds of processor time in the hash
table, and reading costs ``t`` seconds a tuple at full memory, MESHJOIN takes ``t + c`` a tuple and CMESHJOIN
``(1 - p)·(t·M / (M - u·h) + c)``. Whatever ``c`` is, the gain stays below ``1 / (1 - p(M / u))``: all memory spent on
the cache, and waiting tuples for free.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semistream.stream.zipf import ZipfLaw

__all__ = ["FrontStageGain"]

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

    def gain(self, cached: float, hash_seconds: float = 0.0) -> float:
        """Return the gain with ``cached`` tuples in ``H_R`` and so much processor time for a waiting tuple."""
        missed = 1.0 - self.law.share(int(cached))
        room = 1.0 - cached * _CACHED / self.memory
        read = self.read_seconds
        return (read + hash_seconds) / (missed * (read / room + hash_seconds))

    def best(self, hash_seconds: float = 0.0) -> tuple[float, float]:
        """Return the highest gain over all cache sizes, and the share of memory it gives to the cache."""
        most = min(self.memory / _CACHED, self.rows)
        shares = np.linspace(0.005, 0.995, 199)
        gains = [self.gain(share * most, hash_seconds) for share in shares]
        at = int(np.argmax(gains))
        return gains[at], float(shares[at])

    @property
    def bound(self) -> float:
        """The gain that no cost of the hash table can exceed."""
        cached = min(int(self.memory / _CACHED), self.rows)
        missed = 1.0 - self.law.share(cached)
        return 1.0 / missed if missed > 0 else float("inf")

    def hash_seconds_for(self, gain: float) -> float | None:
        """Return the processor time of a waiting tuple at which the model reaches ``gain``; None if never.

        >>> float(round(FrontStageGain(100_000_000, 1.2e9).best()[0], 1))
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
