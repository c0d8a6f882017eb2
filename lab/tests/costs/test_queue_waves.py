"""Waves of the oldest-first queue: the model's play of units against a play of every single tuple."""

from __future__ import annotations

import numpy as np
import pytest

from semistream.costs.basis.popularity import Units
from semistream.costs.basis.queue_steady_state import oldest_first
from semistream.costs.basis.queue_waves import play_laps
from semistream.workloads.keys.key_source import ZipfKeys
from semistream.workloads.keys.zipf import ZipfLaw
from semistream_lab.experiments.measure import settled_queue

pytestmark = pytest.mark.slow

KEYS, A_UNIT, WAITING = 60_000, 1_000, 20_000


def served_tuple_by_tuple(exponent: float, most: int, tuples: int = 2_000_000) -> float:
    """Return the tuples that a read serves in a queue of single tuples, the first of them left out."""
    ranks = ZipfKeys(KEYS, exponent).keys(0, tuples)
    units = (ranks // A_UNIT).astype(np.int32)
    places = KEYS // A_UNIT
    keys, at = np.empty(tuples, np.int64), np.empty(tuples, np.int32)
    waiting, cleared = np.zeros(places, np.int64), np.full(places, -1, np.int64)
    state = np.array([0, 0, 0, 0, WAITING], np.int64)
    turns = []
    for part in np.array_split(np.arange(tuples), 4):
        settled_queue._play(keys, at, waiting, cleared, state, ranks[part], units[part], WAITING, False, most, 1.0)
        turns.append(int(state[settled_queue._TURNS]))
    return tuples * 3 / 4 / (turns[-1] - turns[0])


def units_of(exponent: float) -> Units:
    law = ZipfLaw(KEYS, exponent)
    shares = np.array([law.share(rank) for rank in range(0, KEYS + 1, A_UNIT)])
    return Units(np.diff(shares), np.ones(KEYS // A_UNIT), neighbours=True)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("most", [1 << 40, 4_000])
def test_units_are_served_as_single_tuples_are(exponent, most):
    units = units_of(exponent)
    even = oldest_first(units, WAITING, 1, A_UNIT)
    served, _, _ = play_laps(units, WAITING, 1.0, most, even.wait)
    assert served == pytest.approx(served_tuple_by_tuple(exponent, most), rel=0.04)


def test_waves_cost_much_where_one_unit_is_wanted_by_most():
    even = oldest_first(units_of(1.0), WAITING, 1, A_UNIT)
    assert even.served > 1.15 * served_tuple_by_tuple(1.0, 1 << 40)
