"""Runs on a clock: tuples arrive when they arrive, and what they wait is measured.

The clock is that of the simulated device, moved on by the price of what the join did. With nothing to do it jumps to
the next arrival. A tuple is served when its result comes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from semistream.core.arrays import Floats, Ints
from semistream.core.clock import VirtualClock
from semistream.core.statistics import JoinStatistics
from semistream.relation.devices.simulated_device import SimulatedDevice
from semistream.workloads.arrivals import Arrivals, ConstantArrivals, PoissonArrivals
from semistream.workloads.bursty import BurstyArrivals
from semistream_lab.experiments.measure.both_sides import Sides
from semistream_lab.experiments.measure.windows import Run
from semistream_lab.experiments.spec import Point

__all__ = ["Delays", "TimedRun", "arrivals_of"]


_PATIENCE = 0.25
"""Seconds that the clock jumps at most while a join waits for more tuples before it works on those it has."""
_ONE_BY_ONE = 4


def arrivals_of(settings: dict[str, Any], seed: int) -> Arrivals:
    """Return when tuples arrive: ``rate`` tuples a second, evenly, independently of each other, or in bursts."""
    rate = float(settings["rate"])
    if settings.get("arrivals") == "bursty":
        return BurstyArrivals(rate, seed=seed)
    if settings.get("arrivals") == "poisson":
        return PoissonArrivals(rate, seed=seed)
    return ConstantArrivals(rate)


@dataclass(frozen=True)
class Delays:
    """What tuples waited, one by one, in the order of their arrival; NaN for those without a result."""

    total: Floats
    """From arrival to result."""
    processing: Floats
    """Time that the join worked between taking a tuple in and its result."""

    @property
    def waiting(self) -> Floats:
        """The rest: before the join took the tuple in, and while the join waited for others to arrive."""
        return np.maximum(self.total - self.processing, 0.0)


class TimedRun(Run):
    """A join whose stream arrives at its own pace."""

    def __init__(self, point: Point, sides: Sides, arrivals: Arrivals) -> None:
        super().__init__(point, sides)
        device = sides.relation.device
        assert isinstance(device, SimulatedDevice)
        self.clock: VirtualClock = device.clock
        self.busy = 0.0
        self.offered = 0
        self._blocks = arrivals.blocks()
        self._times: Floats = next(self._blocks)
        self._start = self.clock.now()
        self._arrivals: Floats = np.empty(0)

    @property
    def now(self) -> float:
        """Seconds since the first tuple could have arrived."""
        return self.clock.now() - self._start

    def arrived(self) -> Floats:
        """Return the arrival times of all tuples that have come since this was asked last."""
        pieces = []
        while self._times[-1] < self.now:
            pieces.append(self._times)
            self._times = next(self._blocks)
        count = int(np.searchsorted(self._times, self.now, side="right"))
        pieces.append(self._times[:count])
        self._times = self._times[count:]
        if not self._times.size:
            self._times = next(self._blocks)
        return np.concatenate(pieces)

    def turn(self, before: JoinStatistics) -> tuple[Ints, bool]:
        """Let the join take a turn, and time pass by what was done since ``before``.

        Returns the numbers of the tuples that were served, and whether anything but taking tuples in was done.
        """
        served = [batch.column("number").to_numpy() for batch in self.join.step()]
        done = self.join.stats.since(before)
        worked = self.seconds(done)
        self.clock.advance(max(0.0, worked - done.io_seconds))
        self.busy += worked
        numbers = np.concatenate(served) if served else np.empty(0, np.int64)
        return numbers, done.reads > 0 or done.rows_done > 0

    def wait(self, jump: float) -> float:
        """Nothing to do: let time pass until a tuple comes, or a little if some wait; return the next jump."""
        if self.join.pending == 0:
            self.clock.advance_to(self._start + float(self._times[0]))
            return 0.0
        jump = min(_PATIENCE, 2 * jump + 1e-4)
        self.clock.advance(jump)
        return jump

    def play(self, tuples: int) -> Delays:
        """Let ``tuples`` arrive and be served; those that still wait when the last has come have no result."""
        arrivals, taken = np.empty(tuples), np.full(tuples, np.nan)
        total, processing = np.full(tuples, np.nan), np.full(tuples, np.nan)
        entered = 0
        for served in self._served(tuples, arrivals):
            now_in = min(self._entered, tuples)
            taken[entered:now_in] = self.busy
            entered = max(entered, now_in)
            known = served[served < tuples]
            total[known] = self.now - arrivals[known]
            processing[known] = self.busy - taken[known]
        self._arrivals = arrivals
        return Delays(total, processing)

    def longest(self, delays: Delays, window: slice) -> float:
        """Return what a tuple of a part of the stream waited at most; those still there have waited until now."""
        total = np.where(np.isnan(delays.total), self.now - self._arrivals, delays.total)
        return float(np.max(total[window]))

    @property
    def _entered(self) -> int:
        """Tuples that have entered the join's window: they do so in the order of their arrival."""
        stats = self.join.stats
        return stats.appended if self.join.waits else stats.rows_in

    def _served(self, tuples: int, arrivals: Floats) -> Iterator[Ints]:
        most = tuples if self.join.waits else _ONE_BY_ONE
        come, jump = 0, 0.0
        while self.feed.offered < tuples:
            times = self.arrived()
            end = min(tuples, come + times.size)
            arrivals[come:end] = times[: end - come]
            come = end
            before = self.join.stats
            if count := min(come - self.feed.offered, most):
                self.feed.offer(self.join, count)
                yield np.empty(0, np.int64)
            served, progress = self.turn(before)
            yield served
            jump = 0.0 if progress else self.wait(jump)
