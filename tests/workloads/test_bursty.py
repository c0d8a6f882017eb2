"""HYBRIDJOIN Fig. 7 and 9: the sources, and burstiness at several time scales."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from semistream.workloads import Arrivals, BurstyArrivals, PoissonArrivals
from semistream.workloads.arrivals import BLOCK_ROWS

STEP = 0.01


def variance_of_means(arrivals: Arrivals, scales: NDArray[np.int64], length: int) -> NDArray[np.float64]:
    """Variance of the rate, averaged over intervals of ``scales`` steps, relative to its mean squared."""
    counts = arrivals.counts(STEP, length).astype(np.float64)
    means = [counts[: length // scale * scale].reshape(-1, scale).mean(axis=1) for scale in scales]
    return np.array([mean.var() for mean in means]) / counts.mean() ** 2


def hurst(arrivals: Arrivals, scales: NDArray[np.int64], length: int) -> float:
    """Slope of the variance-time plot: variances fall as scale^(2H-2)."""
    slope = np.polyfit(np.log(scales), np.log(variance_of_means(arrivals, scales, length)), 1)[0]
    return float(1 + slope / 2)


@pytest.mark.parametrize("seed", range(4))
def test_self_similar_between_its_quickest_and_slowest_source(seed: int) -> None:
    scales = 2 ** np.arange(8)
    assert hurst(BurstyArrivals(5_000.0, STEP, seed=seed), scales, 2**16) > 0.9
    # The same estimate of arrivals without memory.
    assert hurst(PoissonArrivals(5_000.0, seed=seed), scales, 2**16) == pytest.approx(0.5, abs=0.03)


def test_without_memory_far_beyond_its_slowest_source() -> None:
    scales = 2 ** np.arange(12, 17)
    assert hurst(BurstyArrivals(200.0, STEP, seed=1), scales, 2**22) == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("width", [0.01, 0.1, 1.0])
def test_bursts_and_lulls_at_every_scale(width: float) -> None:
    rate = 50_000.0
    bursty = BurstyArrivals(rate, STEP, seed=2).counts(width, int(200 / width)) / (rate * width)
    smooth = PoissonArrivals(rate, seed=2).counts(width, int(200 / width)) / (rate * width)
    assert bursty.std() > 0.5
    assert smooth.std() < 0.05
    assert np.quantile(bursty, 0.05) < 0.3
    assert np.quantile(bursty, 0.95) > 1.7


def test_the_average_is_the_rate_from_the_start() -> None:
    runs = np.array([BurstyArrivals(1_000.0, STEP, seed=seed).counts(1.0, 40) for seed in range(300)])
    error = runs.mean(axis=1).std() / np.sqrt(len(runs))
    assert runs.mean() == pytest.approx(1000, abs=4 * error)
    # No warm-up: the first second is like the others, in mean and in spread.
    assert runs[:, 0].mean() == pytest.approx(1000, abs=4 * runs[:, 0].std() / np.sqrt(len(runs)))
    assert runs[:, 0].std() == pytest.approx(runs[:, 20:].std(), rel=0.1)


def test_the_rate_is_the_sum_of_the_sources_that_are_on() -> None:
    """With bandwidths 2, 4, 8 every even sum occurs, and nothing else; one shared flag could not do that."""
    arrivals = BurstyArrivals(rate=70_000.0, step=1.0, sources=3, seed=5)
    gaps = np.diff(arrivals.cursor().take(2_000_000))
    rates = 1 / gaps / 10_000.0
    settled = rates[1:-1][np.isclose(rates[1:-1], rates[:-2]) & np.isclose(rates[1:-1], rates[2:])]
    assert set(np.round(settled, 4).tolist()) == {2, 4, 6, 8, 10, 12, 14}
    # Only gaps with a toggle in them are anything else.
    assert settled.size / rates.size > 0.999


def test_every_source_toggles_by_itself() -> None:
    """The rate in units of 2 is a binary number whose digits say which of three sources are on."""
    times = BurstyArrivals(rate=700.0, step=1.0, sources=3, seed=6).cursor().take(2_000_000)
    level = np.rint(1 / np.diff(times) / 200.0).astype(np.int64)
    digits = [(level >> source) & 1 for source in range(3)]
    for source, digit in enumerate(digits):
        borders = np.flatnonzero(np.diff(digit))
        spans = np.diff(times[borders])
        period = 2.0 ** (source + 1)
        assert spans.size > 1.5 * times[-1] / period
        assert np.mean(spans > 1.02 * period) < 0.02
    ticks = np.searchsorted(times, np.arange(0.0, times[-1] - 1, 0.5), side="right") - 1
    states = np.array([digit[ticks] for digit in digits])
    assert states.mean(axis=1) == pytest.approx([0.5] * 3, abs=0.07)
    assert (abs(np.corrcoef(states)[np.triu_indices(3, 1)]) < 0.15).all()


def test_the_spacing_goes_on_from_block_to_block() -> None:
    gaps = np.diff(BurstyArrivals(1e6, STEP, seed=4).cursor().take(41 * BLOCK_ROWS))
    last = np.arange(1, 41) * BLOCK_ROWS - 1
    steady = np.isclose(gaps[last - 1], gaps[last + 1], rtol=1e-3)
    assert steady.sum() > 30
    assert gaps[last][steady] == pytest.approx(gaps[last - 1][steady], rel=1e-3)


def test_a_source_stays_on_for_a_random_time_up_to_its_period() -> None:
    """One source of bandwidth 2 and step 1 s: on and off for up to 2 s, one second on average."""
    counts = BurstyArrivals(rate=1_000.0, step=1.0, sources=1, seed=1).counts(0.01, 400_000)
    on = counts > 0
    borders = np.flatnonzero(np.diff(on)) + 1
    spans = np.diff(borders) * 0.01
    assert spans.size > 3_000
    # Spans shorter than an interval are not seen, and join those around them: some seem longer than they are.
    assert np.mean(spans > 2.0 + 0.02) < 0.01
    assert spans.mean() == pytest.approx(1.0, rel=0.05)
    assert np.quantile(spans, [0.25, 0.5, 0.75]) == pytest.approx([0.5, 1.0, 1.5], abs=0.07)
    assert on.mean() == pytest.approx(0.5, abs=0.02)


def test_strong_sources_toggle_slowly() -> None:
    """Doubling the step stretches everything: the same stream, twice as slow."""
    quick = BurstyArrivals(2_000.0, step=0.01, seed=3).cursor().take(100_000)
    slow = BurstyArrivals(1_000.0, step=0.02, seed=3).cursor().take(100_000)
    assert np.allclose(slow, 2 * quick)
