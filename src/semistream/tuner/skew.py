"""Estimates the skew of a stream from a sample.

Ranks of a sample mislead: its most frequent key need not be the stream's, and most keys of a skewed stream are seen
once or never. So no ranks are used. We compare the *spectrum*: how many keys occur once, twice, three times and so on.
Under Zipf's law over ``n`` keys with exponent ``s``, the number of occurrences of the key of rank ``r`` in a sample of
``m`` tuples is Poisson distributed with mean ``m·p_r``. The number of keys with ``k`` occurrences is approximately
Poisson distributed too. The estimate is the exponent with the highest likelihood of the observed spectrum.

The Kolmogorov–Smirnov distance measures how well the law fits: the largest difference, over all ``k``, between the
observed and the expected share of tuples whose key occurs at most ``k`` times in the sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from semistream.core.arrays import Floats, Ints
from semistream.core.compiled import kernel
from semistream.core.errors import SemistreamError
from semistream.costs.basis.constants import load_constants
from semistream.costs.basis.popularity import key_classes
from semistream.costs.basis.setting import Setting
from semistream.workloads.keys.key_source import Shape

__all__ = ["Skew", "SkewError", "estimate_shape", "estimate_skew"]


_LEAST_SAMPLE = 100
MOST_EXPONENT = 4.0
GOOD_FIT = 0.05
"""Largest Kolmogorov–Smirnov distance that is called a good fit."""


class SkewError(SemistreamError, ValueError):
    """A sample that is too small for an estimate, or an invalid exponent."""


def check_exponent(exponent: float) -> None:
    """Raise for an invalid Zipf exponent."""
    if not 0 <= exponent <= MOST_EXPONENT:
        raise SkewError(f"the Zipf exponent must be from 0 to {MOST_EXPONENT:g}, not {exponent:g}")


@dataclass(frozen=True)
class Skew:
    """The skew of a stream, estimated from a sample."""

    exponent: float
    """``s`` of Zipf's law."""
    error: float
    """Standard error of the exponent, if the law holds."""
    distance: float
    """Kolmogorov–Smirnov distance between the sample's spectrum and the law's."""
    sample: int
    """Number of tuples in the sample."""
    distinct: int
    """Number of distinct keys in the sample."""
    shape: Shape = "random"
    """Position of the frequent keys in R."""

    @property
    def fits(self) -> bool:
        """Whether Zipf's law describes the sample well."""
        return self.distance <= GOOD_FIT


def estimate_skew(keys: Ints, distinct_in_relation: int, *, shape: Shape = "random") -> Skew:
    """Estimate the exponent from keys of a sample.

    Parameters
    ----------
    keys
        Key of each tuple of the sample, as any integers.
    distinct_in_relation
        Number of distinct keys that the stream can have: the keys of R.
    shape
        Copied to the result; see `estimate_shape`.

    Examples
    --------
    >>> from semistream.workloads import ZipfKeys
    >>> skew = estimate_skew(ZipfKeys(1_000_000, exponent=0.8, shape="random").keys(0, 50_000), 1_000_000)
    >>> abs(skew.exponent - 0.8) < 0.02, skew.fits
    (True, True)
    """
    if keys.size < _LEAST_SAMPLE:
        raise SkewError(
            f"a sample of {keys.size} tuples with a key is too small to estimate the skew; give at least "
            f"{_LEAST_SAMPLE}, better 10,000, or the exponent itself"
        )
    counts = np.unique(keys, return_counts=True)[1]
    total = max(distinct_in_relation, counts.size)
    seen, edges = _spectrum(counts)

    def likelihood(exponent: float) -> float:
        expected = np.maximum(_expected(total, exponent, keys.size, edges), 1e-9)
        return float(np.sum(seen * np.log(expected) - expected))

    # coarse search first: the likelihood has one maximum, but is flat far from it
    grid = np.linspace(0.0, MOST_EXPONENT, 41)
    best = int(np.argmax([likelihood(float(s)) for s in grid]))
    low, high = float(grid[max(0, best - 1)]), float(grid[min(grid.size - 1, best + 1)])
    for _ in range(40):
        left, right = low + 0.382 * (high - low), low + 0.618 * (high - low)
        if likelihood(left) < likelihood(right):
            low = left
        else:
            high = right
    exponent = (low + high) / 2
    exponent = 0.0 if exponent < 1e-3 else exponent
    error = _spread(likelihood, exponent)
    return Skew(exponent, error, _distance(seen, edges, counts, total, exponent), int(keys.size), counts.size, shape)


