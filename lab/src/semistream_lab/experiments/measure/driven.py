"""SSIJ under a stream of constant rate (§VI): the highest rate it sustains, with deadlines, and in bursts.

The paper raises the arrival rate until memory overflows. Here bisection finds this rate. A rate is sustained if every
arriving tuple finds room until the end of the run, and leaves by its deadline if it has one. A deadline counts from
arrival, not from the moment at which the join reads the tuple, which may be a join phase later.

Our join begins a join phase as soon as tuples that were looked up find no room to wait. The paper's begins one only
with ``SB_thresh`` tuples. If the threshold is what is measured, a phase that memory forces is an overflow, as in the
paper.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.joins.ssij.ssij import Ssij
from semistream.relation.devices.simulated_device import SimulatedDevice
from semistream_lab.experiments.measure.both_sides import Sides, open_sides
from semistream_lab.experiments.measure.windows import Feed, Run
from semistream_lab.experiments.spec import Point

__all__ = ["DrivenRun", "highest_rate", "late_tuples", "time_of_burst"]

Record = dict[str, Any]

_TRIALS = 7  # steps of the bisection
_PATIENCE = 64  # an idle join waits for 1/64 of an input batch
_DUE = "due"  # column with the moment by which a tuple must leave


class DueFeed(Feed):
    """A stream at a constant rate.

    Its tuples carry the moment by which they must leave instead of their number.
    """

    def __init__(self, sides: Sides, deadline: float) -> None:
        super().__init__(sides)
        self.deadline = deadline
        self._began, self._first, self._rate = 0.0, 0, 1.0

    def arrive(self, began: float, rate: float) -> None:
        """Let the next tuples arrive at ``rate``, beginning at the moment ``began``."""
        self._began, self._first, self._rate = began, self.offered, rate

    def offered_as(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        numbers = batch.column("number").to_numpy()
        due = self._began + (numbers - self._first + 1) / self._rate + self.deadline
        at = batch.schema.get_field_index("number")
        return batch.set_column(at, pa.field(_DUE, pa.float64()), pa.array(due))


class DrivenRun(Run):
    """SSIJ with tuples that arrive at a constant rate by the simulated clock."""

    join: Ssij

    def __init__(self, point: Point, sides: Sides) -> None:
        device = sides.relation.device
        assert isinstance(device, SimulatedDevice)
        self.clock = device.clock
        self.deadline: float | None = point.options.get("deadline")
        """Seconds from the arrival of a tuple to the moment by which it must leave; None without deadlines."""
        if self.deadline is not None:
            point = dataclasses.replace(point, options={**point.options, "clock": self.clock, "deadline": _DUE})
        super().__init__(point, sides)
        self._waits_for_threshold = bool(point.settings.get("waits_for_threshold"))
        if self.deadline is not None:
            self.feed = DueFeed(sides, self.deadline)

    @property
    def schema(self) -> pa.Schema:
        schema = super().schema
        if self.deadline is None:
            return schema
        return schema.set(schema.get_field_index("number"), pa.field(_DUE, pa.float64()))

    def turn(self) -> float:
        """Run one iteration of the join and advance the clock by its cost; return the seconds that passed."""
        before, began = self.join.stats, self.clock.now()
        for _ in self.join.step():
            pass
        done = self.join.stats.since(before)
        self.clock.advance(max(0.0, self.seconds(done) - done.io_seconds))
        return self.clock.now() - began

    def drive(self, rate: float, tuples: int) -> bool:
        """Let ``tuples`` more tuples arrive at ``rate``; return False as soon as one finds no room."""
        began, first = self.clock.now(), self.feed.offered
        least = max(1, min(tuples, self.join.input_tuples) // _PATIENCE)
        if isinstance(self.feed, DueFeed):
            self.feed.arrive(began, rate)
            least = max(1, min(least, int(self.feed.deadline * rate / 16)))
        while (taken := self.feed.offered - first) < tuples:
            come = min(tuples, int((self.clock.now() - began) * rate))
            if come > taken and not self._take_in(first + come):
                return False
            if self.turn() == 0.0 and come == taken:
                self._wait(rate, least)
            if self._waits_for_threshold and self.join.early_phases:
                return False
        return True

    def _take_in(self, upto: int) -> bool:
        """Offer the tuples that have arrived, ``upto`` in total; return False if some find no room.

        Looking tuples up may make room. A tuple that is still outside when a join phase begins has found none.
        """
        phases = self.join.join_phases
        while True:
            before = self.join.stats
            complete = self.feed.offer(self.join, upto - self.feed.offered)
            # reading tuples takes time too; tuples that arrive meanwhile are offered with the next ones
            done = self.join.stats.since(before)
            self.clock.advance(max(0.0, self.seconds(done) - done.io_seconds))
            if complete:
                return True
            idle = self.turn() == 0.0 and done.buffered == 0
            if idle or self.join.join_phases > phases:
                return False

    def _wait(self, rate: float, least: int) -> None:
        """Advance the clock of an idle join until ``least`` more tuples have arrived, or to the next deadline."""
        until = self.clock.now() + least / rate
        due = self.join.due
        if due is not None and due > self.clock.now():
            until = min(until, due)
        self.clock.advance_to(until)


def _run(point: Point, directory: Path) -> DrivenRun:
    return DrivenRun(point, open_sides(point.workload, "simulated", directory, point.seek_seconds))


def late_tuples(point: Point, directory: Path) -> Record:
    """Let tuples arrive at a given rate, and count the late ones after a warm-up."""
    rate, deadline = float(point.settings["rate"]), float(point.options["deadline"])
    tuples = int(max(point.settings["tuples"], 24 * deadline * rate))
    warm = int(tuples * float(point.settings.get("warm", 0.0)))
    run = _run(point, directory)
    sustained = run.drive(rate, warm)
    missed = run.join.missed_deadlines
    sustained = sustained and run.drive(rate, tuples - warm)
    return {
        "late": run.join.missed_deadlines - missed, "tuples": tuples - warm, "sustained": float(sustained),
        "join_phases": run.join.join_phases, "hit_ratio": run.join.stats.hit_ratio,
    }  # fmt: skip


def highest_rate(point: Point, directory: Path) -> Record:
    """Find the highest sustained rate; with deadlines, the highest rate at which all are met."""
    tuples = int(point.settings["tuples"])
    deadline = point.options.get("deadline")
    low, high = (float(bound) for bound in point.settings["between"])
    best: Record = {}
    for _ in range(int(point.settings.get("trials", _TRIALS))):
        rate = (low * high) ** 0.5
        run = _run(point, directory)
        # a deadline has an effect only in runs that are several deadlines long
        length = tuples if deadline is None else int(min(max(tuples / 8, 24 * float(deadline) * rate), 4.0 * tuples))
        warm = int(length * float(point.settings.get("warm", 0.0)))
        sustained = run.drive(rate, warm)
        missed = run.join.missed_deadlines
        sustained = sustained and run.drive(rate, length - warm)
        late = run.join.missed_deadlines - missed
        if sustained and late == 0:
            low = rate
            stats = run.join.stats
            best = {
                "hit_ratio": stats.hit_ratio, "late": late, "join_phases": run.join.join_phases,
                "cached_pages": run.join.cached_pages, "virtual_seconds": run.clock.now(),
            }  # fmt: skip
        else:
            high = rate
    # the limit is between the highest rate that was sustained and the lowest that was not
    return {"sustained": (low * high) ** 0.5, "sustained_interval": (high - low) / 2, **best}


def time_of_burst(point: Point, directory: Path) -> Record:
    """Warm up, find the nominal rate with a stream that never runs dry, and exceed it until memory overflows."""
    run = _run(point, directory)
    warm = int(point.settings["tuples"])
    spent = 0.0
    for part in (warm // 2, warm // 2):
        before, spent = run.feed.offered, 0.0
        while run.feed.offered - before < part:
            run.feed.offer(run.join, run.join.input_tuples)
            spent += run.turn()
    nominal = (warm // 2) / spent
    while run.turn() > 0.0:  # look up the remaining tuples; they still wait for their join phase
        pass
    began = run.clock.now()
    rate = nominal * (1.0 + float(point.settings["burst"]))
    overflowed = not run.drive(rate, int(point.settings["most"]))
    return {
        "duration": run.clock.now() - began, "nominal": nominal, "overflowed": overflowed,
        "hit_ratio": run.join.stats.hit_ratio,
    }  # fmt: skip
