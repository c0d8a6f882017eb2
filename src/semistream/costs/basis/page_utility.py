"""The pages of R as SSIJ sees them: how many tuples want each, and which of them stay cached."""

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
    """Pages of each class, the most popular first."""
    popularity: Floats
    """Share of the tuples that find their rows on a page, each on one."""
    demand: Floats
    """Tuples that want the page; one whose rows are on several wants them all. On average: see `shared`."""
    keys: Floats
    """Keys of each class that a cache before the join does not hold."""
    own: Floats
    """Share of the tuples that ask for a key."""
    page_of_key: Floats
    """Popularity of the page of a key."""
    pages_a_key: float
    each: float
    """Pages of R for each key, 1 at least. More are next to each other and wanted together: parts of the outer ones."""
    together: int
    """Tuples looked up together."""
    unique: bool
    shared: float = 0.0
    """Share of the pages that hold rows of two keys, if a key has several pages. They are wanted with either, so that
    they are cached before the pages of one key are, without which no tuple is answered."""
    hotter: Floats | float = 1.0
    """Such pages whose more popular key is in a class, for each that would be there if all classes had as many."""
    neighbour: Floats | float = 0.0
    """Tuples that want such a page for its other key."""

    @classmethod
    def of(cls, setting: Setting, keys: KeyClasses, together: int) -> PageClasses:
        """Return the pages of a setting for tuples that ``keys`` says no cache answers before."""
        classes = keys.units(setting, 1).items()
        each = max(1.0, setting.pages / setting.keys)  # a frequent key has pages of its own, as popular as itself
        a_key = max(each, _pages_a_key(setting))
        own, page = keys.in_units(setting, 1)
        shared = a_key / each - 1.0 if each > 1.0 else 0.0
        hotter: Floats | float = 1.0
        other = classes.popularity
        if setting.shape == "random" and shared > 0.0:  # a key lies beside any
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
        """Pages of one key, and of two if there are such: their share, and the tuples that want each."""
        if self.shared <= 0.0:
            return [(1.0, self.demand)]
        one = self.demand / (1.0 + self.shared)
        return [(1.0 - self.shared, one), (self.shared * self.hotter, one + self.neighbour)]

    def of_keys(self, shares: Floats) -> Floats:
        """Return for each class of keys what is known for pages."""
        return np.interp(self.page_of_key, self.popularity[::-1], shares[::-1])

    def density(self, shares: Floats, cycle: float) -> Floats:
        """Return the share of the pages of each class that tuples of a cycle wait for.

        ``shares``: of pages that are cached, a row for each of `kinds`.
        """
        parts = (
            part * (1.0 - cached) * -np.expm1(-demand * cycle)
            for (part, demand), cached in zip(self.kinds, shares, strict=True)
        )
        return np.asarray(sum(parts))

    def wanted(self, shares: Floats, cycle: float) -> float:
        """Return the pages that tuples of a cycle wait for."""
        return float(np.dot(self.count, self.density(shares, cycle)))

    def chances(self, shares: Floats, cycle: float) -> Floats:
        """Return the chance that a key of each class is waited for."""
        return np.asarray((1.0 - shares[0]) * -np.expm1(-self.kinds[0][1] * cycle))

    def leaders(self, shares: Floats, cycle: float, waiting: float, wanted: float) -> float:
        """Return how many of the waiting tuples lead."""
        absent = self.keys * (1.0 - self.of_keys(shares[0]))
        apart = float(np.dot(absent, -np.expm1(-self.own * self.together))) * cycle / self.together
        every = float(np.dot(absent, -np.expm1(-self.own * cycle)))
        searched = 0.0 if self.unique else min(1.0, SEARCHED * wanted / max(every * self.pages_a_key, 1e-9))
        return min(waiting, searched * every + (1.0 - searched) * apart)


def _pages_a_key(setting: Setting) -> float:
    """Return how many pages have rows of a key: fewer where keys begin with pages, as their numbers of rows make it."""
    rows, a_page = setting.rows_per_key, setting.rows_per_page
    whole = round(a_page)
    if rows != round(rows) or abs(a_page - whole) > 1e-3 * whole:
        return 1.0 + (rows - 1.0) / a_page
    return 1.0 + (rows - math.gcd(round(rows), whole)) / whole


def kept_pages(items: PageClasses, room: float, cycle: float, kept: float) -> Floats:
    """Return the chance of each page to be cached, if ``room`` of most utility are; a row for each of their kinds."""
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
    """Return the chance that ``scale`` times a Poisson count, ``mean`` on average, reaches a threshold.

    Right far from the mean too: of an even stream those few keys matter that were asked for three times as often as
    others, and there a normal curve is too low by an order, a logistic one too high by a factor. Of small counts
    it is the series of the incomplete gamma function, of others Wilson and Hilferty's cube root.
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
    """Write the chance of each page to be cached, if utilities from ``threshold`` on are.

    Below 1 it is the share that goes of cached pages which nobody wanted; one that is not cached comes if it is wanted.
    """
    least = max(threshold, 1.0)
    for i in range(mean.size):
        comes = _above(mean[i], 1.0, least)
        # of all phases so far, each counting ``kept`` of what the next one does: variance over mean is the scale
        stays = 1.0 - min(threshold, 1.0) * (1.0 - _above(mean[i] / (1.0 - kept), 1.0 / (1.0 + kept), least))
        out[i] = comes / max(comes + 1.0 - stays, 1e-12)


@kernel
def _threshold(count: Floats, mean: Floats, kept: float, room: float, chances: Floats) -> float:
    """Return the utility from which on ``room`` pages are cached."""
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
