"""Units of R that a cache before the join keeps tuples away from after a read: the model against a play of tuples."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from semistream.costs.basis.cache_steady_state import cached_shares
from semistream.costs.basis.popularity import KeyClasses, Units, _filling
from semistream.costs.basis.queue_steady_state import both_ends, oldest_first

UNITS, WAITING, MISSING, STAY = 100, 200_000, 0.6, 0.8


def played(newest: bool, stay: float) -> float:
    """Return the tuples that a read serves, if ``stay`` of a cycle goes by until most of what it served is wanted anew.

    Units are equally popular. At first a share is cached such that ``MISSING`` is not, on average over a cycle.
    """
    random = np.random.default_rng(1)
    cycle = 2.0 * WAITING
    lasts = stay * cycle
    cached = (1.0 - MISSING) / (stay * -np.expm1(-1.0 / stay))
    first, waiting = np.full(UNITS, np.inf), np.zeros(UNITS, int)
    read = -random.random(UNITS) * cycle
    now = last = 0

    def admit(count: int) -> None:
        nonlocal now, last
        while count > 0:
            drawn = random.integers(0, UNITS, 2 * count + 8)
            there = 1.0 - cached * np.exp(-(now - read) / lasts)
            drawn = drawn[random.random(drawn.size) < there[drawn]][:count]
            units, at, often = np.unique(drawn, return_index=True, return_counts=True)
            new = waiting[units] == 0
            first[units[new]] = now + at[new]
            waiting[units] += often
            now, last, count = now + drawn.size, int(drawn[-1]) if drawn.size else last, count - drawn.size

    for _ in range(100):
        admit(WAITING // 100)
    served = []
    for _ in range(800 if newest else 1600):
        for unit in (int(np.argmin(first)), last) if newest else (int(np.argmin(first)),):
            count = int(waiting[unit])
            waiting[unit], first[unit], read[unit] = 0, np.inf, now
            admit(count)
            served.append(count)
    return float(np.mean(served[len(served) // 2 :]))


@pytest.mark.parametrize("newest", [False, True])
def test_a_read_serves_more_where_tuples_come_ever_more_often(newest):
    even = Units(np.full(1, 1 / UNITS), np.array([float(UNITS)]), neighbours=True)
    ripening = dataclasses.replace(even, filling=_filling(np.array([MISSING]), np.array([STAY])))
    found = [
        (both_ends(units, WAITING, 1, 1, 1000.0) if newest else oldest_first(units, WAITING, 1, 1000.0)).served
        for units in (even, ripening)
    ]
    assert found[1] > 1.08 * found[0]
    assert found[1] == pytest.approx(played(newest, STAY), rel=0.04)


def test_tuples_come_evenly_where_nothing_is_cached_or_all_that_is_stays():
    missing, stay = np.array([1.0, 0.5, 0.2]), np.array([0.5, 1e6, 1e6])
    assert _filling(missing, stay) == pytest.approx(1.0, abs=0.01)


def test_keys_come_into_a_cache_with_as_many_tuples_as_arrive_for_them_where_some_do():
    """A key for which one tuple arrives in the time between two reads has three or more of them in 12.7 % of those."""
    keys = KeyClasses(np.zeros(1), np.array([1000.0]), np.array([1e-3]), np.ones(1))
    events = keys.popularity * -np.expm1(-1.0)
    state = np.zeros((1, 24))
    _, threshold, came = cached_shares(keys, events, 1e6, 100.0, state, threshold=3, periods=1)
    matched = np.random.default_rng(1).poisson(1.0, 1_000_000)
    often = np.count_nonzero(matched >= 3) / np.count_nonzero(matched)
    assert threshold == 3
    assert came[0] / events[0] == pytest.approx(often, rel=0.05)
    assert often == pytest.approx(0.127, abs=0.002)
