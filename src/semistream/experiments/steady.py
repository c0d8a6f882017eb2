"""Into the steady state quickly: what a join holds after hours is put there at the start.

What this does is checked by tests against joins that were simply run for long enough.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semistream.experiments.sources import Sides
from semistream.joins.base import Join
from semistream.joins.front_stage import FrontStage
from semistream.relation.pages import FIRST, LAST, WHOLE
from semistream.stream.draws import fractions, sequence_seed
from semistream.stream.keys import KeySource, ZipfKeys
from semistream.stream.permutation import Permutation
from semistream.structures.candidates import Candidates

__all__ = ["TailKeys", "arrived", "cold_sides", "warm_front_stage"]

_PORTION = 1 << 20


@dataclass(frozen=True)
class TailKeys(KeySource):
    """The keys of a Zipf stream without its most frequent ones: what a warm cache lets pass.

    >>> keys = TailKeys(ZipfKeys(1000), after=100).keys(0, 10_000)
    >>> int(keys.min()) >= 100, int(keys.max()) < 1000
    (True, True)
    """

    whole: ZipfKeys
    after: int

    @property
    def size(self) -> int:  # type: ignore[override]
        """Keys are below this."""
        return self.whole.size

    def _keys(self, start: int, count: int) -> NDArray[np.int64]:
        low, high, rest = self.after + 0.5, self.whole.size + 0.5, 1.0 - self.whole.exponent
        drawn = fractions(sequence_seed(self.whole.seed, "tail keys"), start, count)
        # the area under x^-s between both ends, inverted: far from its first ranks Zipf's law is as smooth
        if abs(rest) < 1e-9:
            ranks = low * (high / low) ** drawn
        else:
            ranks = (low**rest + drawn * (high**rest - low**rest)) ** (1.0 / rest)
        order = np.clip(np.rint(ranks).astype(np.int64) - 1, self.after, self.whole.size - 1)
        if self.whole.shape == "noperm":
            return order
        return Permutation(self.whole.size, self.whole.seed).apply(order)


def cold_sides(sides: Sides, cached: int) -> Sides:
    """Return a stream of which a cache of the ``cached`` most frequent keys answers nothing."""
    if not cached or not isinstance(sides.keys, ZipfKeys) or cached >= sides.keys.size:
        return sides
    return dataclasses.replace(sides, keys=TailKeys(sides.keys, cached))


def arrived(join: Join) -> int:
    """Return the tuples in the stream buffer of a join, and of the join behind it."""
    return join._arrived + (join._inner._arrived if isinstance(join, FrontStage) else 0)


def warm_front_stage(join: Join, sides: Sides) -> int:
    """Put the most frequent keys into ``H_R``, as often seen as they would be by now; return how many.

    Only where each key has one row and its frequency is known: a Zipf stream over a primary key.
    """
    keys = sides.keys
    if not isinstance(join, FrontStage) or not isinstance(keys, ZipfKeys) or not sides.relation.unique:
        return 0
    if keys.exponent == 0.0:
        return 0
    count = min(join.cache.capacity, keys.size)
    # Frequencies are halved now and then: on average a key has been seen for one and a half such periods.
    period = join.cache._aging * 1.5
    row = np.zeros(sides.relation.codec.stride, np.uint8)
    flags = np.uint8(FIRST | LAST | WHOLE)
    seed = sequence_seed(sides.workload.seed, "warm cache")
    hottest = keys.hottest(count)
    for begin in range(0, count, _PORTION):
        part = hottest[begin : begin + _PORTION]
        expected = period * keys.law.probability(np.arange(begin + 1, begin + part.size + 1))
        frequency = np.floor(expected + fractions(seed, begin, part.size)).astype(np.int64)
        join.cache.admit(
            Candidates(part, frequency, np.arange(part.size + 1), np.zeros(part.size, np.int64),
                       np.full(part.size, flags)),
            row,
        )  # fmt: skip
    return count
