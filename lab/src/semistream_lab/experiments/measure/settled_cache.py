"""A quick way into the steady state: the cache is filled at the start with what it holds after hours.

Tests compare the result with joins that ran long enough by themselves.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from semistream.core.arrays import Ints
from semistream.costs.basis.front_stage import SteadyCache
from semistream.joins.families.front_stage import FrontStage
from semistream.joins.interface.join import Join
from semistream.relation.pages.page_layout import FIRST, LAST, WHOLE
from semistream.structures.hot.candidates import Candidates
from semistream.structures.hot.hot_tuples import HotTuples
from semistream.workloads.keys.draws import fractions, sequence_seed
from semistream.workloads.keys.key_source import KeySource, ZipfKeys
from semistream.workloads.keys.permutation import Permutation
from semistream_lab.experiments.measure.both_sides import Sides

__all__ = ["MissedKeys", "TailKeys", "arrived", "missed_by", "warm_front_stage"]


_PORTION = 1 << 20  # keys admitted to the cache at a time
_FIRST_SMOOTH = 64  # rank from which a Zipf law is treated as continuous
_ELSEWHERE = 1 << 40  # keys are drawn again from this much further in the stream
_NEGLIGIBLE = 0.003  # the first ranks are left out if they have at most this share of all misses


@dataclass(frozen=True)
class TailKeys(KeySource):
    """The keys of a Zipf stream without its most frequent ones: the misses of a warm cache.

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

    def _keys(self, start: int, count: int) -> Ints:
        low, high, rest = self.after + 0.5, self.whole.size + 0.5, 1.0 - self.whole.exponent
        drawn = fractions(sequence_seed(self.whole.seed, "tail keys"), start, count)
        # invert the area under x^-s between both ends: beyond its first ranks Zipf's law is that smooth
        if abs(rest) < 1e-9:
            ranks = low * (high / low) ** drawn
        else:
            ranks = (low**rest + drawn * (high**rest - low**rest)) ** (1.0 / rest)
        order = np.clip(np.rint(ranks).astype(np.int64) - 1, self.after, self.whole.size - 1)
        if self.whole.shape == "noperm":
            return order
        return Permutation(self.whole.size, self.whole.seed).apply(order)


@dataclass(frozen=True)
class MissedKeys(KeySource):
    """The keys of a stream that a cache does not hold; keys that it holds are drawn again."""

    whole: KeySource
    cache: HotTuples

    @property
    def size(self) -> int:  # type: ignore[override]
        """Keys are below this."""
        return self.whole.size

    def _keys(self, start: int, count: int) -> Ints:
        keys = self.whole.keys(start, count)
        held = np.flatnonzero(self.cache.holds(keys))
        while held.size:
            start += _ELSEWHERE
            keys[held] = self.whole.keys(start, held.size)
            held = held[self.cache.holds(keys[held])]
        return keys


def missed_by(join: Join, sides: Sides, steady: SteadyCache | None) -> Sides:
    """Return a stream without keys that the cache of a join answers."""
    keys = sides.keys
    if not isinstance(join, FrontStage) or not isinstance(keys, ZipfKeys) or not len(join.cache) or steady is None:
        return sides
    # nearly all of the first ranks are cached: leave them out, because drawing the few misses costs many draws
    missed = np.cumsum(steady.keys.count * steady.keys.popularity * steady.keys.missing)
    after = int(steady.keys.first[np.searchsorted(missed, _NEGLIGIBLE * missed[-1])])
    rest = TailKeys(keys, after) if after >= _FIRST_SMOOTH else keys
    return dataclasses.replace(sides, keys=MissedKeys(rest, join.cache))


def arrived(join: Join) -> int:
    """Return the number of tuples in the stream buffers of a join and of the join behind it."""
    return join.arrived + (join.inner.arrived if isinstance(join, FrontStage) else 0)


def warm_front_stage(join: Join, sides: Sides, steady: SteadyCache) -> None:
    """Fill ``H_R`` with the keys and counts that it would hold in the steady state.

    Does nothing unless each key has one row and a known frequency: a Zipf stream over a primary key.
    """
    keys = sides.keys
    if not isinstance(join, FrontStage) or not isinstance(keys, ZipfKeys) or not sides.relation.unique:
        return
    row = np.zeros(sides.relation.codec.stride, np.uint8)
    flags = np.uint8(FIRST | LAST | WHOLE)
    ranks, counts = _cached_ranks(steady, join.cache, sides.workload.seed)
    for begin in range(0, ranks.size, _PORTION):
        part, frequency = keys.place(ranks[begin : begin + _PORTION]), counts[begin : begin + _PORTION]
        join.cache.admit(
            Candidates(part, frequency, np.arange(part.size + 1), np.zeros(part.size, np.int64),
                       np.full(part.size, flags)),
            row,
        )  # fmt: skip
    join.threshold = steady.threshold


def _cached_ranks(steady: SteadyCache, cache: HotTuples, seed: int) -> tuple[Ints, Ints]:
    """Return the ranks, from 0, of the cached keys, and how often each was seen.

    Ranks are evenly spaced per class.
    """
    ranks, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    room, owed = cache.capacity, 0.0
    keys = steady.keys
    for number, (shares, first, count, popularity) in enumerate(
        zip(steady.counts, keys.first, keys.count, keys.popularity, strict=True)
    ):
        owed += float(np.clip(shares.sum(), 0.0, 1.0) * count)
        chosen = min(int(owed), room, int(count))
        if chosen <= 0:
            continue
        owed -= chosen
        room -= chosen
        drawn = fractions(sequence_seed(seed, f"warm cache {number}"), 0, chosen + 1)
        ranks.append((first + (np.arange(chosen) + drawn[-1]) * (count / chosen)).astype(np.int64))
        level = np.searchsorted(np.cumsum(shares), drawn[:-1] * shares.sum())
        # the highest level represents all higher counts
        often = int(popularity * cache.aging)
        counts.append(np.where(level >= shares.size - 1, max(often, shares.size - 1), level).astype(np.int64))
    return np.concatenate(ranks), np.concatenate(counts)