def _spread(likelihood: Callable[[float], float], best: float) -> float:
    """Return the standard error: the distance at which the likelihood falls to e^-½ of its maximum, on the wider side.

    Near 0 the exponent hardly changes a sample, so that side may be much wider.
    """
    goal = likelihood(best) - 0.5
    sides = []
    for end in (0.0, MOST_EXPONENT):
        if likelihood(end) > goal:
            sides.append(abs(end - best))
            continue
        inside, outside = best, end
        for _ in range(20):
            middle = (inside + outside) / 2
            if likelihood(middle) > goal:
                inside = middle
            else:
                outside = middle
        sides.append(abs(inside - best))
    return max(sides)


def estimate_shape(pages: Ints, setting: Setting) -> Shape:
    """Return the position of the frequent keys in R, from the pages of a sample's keys.

    If they are together, a sample uses fewer pages than if they were spread at random. The number of distinct pages is
    compared with the expectation for both. For a stream without skew both are the same, and the result is ``"random"``.
    """
    found = float(np.unique(pages).size)
    expected: dict[Shape, float] = {}
    shapes: tuple[Shape, Shape] = ("random", "noperm")
    for shape in shapes:
        units = key_classes(setting.replace(shape=shape)).units(setting.replace(shape=shape), 1)
        expected[shape] = units.total(-np.expm1(-units.popularity * pages.size))
    return min(shapes, key=lambda shape: abs(math.log(max(found, 1.0) / max(expected[shape], 1.0))))


def _spectrum(counts: Ints) -> tuple[Floats, Ints]:
    """Return the number of keys with a count in each bin, and the bins' borders: 1, 2, …, 8, then wider and wider."""
    edges = [1, 2, 3, 4, 5, 6, 7, 8]
    while edges[-1] <= counts.max():
        edges.append(math.ceil(edges[-1] * 1.5))
    borders = np.array(edges, np.int64)
    return np.histogram(counts, borders)[0].astype(np.float64), borders


def _expected(total: int, exponent: float, sample: int, edges: Ints) -> Floats:
    """Return the expected number of keys with a count in each bin."""
    classes = key_classes(Setting.planned(total, exponent=exponent, constants=load_constants("disk-2010")))
    mean = classes.popularity * sample
    below = np.array([_poisson_below(mean, int(edge)) for edge in edges])
    expected: Floats = np.diff(below, axis=0) @ classes.count
    return expected


def _poisson_below(mean: Floats, limit: int) -> Floats:
    """Return the probability of fewer than ``limit`` occurrences: exact for few, else by Wilson and Hilferty."""
    if limit <= 8:
        term = np.exp(-mean)
        total = np.zeros_like(mean)
        for k in range(limit):
            total += term
            term = term * mean / (k + 1)
        return total
    degrees = float(limit)
    return _normal_above((np.cbrt(mean / degrees) - (1.0 - 1.0 / (9.0 * degrees))) * math.sqrt(9.0 * degrees))


@kernel
def _normal_above(z: Floats) -> Floats:
    chance = np.empty_like(z)
    for i in range(z.size):
        chance[i] = 0.5 * math.erfc(z[i] / math.sqrt(2.0))
    return chance


def _distance(seen: Floats, edges: Ints, counts: Ints, total: int, exponent: float) -> float:
    """Return the largest difference between observed and expected shares of tuples below any border."""
    sample = int(counts.sum())
    places = np.searchsorted(edges, counts, side="right") - 1
    tuples = np.bincount(places, weights=counts, minlength=seen.size)[: seen.size]
    classes = key_classes(Setting.planned(total, exponent=exponent, constants=load_constants("disk-2010")))
    mean = classes.popularity * sample
    # E[k; k in bin] = mean · P(k - 1 in bin shifted by one)
    shares = []
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        within = _poisson_below(mean, high - 1) - _poisson_below(mean, low - 1)
        shares.append(float(np.dot(classes.count, mean * within)))
    expected = np.cumsum(shares) / sample
    return float(np.max(np.abs(np.cumsum(tuples) / sample - expected)))
