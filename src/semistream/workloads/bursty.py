"""Bursty arrivals that look the same at many time scales: silence and bursts from milliseconds to seconds.

HYBRIDJOIN §5, Fig. 7: ten sources, source ``i`` of bandwidth ``2^i``, each either on or off. A source
toggles after a random time, uniform and proportional to its bandwidth, so strong sources change slowly and
weak ones quickly. The rate at any moment is the sum of the bandwidths that are on. Source 10 makes slow, large
waves; source 9 adds waves of half the height and half the length, and so on. The picture is the same at every
scale.

The arrivals are self-similar between the toggling times of the fastest and the slowest source, with a Hurst
parameter close to 1 (height and length of a wave grow in proportion). Over spans much longer than those of the
slowest source, bursts average out and the parameter falls to ½, as for independent arrivals.

Differences from the paper:

* In Fig. 7 all sources share one on/off flag, so a source may be subtracted that was never added. Here each
  source has its own flag.
* In the paper every source is on at the start. Here each starts on or off at random, somewhere within a period,
  so the first minute is like any other.
* In the paper time advances in steps, and all tuples of a step arrive together. Here time is continuous, and
  tuples are evenly spaced at the current rate. None arrive while all sources are off.
* Bandwidths are scaled so that the average is the requested ``rate``.

Example
-------
>>> arrivals = BurstyArrivals(rate=10_000.0, seed=3)
>>> counts = arrivals.counts(width=0.1, intervals=1000)
>>> int(counts.min()) < 2_00 and int(counts.max()) > 17_00          # of 1000 on average
True
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semistream.core.compiled import frozen, kernel
from semistream.workloads.arrivals import BLOCK_ROWS, Arrivals, check_rate
from semistream.workloads.keys.draws import draw_word, fractions, sequence_seed, word_fraction

__all__ = ["BurstyArrivals"]


@kernel
def _fill_bursty(seeds: NDArray[np.uint64], bandwidths: NDArray[np.float64], periods: NDArray[np.float64],
                 on: NDArray[np.bool_], toggle_at: NDArray[np.float64], toggles: NDArray[np.int64],
                 progress: NDArray[np.float64], out: NDArray[np.float64]) -> None:  # fmt: skip
    # `progress` is the current time, and the share of the next tuple that is already due.
    now, due = progress[0], progress[1]
    filled = 0
    while True:
        source = 0
        rate = 0.0
        for i in range(on.size):
            if toggle_at[i] < toggle_at[source]:
                source = i
            if on[i]:
                rate += bandwidths[i]
        until = toggle_at[source]
        if rate > 0.0:
            # Tuple k of this stretch arrives after the time of k - due tuples.
            ready = int((until - now) * rate + due)
            wanted = min(ready, out.size - filled)
            for k in range(wanted):
                out[filled + k] = min(now + (k + 1 - due) / rate, until)
            filled += wanted
            if filled == out.size:
                # Stop at the last tuple written, with none of the next one due.
                progress[0], progress[1] = out[filled - 1], 0.0
                return
            due += (until - now) * rate - ready
        now = until
        on[source] = not on[source]
        toggles[source] += 1
        toggle_at[source] += word_fraction(draw_word(seeds[source], toggles[source])) * periods[source]


@dataclass(frozen=True, slots=True)
class BurstyArrivals(Arrivals):
    """Self-similar arrivals from on/off sources of doubling bandwidth.

    Parameters
    ----------
    rate
        Long-term average of tuples per second. The peak, with all sources on, is twice the average.
    step
        Time unit in seconds: source ``i`` stays on or off for up to ``step · 2^i`` seconds. With the default
        of 10 ms bursts last from 10 ms (source 1) to 5 s (source 10) on average.
    sources
        Number of sources. One more doubles the range of scales and the length of the longest burst.
    """

    rate: float
    step: float = 0.01
    sources: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        check_rate(self.rate)
        if not 0 < self.step < float("inf"):
            raise ValueError(f"step must be a positive number of seconds, not {self.step}")
        if not 1 <= self.sources <= 40:
            raise ValueError(f"sources must be from 1 to 40, not {self.sources}; the papers use 10")

    def blocks(self) -> Iterator[NDArray[np.float64]]:
        weights = np.exp2(np.arange(1, self.sources + 1, dtype=np.float64))
        # Each source is on half of the time, so the average is half of their sum.
        bandwidths = frozen(weights * (2.0 * self.rate / weights.sum()))
        periods = frozen(weights * self.step)
        seeds = frozen(np.array([sequence_seed(self.seed, "bursty source", i) for i in range(self.sources)]))
        on = fractions(sequence_seed(self.seed, "bursty state"), 0, self.sources) < 0.5
        # The rest of a uniform period of which a random part has passed.
        left = 1.0 - np.sqrt(fractions(sequence_seed(self.seed, "bursty start"), 0, self.sources))
        toggle_at = left * periods
        toggles = np.zeros(self.sources, dtype=np.int64)
        progress = np.array([0.0, 0.5])  # half a tuple is due at the start, so the first count has no bias
        while True:
            block = np.empty(BLOCK_ROWS, dtype=np.float64)
            _fill_bursty(seeds, bandwidths, periods, on, toggle_at, toggles, progress, block)
            yield block
