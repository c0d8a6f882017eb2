"""Into the steady state quickly: what a join holds after hours is put there at the start.

What this does is checked by tests against joins that were simply run for long enough.
"""

from __future__ import annotations

import numpy as np

from semistream.experiments.sources import Sides
from semistream.joins.base import Join
from semistream.joins.front_stage import FrontStage
from semistream.relation.pages import FIRST, LAST, WHOLE
from semistream.stream.draws import fractions, sequence_seed
from semistream.stream.keys import ZipfKeys
from semistream.structures.candidates import Candidates

__all__ = ["warm_front_stage"]

_PORTION = 1 << 20


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
