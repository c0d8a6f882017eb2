"""How often keys and pages of R are requested, in a few hundred classes instead of one by one.

Zipf's law over a hundred million keys is smooth past its first ranks, so ranks are grouped into classes that grow by a
few percent. A cache before the join answers some keys: each class has the share of its keys that are not cached
(``missing``). A join reads *units*, which are pages or partitions of several pages. How often a unit is requested
depends on the position of its keys in R:

- ``noperm``: neighbours in R are neighbours in rank, so the popularity of a unit is the sum over its ranks;
- ``random``: a unit is a random draw of keys. The most popular key of a unit is modelled individually. The others are
  modelled by their mean, which is accurate because there are many.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

import numpy as np

from semistream.core.arrays import Floats
from semistream.costs.basis.setting import Setting
from semistream.workloads.keys.key_source import Shape
from semistream.workloads.keys.zipf import harmonic

__all__ = ["KeyClasses", "Units", "key_classes"]


_SINGLE = 64
_GROWTH = 1.08
_NEVER = 1e-15


@dataclass(frozen=True)
class Units:
    """Units of reading, in classes of equal popularity."""

    popularity: Floats
    """Share of the tuples that need one unit of the class."""
    count: Floats
    """Number of units in the class."""
    neighbours: bool
    """Whether neighbouring units in R are in the same class, or in any class."""
    filling: Floats | None = None
    """Average number of tuples that wait for a unit, divided by half the number that one read answers; None is 1."""

    def __post_init__(self) -> None:
        np.maximum(
            self.popularity, _NEVER, out=self.popularity
        )  # a unit that is cached completely is almost never requested

    def mean(self, values: Floats) -> float:
        """Return the mean over all units of a value per class."""
        return float(np.dot(values, self.count) / self.count.sum())

    def total(self, values: Floats) -> float:
        """Return the sum over all units of a value per class."""
        return float(np.dot(values, self.count))

    def items(self) -> KeyClasses:
        """Return the units as items to be cached or grouped, the most popular first."""
        order = np.argsort(-self.popularity, kind="stable")
        count, popularity = self.count[order], self.popularity[order]
        return KeyClasses(np.cumsum(count) - count, count, popularity, np.ones(count.size))

    def adjacent(self, chance: Floats) -> float:
        """Return the number of neighbouring pairs in a read, if units occur independently with ``chance``."""
        if self.neighbours:
            return self.total(chance * chance)
        return self.mean(chance) ** 2 * float(self.count.sum())


@dataclass(frozen=True)
class KeyClasses:
    """The distinct keys of R, or other items, by popularity, the most popular first.

    ``popularity`` is the share of one key in the whole stream. ``missing`` is the share of the keys of a class that a
    cache does not hold, so that ``Σ count·popularity·missing`` is the share of the stream that misses it.
    """

    first: Floats
    """Keys before the class."""
    count: Floats
    popularity: Floats
    missing: Floats
    stay: Floats | None = None
    """Number of stream tuples for which a key stays in the cache before the join; None if the cache does not change."""

    @property
    def miss_share(self) -> float:
        """Share of the stream that no cache answers."""
        return float(np.sum(self.count * self.popularity * self.missing))

    def without(self, missing: Floats, stay: Floats | None = None) -> KeyClasses:
        """Return the classes behind a cache, in which keys ``stay`` for some tuples of the stream."""
        return dataclasses.replace(self, missing=missing, stay=stay)

    def top(self, keys: float) -> KeyClasses:
        """Return the classes behind an ideal cache, which holds the ``keys`` most popular keys."""
        return self.without(1.0 - np.clip(keys - self.first, 0.0, self.count) / self.count)

    def units(self, setting: Setting, width: int) -> Units:
        """Return the units of ``width`` pages, with their popularity among tuples that no cache answers.

        Popularities are shares of these tuples, so they sum to 1.
        """
        keys_a_unit = setting.keys / setting.pages * width
        if keys_a_unit < 1.0:  # a key has its own units
            return self.grouped(1.0, setting.shape)
        return self.grouped(keys_a_unit, setting.shape)

    def in_units(self, setting: Setting, width: int) -> tuple[Floats, Floats]:
        """Return for each class the popularity of a key and of the unit it lies in, among tuples not answered yet."""
        own = self.popularity / max(self.miss_share, 1e-12)
        a_unit = max(1.0, setting.keys / setting.pages * width)
        if setting.shape == "noperm":
            return own, np.maximum(own * a_unit * self.missing, own)
        return own, own + (a_unit - 1.0) / float(self.count.sum())

    def ripened(self, units: Units, setting: Setting, width: int, wait: float) -> Units:
        """Return units of ``width`` pages with their `filling`, if each waits for ``wait`` tuples until it is read.

        Keys that a read answers are admitted to the cache before the join, and are requested here again when they are
        evicted from it. So after a read few tuples arrive for its unit, and later more.
        """
        if self.stay is None:
            return units
        _, unit = self.in_units(setting, width)
        cycle = (wait + 1.0 / np.maximum(unit, _NEVER)) / max(self.miss_share, 1e-12)  # in tuples of the stream
        filling = _filling(self.missing, self.stay / cycle)
        weight = self.count * self.popularity * self.missing
        if setting.shape != "noperm":
            mean = float(np.dot(weight, filling)) / max(float(weight.sum()), 1e-300)
            return dataclasses.replace(units, filling=np.full(units.count.size, mean))
        a_unit = max(1.0, setting.keys / setting.pages * width)
        ranks = np.append(self.first, self.first[-1] + self.count[-1])
        edges = np.minimum(_edges(float(self.count.sum()) / a_unit) * a_unit, ranks[-1])
        both = [
            np.diff(np.interp(edges, ranks, np.append(0.0, np.cumsum(part)))) for part in (weight * filling, weight)
        ]
        return dataclasses.replace(units, filling=np.where(both[1] > 0.0, both[0] / np.maximum(both[1], 1e-300), 1.0))

    def grouped(self, together: float, shape: Shape) -> Units:
        """Return units of ``together`` items each, neighbours in rank or drawn at random."""
        total = max(self.miss_share, 1e-300)
        count = float(self.count.sum()) / together
        if shape == "noperm":
            return self._in_order(together, count, total)
        return self._at_random(together, count, total)

    def _in_order(self, keys_a_unit: float, count: float, total: float) -> Units:
        edges = _edges(count)
        ranks = np.append(self.first, self.first[-1] + self.count[-1])
        shares = np.append(0.0, np.cumsum(self.count * self.popularity * self.missing)) / total
        within = np.interp(np.minimum(edges * keys_a_unit, ranks[-1]), ranks, shares)
        units = np.diff(edges)
        return Units(np.diff(within) / units, units, neighbours=True)

    def _at_random(self, keys_a_unit: float, count: float, total: float) -> Units:
        # keys in the order of their remaining popularity: cached keys are last, with popularity 0
        held = self.count * (1.0 - self.missing)
        left = self.count * self.missing
        popularity = np.append(self.popularity, 0.0)
        number = np.append(left, held.sum())
        all_keys = number.sum()
        before = np.append(0.0, np.cumsum(number))[:-1]
        after = np.maximum(all_keys - before - number / 2, 1e-300)  # keys past the middle of the class
        weight = number * popularity
        rest = np.maximum(weight.sum() - np.cumsum(weight) + weight / 2, 0.0) / after
        # keys are ordered by popularity: those past the middle of a class are not more popular, despite rounding
        rest = np.minimum(rest, popularity)
        # probability that none of a unit's keys is before the class, nor in it
        none_before = np.clip(1.0 - before / all_keys, 0.0, 1.0) ** keys_a_unit
        none_within = np.clip(1.0 - (before + number) / all_keys, 0.0, 1.0) ** keys_a_unit
        units = count * (none_before - none_within)
        wanted = (popularity + (keys_a_unit - 1.0) * rest) / total
        kept = units > 0
        units, wanted = units[kept], wanted[kept]
        # the part that the means leave out, so that popularities sum to 1
        return Units(wanted / max(float(np.dot(units, wanted)), 1e-300), units, neighbours=False)


def _filling(missing: Floats, stay: Floats) -> Floats:
    """Return `Units.filling` of keys of which a share is ``missing``, and which ``stay`` for a part of a cycle.

    At time ``t`` after a read, in cycles, a share ``c·e^{-t/stay}`` of the keys is cached. ``c`` follows from the mean
    of this share over the cycle, which is ``1 - missing``.
    """
    stay = np.clip(stay, 1e-3, 1e3)
    mean = stay * -np.expm1(-1.0 / stay)
    filled = 1.0 - 2.0 * (1.0 - missing) * stay * (1.0 - mean) / mean
    # 2/3 if tuples arrive more and more often during the cycle, 1 if they arrive evenly
    return np.clip(filled / np.maximum(missing, 1e-12), 2.0 / 3.0, 1.0)


def _edges(size: float) -> Floats:
    """Return borders of classes: first classes of one item, then wider and wider ones."""
    if size <= _SINGLE:
        return np.append(np.arange(math.ceil(size)), size).astype(np.float64)
    steps = math.ceil(math.log(size / _SINGLE) / math.log(_GROWTH))
    tail = _SINGLE * (size / _SINGLE) ** (np.arange(1, steps + 1) / steps)
    return np.append(np.arange(_SINGLE + 1), np.maximum(tail, _SINGLE + np.arange(1, steps + 1))).astype(np.float64)


@functools.lru_cache(maxsize=64)
def _zipf_classes(keys: int, exponent: float) -> KeyClasses:
    edges = np.unique(np.minimum(np.round(_edges(float(keys))), keys))
    sums = np.array([harmonic(int(edge), exponent) if edge else 0.0 for edge in edges])
    count = np.diff(edges)
    popularity = np.diff(sums) / sums[-1] / count
    return KeyClasses(edges[:-1], count, popularity, np.ones(count.size))


def key_classes(setting: Setting) -> KeyClasses:
    """Return the keys of a setting's stream, with nothing cached.

    >>> from semistream.costs.basis.constants import load_constants
    >>> setting = Setting.planned(1_000_000, exponent=1.0, constants=load_constants("disk-2010"))
    >>> keys = key_classes(setting)
    >>> round(keys.miss_share, 6), round(keys.top(10_000).miss_share, 3), round(setting.law.share(10_000), 3)
    (1.0, 0.32, 0.68)
    """
    return _zipf_classes(setting.keys, setting.exponent)
