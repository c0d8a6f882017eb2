"""Runs by a clock: tuples arrive at their own times, and their delays are measured.

The clock is that of the simulated device. It advances by the price of what the join did. If there is nothing to do, it
jumps to the next arrival. A tuple is served when its result is emitted.
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
"""Largest jump of the clock, in seconds, while a join waits for more tuples."""
_ONE_BY_ONE = 4
"""Tuples offered at a time to a join in which none wait."""


def arrivals_of(settings: dict[str, Any], seed: int) -> Arrivals:
    """Return the arrival times: ``rate`` tuples per second, evenly spaced, independent of each other, or in bursts."""
    rate = float(settings["rate"])
    if settings.get("arrivals") == "bursty":
        return BurstyArrivals(rate, seed=seed)
    if settings.get("arrivals") == "poisson":
        return PoissonArrivals(rate, seed=seed)
    return ConstantArrivals(rate)


@dataclass(frozen=True)
class Delays:
    """Delays of tuples in seconds, in the order of arrival; NaN for tuples without a result."""

    total: Floats
    """From arrival to result."""
    processing: Floats
    """Time that the join worked between reading a tuple and its result."""

    @property
    def waiting(self) -> Floats:
        """The rest: the time before the join read the tuple, and while the join waited for others to arrive."""
        return np.maximum(self.total - self.processing, 0.0)


class TimedRun(Run):
    """A join whose tuples arrive at given times."""

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
        """Return the arrival times of all tuples that have arrived since the last call."""
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
        """Run one iteration of the join, and advance the clock by what was done since ``before``.

        Returns the numbers of the tuples that were served, and whether the join did more than read tuples.
        """
        served = [batch.column("number").to_numpy() for batch in self.join.step()]
        done = self.join.stats.since(before)
        worked = self.seconds(done)
        self.clock.advance(max(0.0, worked - done.io_seconds))
        self.busy += worked
        numbers = np.concatenate(served) if served else np.empty(0, np.int64)
        return numbers, done.reads > 0 or done.rows_done > 0

    def wait(self, jump: float) -> float:
        """Advance the clock of an idle join to the next arrival, or a little if tuples wait; return the next jump."""
        if self.join.pending == 0:
            self.clock.advance_to(self._start + float(self._times[0]))
            return 0.0
        jump = min(_PATIENCE, 2 * jump + 1e-4)
        self.clock.advance(jump)
        return jump

    def play(self, tuples: int) -> Delays:
        """Let ``tuples`` tuples arrive and be served.

        Tuples that still wait at the last arrival have no result.
        """
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
        """Return the longest delay in a part of the stream.

        Tuples still in the join have waited until now.
        """
        total = np.where(np.isnan(delays.total), self.now - self._arrivals, delays.total)
        return float(np.max(total[window]))

    @property
    def _entered(self) -> int:
        """Number of tuples that have entered the join's window, in the order of arrival."""
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
