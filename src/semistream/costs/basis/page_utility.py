"""The pages of R as SSIJ sees them: how many tuples need each page, and which pages stay cached."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from semistream.core.arrays import Floats
from semistream.core.compiled import kernel
from semistream.costs.basis.popularity import KeyClasses
from semistream.costs.basis.setting import Setting
from semistream.joins.ssij.inverted_layout import SEARCHED

__all__ = ["PageClasses", "kept_pages"]

_SERIES = 6.0


@dataclass(frozen=True)
class PageClasses:
    """Pages of R in classes, and the keys on them."""

    count: Floats
    """Number of pages of each class, the most popular class first."""
    popularity: Floats
    """Share of the tuples that find their rows on one page of the class."""
    demand: Floats
    """Share of the tuples that need the page, on average (see `shared`). A tuple whose rows are on several pages needs
    all of them."""
    keys: Floats
    """Number of keys of each class that a cache in front of the join does not hold."""
    own: Floats
    """Share of the tuples that have a key of the class."""
    page_of_key: Floats
    """Popularity of the page of a key."""
    pages_a_key: float
    each: float
    """Pages of R per key, at least 1. Several pages of a key are neighbours and are needed together."""
    together: int
    """Tuples looked up together."""
    unique: bool
    shared: float = 0.0
    """Share of the pages that hold rows of two keys, if a key has several pages. Both keys need them, so they are
    cached earlier than pages of one key. A tuple is answered only if all pages of its key are cached."""
    hotter: Floats | float = 1.0
    """Number of shared pages whose more popular key is in a class, relative to an even distribution over classes."""
    neighbour: Floats | float = 0.0
    """Share of the tuples that need a shared page because of its other key."""

    @classmethod
    def of(cls, setting: Setting, keys: KeyClasses, together: int) -> PageClasses:
        """Return the pages of a setting for the tuples that no cache answers earlier, as given by ``keys``."""
        classes = keys.units(setting, 1).items()
        each = max(1.0, setting.pages / setting.keys)  # a frequent key has pages of its own, as popular as itself
        a_key = max(each, _pages_a_key(setting))
        own, page = keys.in_units(setting, 1)
        shared = a_key / each - 1.0 if each > 1.0 else 0.0
        hotter: Floats | float = 1.0
        other = classes.popularity
        if setting.shape == "random" and shared > 0.0:  # any key can be its neighbour
            colder = 1.0 - (np.cumsum(classes.count) - classes.count / 2.0) / classes.count.sum()
            rest = np.cumsum((classes.count * other)[::-1])[::-1] - classes.count * other / 2.0
            hotter, other = 2.0 * colder, rest / (colder * classes.count.sum())
        return cls(
            classes.count * each, classes.popularity / each, classes.popularity * a_key / each,
            keys.count * keys.missing, own, page / each, a_key, each, together,
            setting.rows_per_key <= 1.0, shared, hotter, other,
        )  # fmt: skip

    @property
    def kinds(self) -> list[tuple[Floats | float, Floats]]:
        """Pages of one key, and pages of two keys if there are any: their share, and the tuples that need each."""
        if self.shared <= 0.0:
            return [(1.0, self.demand)]
        one = self.demand / (1.0 + self.shared)
        return [(1.0 - self.shared, one), (self.shared * self.hotter, one + self.neighbour)]

    def of_keys(self, shares: Floats) -> Floats:
        """Return values of pages for each class of keys."""
        return np.interp(self.page_of_key, self.popularity[::-1], shares[::-1])

    def density(self, shares: Floats, cycle: float) -> Floats:
        """Return the share of the pages of each class that tuples of a cycle wait for.

        ``shares`` are the shares of cached pages, one row for each of `kinds`.
        """
        parts = (
            part * (1.0 - cached) * -np.expm1(-demand * cycle)
            for (part, demand), cached in zip(self.kinds, shares, strict=True)
        )
        return np.asarray(sum(parts))

    def wanted(self, shares: Floats, cycle: float) -> float:
        """Return the number of pages that the tuples of a cycle wait for."""
        return float(np.dot(self.count, self.density(shares, cycle)))

    def chances(self, shares: Floats, cycle: float) -> Floats:
        """Return, for each class, the probability that a tuple waits for a key."""
        return np.asarray((1.0 - shares[0]) * -np.expm1(-self.kinds[0][1] * cycle))

    def leaders(self, shares: Floats, cycle: float, waiting: float, wanted: float) -> float:
        """Return how many of the waiting tuples are leaders: the first tuples of their keys."""
        absent = self.keys * (1.0 - self.of_keys(shares[0]))
        apart = float(np.dot(absent, -np.expm1(-self.own * self.together))) * cycle / self.together
        every = float(np.dot(absent, -np.expm1(-self.own * cycle)))
        searched = 0.0 if self.unique else min(1.0, SEARCHED * wanted / max(every * self.pages_a_key, 1e-9))
        return min(waiting, searched * every + (1.0 - searched) * apart)


def _pages_a_key(setting: Setting) -> float:
    """Return the number of pages with rows of a key: fewer, if keys start at page boundaries."""
    rows, a_page = setting.rows_per_key, setting.rows_per_page
    whole = round(a_page)
    if rows != round(rows) or abs(a_page - whole) > 1e-3 * whole:
        return 1.0 + (rows - 1.0) / a_page
    return 1.0 + (rows - math.gcd(round(rows), whole)) / whole


def kept_pages(items: PageClasses, room: float, cycle: float, kept: float) -> Floats:
    """Return the probability that a page is cached if the ``room`` pages of highest utility are, one row per kind."""
    kinds = items.kinds
    if room < 1.0:
        return np.zeros((len(kinds), items.count.size))
    if room >= items.count.sum():
        return np.ones((len(kinds), items.count.size))
    count = np.concatenate([part * items.count for part, _ in kinds])
    mean = np.concatenate([demand for _, demand in kinds]) * cycle
    chances = np.empty(mean.size)
    threshold = _threshold(count, mean, kept, room, chances)
    _cached_with(mean, kept, threshold, chances)
    return chances.reshape(len(kinds), -1)


@kernel
def _above(mean: float, scale: float, threshold: float) -> float:
    """Return the probability that ``scale`` times a Poisson count with the given ``mean`` reaches a threshold.

    It must be accurate far from the mean. In a uniform stream, the few keys matter that occurred three times as often
    as others. There a normal distribution is too low by an order of magnitude, and a logistic one is several times too
    high. Small counts use the series of the incomplete gamma function, others Wilson and Hilferty's cube root.
    """
    expected, count = mean / scale, threshold / scale
    if expected < _SERIES:
        term = math.exp(count * math.log(max(expected, 1e-300)) - expected - math.lgamma(count + 1.0))
        total, below = 0.0, count
        while term > 1e-9 * total:
            total += term
            below += 1.0
            term *= expected / below
        return min(1.0, total)
    root = math.pow(expected / count, 1.0 / 3.0)
    return 0.5 * math.erfc((1.0 - 1.0 / (9.0 * count) - root) * 3.0 * math.sqrt(count / 2.0))


@kernel
def _cached_with(mean: Floats, kept: float, threshold: float, out: Floats) -> None:
    """Write the probability that each page is cached if all utilities of at least ``threshold`` are.

    A threshold below 1 is the share of unused cached pages that is evicted; then every page that is needed is admitted.
    """
    least = max(threshold, 1.0)
    for i in range(mean.size):
        comes = _above(mean[i], 1.0, least)
        # sum over all earlier phases, each weighted ``kept`` times the next one: variance over mean is the scale
        stays = 1.0 - min(threshold, 1.0) * (1.0 - _above(mean[i] / (1.0 - kept), 1.0 / (1.0 + kept), least))
        out[i] = comes / max(comes + 1.0 - stays, 1e-12)


@kernel
def _threshold(count: Floats, mean: Floats, kept: float, room: float, chances: Floats) -> float:
    """Return the lowest utility of the ``room`` cached pages."""
    most = mean.max() / (1.0 - kept)
    low, high = 1e-6, most + 12.0 * math.sqrt(most) + 12.0
    while high - low > 1e-6 * high:
        middle = math.sqrt(low * high)
        _cached_with(mean, kept, middle, chances)
        if np.sum(count * chances) > room:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)
