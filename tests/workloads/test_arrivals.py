from __future__ import annotations

import pickle
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.workloads import Arrivals, BurstyArrivals, ConstantArrivals, PoissonArrivals
from semistream.workloads.arrivals import BLOCK_ROWS

KINDS: list[Arrivals] = [
    ConstantArrivals(1000.0),
    PoissonArrivals(1000.0, seed=3),
    BurstyArrivals(1000.0, step=0.01, seed=3),
]


@pytest.mark.parametrize("arrivals", KINDS, ids=repr)
def test_times_ascend_from_the_start_of_the_stream(arrivals: Arrivals) -> None:
    times = arrivals.cursor().take(3 * BLOCK_ROWS)
    assert times[0] >= 0
    assert (np.diff(times) >= 0).all()


@pytest.mark.parametrize("arrivals", KINDS, ids=repr)
@settings(max_examples=30)
@given(steps=st.lists(st.one_of(st.integers(0, 70_000), st.floats(0, 80, allow_nan=False)), min_size=1, max_size=6))
def test_times_do_not_depend_on_how_they_are_taken(arrivals: Arrivals, steps: list[int | float]) -> None:
    cursor = arrivals.cursor()
    taken = [np.empty(0)]
    for step in steps:
        if isinstance(step, int):
            taken.append(cursor.take(step))
            assert taken[-1].size == step
        else:
            taken.append(cursor.until(step))
            assert (taken[-1] < step).all()
            following = arrivals.cursor().take(cursor.position + 1)[-1]
            assert following >= step
    whole = arrivals.cursor().take(cursor.position)
    assert np.array_equal(np.concatenate(taken), whole)


@pytest.mark.parametrize("arrivals", KINDS, ids=repr)
@pytest.mark.parametrize("width", [0.001, 0.37, 5.0, 300.0])
def test_counts_are_counts_of_the_times(arrivals: Arrivals, width: float) -> None:
    intervals = min(1000, int(400 / width) + 1)
    edges = np.arange(intervals + 1) * width
    times = arrivals.cursor().until(edges[-1])
    counts = arrivals.counts(width, intervals)
    assert counts.size == intervals
    assert np.array_equal(counts, np.diff(np.searchsorted(times, edges)))


@pytest.mark.parametrize("arrivals", KINDS, ids=repr)
def test_a_pickled_description_gives_the_same_times(arrivals: Arrivals) -> None:
    again = pickle.loads(pickle.dumps(arrivals))
    assert again == arrivals
    assert np.array_equal(again.cursor().take(1000), arrivals.cursor().take(1000))


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert ConstantArrivals(1000.0).counts(0.1, 50).tolist() == [100] * 50
    assert np.allclose(np.diff(ConstantArrivals(8.0).cursor().take(100)), 0.125)


def test_poisson_gaps_are_exponential(surprise) -> None:
    gaps = np.diff(PoissonArrivals(1000.0, seed=1).cursor().take(300_001))
    # An exponential gap, put through its distribution function, is uniform.
    spread = np.histogram(1 - np.exp(-gaps * 1000.0), 50, (0, 1))[0]
    assert surprise(spread, np.full(50, 0.02)) < 4
    assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < 4 / np.sqrt(gaps.size)


def test_poisson_counts_vary_as_much_as_their_mean() -> None:
    counts = PoissonArrivals(500.0, seed=2).counts(0.1, 20_000)
    assert counts.mean() == pytest.approx(50, rel=0.01)
    assert counts.var() == pytest.approx(50, rel=0.05)


@pytest.mark.parametrize("arrivals", KINDS[1:], ids=repr)
def test_the_seed_matters(arrivals: Arrivals) -> None:
    other = pickle.loads(pickle.dumps(arrivals))
    object.__setattr__(other, "seed", 99)
    assert not np.array_equal(other.cursor().take(100), arrivals.cursor().take(100))


def test_blocks_have_one_size() -> None:
    for arrivals in KINDS:
        assert {block.size for block in islice(arrivals.blocks(), 3)} == {BLOCK_ROWS}


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [ConstantArrivals, PoissonArrivals, BurstyArrivals])
def test_impossible_rates_are_refused(kind: type[Arrivals], rate: float) -> None:
    with pytest.raises(ValueError, match="rate must be a positive"):
        kind(rate)  # type: ignore[call-arg]


def test_other_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="count must be at least 0"):
        KINDS[0].cursor().take(-1)
    with pytest.raises(ValueError, match="width must be above 0"):
        KINDS[0].counts(0.0, 10)
    with pytest.raises(ValueError, match="step"):
        BurstyArrivals(1.0, step=0.0)
    with pytest.raises(ValueError, match="sources"):
        BurstyArrivals(1.0, sources=0)
