"""Zipf's law over ranks 1 … n, for any exponent from 0 (uniform) upwards, exact and without a table.

Rank ``k`` has probability ``k^-s / H(n, s)``, where ``H(n, s) = Σ_{k=1..n} k^-s``.

**Drawing.** Rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate variates from
monotone discrete distributions", ACM TOMACS 6(3), 1996). Draw a point under the curve ``x^-s`` by inverting
its area, and round ``x`` to the nearest rank ``k``. The curve is convex, so the area over ``[k-½, k+½]`` is a
little more than ``k^-s``; points in that excess are rejected, and what is left of each rank is its
probability exactly. Rank 1 is cut to size, so nothing is rejected there. At exponent 1 fewer than 1 % of all
points are. The cost is the same for ten ranks and for 10⁹.

The area is ``ln x`` at ``s = 1``. Elsewhere it is ``x^(1-s) / (1-s)``, which for ``s > 1`` measures area
*from the far end*, so that floating point resolves the rare ranks and not only the frequent ones; close to 1
that form loses its digits to cancellation, and ``expm1((1-s) ln x) / (1-s)`` stands in.

HYBRIDJOIN (Fig. 7, lines 28–31) draws ``⌊x⌋`` from the continuous density ``1/x`` instead, which gives rank 1
``ln 2`` where Zipf's law gives 1. This is Zipf's law.

Example
-------
>>> from semistream.workloads.keys.draws import sequence_seed
>>> law = ZipfLaw(size=1_000_000_000, exponent=1.0)
>>> ranks = law.ranks(sequence_seed(1, "example"), start=0, count=100_000)
>>> round(law.share(1000), 3), round(float((ranks <= 1000).mean()), 2)
(0.351, 0.35)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semistream.core.compiled import kernel
from semistream.workloads.keys.draws import draw_word, integers, scramble, word_fraction

__all__ = ["MAX_RANKS", "ZipfLaw", "harmonic"]

MAX_RANKS = 2**40
"""Maximum number of ranks. Beyond it, a double does not separate the borders of neighbouring ranks well."""

_NEAR_ONE = 1e-3
_RETRY = np.uint64(0xD1B54A32D192ED03)
_EXACT_TERMS = 256


def harmonic(count: int, exponent: float) -> float:
    """Return ``H(count, exponent)``, the sum of ``k^-exponent`` over ``k = 1 … count``, in constant time.

    The first 256 terms are summed; the rest follows from the Euler–Maclaurin formula, whose error there is
    below the rounding of a double.

    >>> round(harmonic(10, 1.0), 6), harmonic(5, 0.0)
    (2.928968, 5.0)
    """
    terms = np.arange(1, min(count, _EXACT_TERMS) + 1, dtype=np.float64) ** -exponent
    head = float(terms[::-1].sum())  # smallest first, for precision
    if count <= _EXACT_TERMS:
        return head
    a, b, s = float(_EXACT_TERMS), float(count), exponent
    growth = (1.0 - s) * math.log(b / a)
    # ∫ x^-s over [a, b], written so that it passes smoothly through s = 1.
    area = a ** (1.0 - s) * (math.log(b / a) if s == 1.0 else math.expm1(growth) / (1.0 - s))
    # Sum over a+1 … b: the area, half the change at the ends, and the corrections by odd derivatives.
    ends = (b**-s - a**-s) / 2.0
    first = s * (a ** (-s - 1.0) - b ** (-s - 1.0)) / 12.0
    third = s * (s + 1.0) * (s + 2.0) * (a ** (-s - 3.0) - b ** (-s - 3.0)) / 720.0
    return float(head + area + ends + first - third)


@kernel
def _area(x: float, exponent: float) -> float:
    rest = 1.0 - exponent
    if exponent == 1.0:
        return math.log(x)
    if abs(rest) < _NEAR_ONE:
        return math.expm1(rest * math.log(x)) / rest
    return math.exp(rest * math.log(x)) / rest


@kernel
def _area_inverse(area: float, exponent: float) -> float:
    rest = 1.0 - exponent
    if exponent == 1.0:
        return math.exp(area)
    if abs(rest) < _NEAR_ONE:
        return math.exp(math.log1p(rest * area) / rest)
    return math.exp(math.log(rest * area) / rest)


@kernel
def _surely_kept(exponent: float) -> float:
    """Return how far left of its rank a point may be and still be kept, for any rank.

    For rank k that is ``k - x`` with ``x`` where the excess ends, and it grows with k; so rank 2 decides.
    """
    return 2.0 - _area_inverse(_area(2.5, exponent) - math.exp(-exponent * math.log(2.0)), exponent)


@kernel
def _fill_ranks(seed: np.uint64, start: int, size: int, exponent: float, out: NDArray[np.int64]) -> None:
    nearest_end = _area(1.5, exponent) - 1.0
    far_end = _area(size + 0.5, exponent)
    surely_kept = _surely_kept(exponent)
    for i in range(out.size):
        word = draw_word(seed, start + i)
        while True:
            area = far_end + word_fraction(word) * (nearest_end - far_end)
            x = _area_inverse(area, exponent)
            # Compared before it is rounded: at a very high exponent x may overflow to infinity.
            if x >= size:
                rank = size
            else:
                rank = max(int(x + 0.5), 1)
            if rank - x <= surely_kept:
                break
            if area >= _area(rank + 0.5, exponent) - math.exp(-exponent * math.log(rank)):
                break
            word = scramble(word ^ _RETRY)
        out[i] = rank


@dataclass(frozen=True, slots=True)
class ZipfLaw:
    """Zipf's law over ``size`` ranks.

    Parameters
    ----------
    size
        Number of ranks, at most 2⁴⁰.
    exponent
        0 is uniform. 1 is the papers' "skew 1": the most frequent fifth of 2000 ranks gets 80 % of the draws, of a
        million ranks 89 %. Above 1 the tail falls quickly. All values cost about the same.
    """

    size: int
    exponent: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_RANKS:
            raise ValueError(f"size must be from 1 to {MAX_RANKS} ranks, not {self.size}")
        if not (math.isfinite(self.exponent) and self.exponent >= 0):
            raise ValueError(f"exponent must be at least 0 (uniform) and finite, not {self.exponent}")

    def ranks(self, seed: np.uint64, start: int, count: int) -> NDArray[np.int64]:
        """Return the ranks, from 1, at positions ``start`` … ``start + count - 1`` of a sequence."""
        if self.exponent == 0:
            return integers(seed, start, count, below=self.size) + 1
        out = np.empty(count, dtype=np.int64)
        _fill_ranks(seed, start, self.size, float(self.exponent), out)
        return out

    def probability(self, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the probability of each of ``ranks``."""
        weights: NDArray[np.float64] = ranks.astype(np.float64) ** -self.exponent
        return weights / harmonic(self.size, self.exponent)

    def share(self, top: int) -> float:
        """Return the share of all draws that the ``top`` most frequent ranks get: ``H(top, s) / H(size, s)``.

        >>> round(ZipfLaw(2000, 1.0).share(400), 2)
        0.8
        """
        if top <= 0:
            return 0.0
        return harmonic(min(top, self.size), self.exponent) / harmonic(self.size, self.exponent)
