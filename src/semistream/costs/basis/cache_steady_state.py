"""The content of the front stage's cache in its steady state, and so the share of the stream that it answers.

The papers assume that the ``h_R`` most frequent tuples are cached: ``p(h_R) = H(h_R, s) / H(R_t, s)`` (CMESHJOIN Eq.
1). Our cache decides by counts of recent look-ups (`semistream.structures.hot.hot_tuples`). A key near the border is
seen once or never in that time, so the border is blurred, and a few percent of the stream are lost. This model includes
that effect. For each class of keys it computes the share that is cached with a count of 0, 1, 2, …, by the cache's
rules:

- A hit adds one to the count.
- A key that the join behind matches with ``f`` tuples together is admitted with a count of ``f``, if ``f`` reaches the
  threshold and a key with a smaller count can be evicted.
- Counts are halved after ``aging`` look-ups for each row of capacity.
- The threshold falls while the cache has room or evicts little, and rises while it evicts much.

The expectation is computed step by step, until it repeats itself.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Floats
from semistream.core.compiled import kernel
from semistream.costs.basis.popularity import KeyClasses

__all__ = ["Counts", "cached_shares"]

Counts = NDArray[np.float64]
"""Share of the keys of each class (rows) that is cached with each count (columns)."""

_LEVELS = 24
_STEPS = 8
"""Number of simulated steps between two halvings."""


@kernel
def _arrivals(mean: float, out: Floats) -> None:
    """Write the probabilities of 0, 1, 2, … arrivals; the last entry includes all larger numbers."""
    left = 1.0
    chance = math.exp(-mean)
    for n in range(out.size - 1):
        out[n] = chance
        left -= chance
        chance *= mean / (n + 1)
    out[-1] = max(left, 0.0)


@kernel
def _arriving(group: float) -> float:
    """Return the mean number of arrivals, if the mean over intervals with at least one arrival is ``group``."""
    if group <= 1.0:
        return 1e-9
    mean = min(2.0 * (group - 1.0), group)
    for _ in range(6):  # mean / (1 - e^-mean) = group
        none = math.exp(-mean)
        some = 1.0 - none
        slope = (some - mean * none) / (some * some)
        mean = max(1e-9, mean - (mean / some - group) / max(slope, 0.3))
    return mean


@kernel
def _advance(
    count: Floats,
    popularity: Floats,
    events: Floats,
    shares: Floats,
    capacity: float,
    aging: float,
    threshold: int,
    periods: int,
) -> tuple[Floats, int, Floats]:
    """Simulate ``periods`` halvings; return the mean cached share, the threshold, and the admitted keys."""
    classes, levels = shares.shape
    window = capacity / 4 + 1024.0
    noticed, gone = 0.0, 0.0
    mean, came = np.zeros(classes), np.zeros(classes)
    added = np.empty(levels)
    coming = np.zeros((classes, levels))
    step = aging / _STEPS
    for turn in range(periods * _STEPS):
        # hits
        for r in range(classes):
            _arrivals(popularity[r] * step, added)
            for c in range(levels - 1, -1, -1):
                total = 0.0
                for a in range(c + 1):
                    total += shares[r, c - a] * added[a]
                if c == levels - 1:
                    # counts beyond the last level stay at the last level
                    total = 0.0
                    tail = 0.0
                    for a in range(levels - 1, -1, -1):
                        tail += added[a]
                        total += shares[r, levels - 1 - a] * tail
                coming[r, c] = total
            for c in range(levels):
                shares[r, c] = coming[r, c]
        # candidates: keys that are not cached and are matched, by the number of tuples
        wishing = np.zeros(levels)
        held = np.zeros(levels)
        missed = 0.0
        for r in range(classes):
            inside = 0.0
            for c in range(levels):
                inside += shares[r, c]
                held[c] += count[r] * shares[r, c]
            outside = max(0.0, 1.0 - inside)
            missed += count[r] * popularity[r] * outside
            matched = outside * -math.expm1(-events[r] * step)
            # at least one tuple arrives for a key between two matches; arrivals are independent
            group = max(1.0, popularity[r] / events[r]) if events[r] > 0 else 1.0
            _arrivals(_arriving(group), added)
            some = max(1.0 - added[0], 1e-300)
            coming[r, 0] = 0.0
            for f in range(1, levels):
                coming[r, f] = matched * added[f] / some if f >= threshold else 0.0
                wishing[f] += count[r] * coming[r, f]
        # free room is used first, then keys with smaller counts are evicted; the most frequent keys are admitted first
        room = max(0.0, capacity - held.sum())
        left = held.copy()
        accepted = np.zeros(levels)
        evicted = 0.0
        for f in range(levels - 1, 0, -1):
            need = wishing[f]
            taken = min(need, room)
            room -= taken
            for c in range(f):
                more = min(need - taken, left[c])
                left[c] -= more
                taken += more
                evicted += more
            accepted[f] = taken / need if need > 0 else 0.0
        for r in range(classes):
            for c in range(levels):
                if held[c] > 0:
                    shares[r, c] *= left[c] / held[c]
                shares[r, c] += coming[r, c] * accepted[c]
                came[r] += coming[r, c] * accepted[c]
        # the threshold
        noticed += missed * step
        gone += evicted
        if noticed >= window:
            if room > 0 or gone * 8 < noticed:
                threshold = max(1, threshold - 1)
            elif gone * 2 > noticed:
                threshold += 1
            noticed, gone = 0.0, 0.0
        if turn % _STEPS == _STEPS - 1:
            for r in range(classes):
                for c in range(levels):
                    value = shares[r, c]
                    shares[r, c] = 0.0
                    shares[r, c // 2] += value
        for r in range(classes):
            inside = 0.0
            for c in range(levels):
                inside += shares[r, c]
            mean[r] += inside
    return mean / (periods * _STEPS), threshold, came / (periods * aging)


def ideal(keys: KeyClasses, capacity: float, aging: float) -> Counts:
    """Return the state in which the most popular keys are cached, with their expected counts."""
    shares = np.zeros((keys.count.size, _LEVELS))
    level = np.clip((keys.popularity * aging * 1.5).astype(np.int64), 0, _LEVELS - 1)
    shares[np.arange(level.size), level] = 1.0 - keys.top(capacity).missing
    return shares


def cached_shares(
    keys: KeyClasses, events: Floats, capacity: float, aging: float, state: Counts, threshold: int = 1, periods: int = 6
) -> tuple[Floats, int, Floats]:
    """Return the cached share of each class, after some time from ``state`` on; ``state`` is updated.

    Also return the threshold, and the number of admitted keys of each class per tuple of the stream.

    Parameters
    ----------
    events
        How often an uncached key of each class is matched by the join behind, per tuple of the stream.
    capacity
        Keys that fit.
    aging
        Tuples of the stream between two halvings of the counts.
    threshold
        Number of tuples that a key must be matched with; adapted and returned.
    periods
        Number of halvings to simulate.
    """
    shares, threshold, came = _advance(
        keys.count, keys.popularity, events, state, float(capacity), float(aging), threshold, periods
    )
    return np.clip(shares, 0.0, 1.0), threshold, came
