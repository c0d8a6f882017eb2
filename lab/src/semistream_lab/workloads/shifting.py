"""A moving hot set: Zipf keys whose frequent keys change at given positions of the stream.

For tests of adaptivity. The skew never changes. A join that has learnt the frequent keys has a high hit rate
until a shift, a low one right after it, and the old one again when it has learnt the new keys.

Example
-------
>>> source = ShiftingKeys(size=1_000_000, shifts=(50_000,), seed=5)
>>> before, after = source.keys(0, 50_000), source.keys(50_000, 50_000)
>>> old = source.hottest(100, position=0)
>>> round(float(np.isin(before, old).mean()), 2), round(float(np.isin(after, old).mean()), 2)
(0.36, 0.0)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from semistream.workloads.keys.draws import sequence_seed
from semistream.workloads.keys.key_source import KeySource
from semistream.workloads.keys.permutation import Permutation
from semistream.workloads.keys.zipf import ZipfLaw

__all__ = ["ShiftingKeys"]


@dataclass(frozen=True, slots=True)
class ShiftingKeys(KeySource):
    """Zipf keys of shape ``random``, with a new permutation at each of ``shifts``.

    Parameters
    ----------
    size, exponent
        As for `ZipfKeys`.
    shifts
        Ascending positions in the stream. The tuple at a position is the first of the new phase.
    """

    size: int
    shifts: tuple[int, ...]
    exponent: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        ZipfLaw(self.size, self.exponent)
        if any(shift < 1 for shift in self.shifts) or list(self.shifts) != sorted(set(self.shifts)):
            raise ValueError(f"shifts must be ascending positions of at least 1, not {self.shifts}")

    def hottest(self, count: int, position: int) -> NDArray[np.int64]:
        """Return the ``count`` most frequent keys at a position, the most frequent first."""
        return self._permutation(self._phase(position)).apply(np.arange(min(count, self.size)))

    def _phase(self, position: int) -> int:
        return sum(shift <= position for shift in self.shifts)

    def _permutation(self, phase: int) -> Permutation:
        return Permutation(self.size, int(sequence_seed(self.seed, "phase", phase)))

    def _keys(self, start: int, count: int) -> NDArray[np.int64]:
        seed = sequence_seed(self.seed, "shifting keys")
        keys = ZipfLaw(self.size, self.exponent).ranks(seed, start, count)
        keys -= 1
        borders = [start, *(shift for shift in self.shifts if start < shift < start + count), start + count]
        for begin, end in pairwise(borders):
            phase = slice(begin - start, end - start)
            keys[phase] = self._permutation(self._phase(begin)).apply(keys[phase])
        return keys
