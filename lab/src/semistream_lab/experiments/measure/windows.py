"""A join that is fed as fast as it takes tuples: first into the steady state, then window after window."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from semistream.core.machine import stolen_seconds
from semistream.core.statistics import JoinStatistics
from semistream.costs import Constants, Setting, costs_of, load_constants, modelled, simulated_seconds
from semistream.costs.basis.constants import DEFAULT
from semistream.costs.basis.front_stage import FrontCosts
from semistream.joins import find
from semistream.joins.families.front_stage import FrontStage
from semistream.joins.interface.contract import Overlap
from semistream.joins.interface.join import Join
from semistream.joins.ssij.ssij import Ssij
from semistream.relation.devices.simulated_device import SimulatedDevice
from semistream.tuner.search import best_split
from semistream_lab.experiments.measure.both_sides import KEY, Sides, stream_schema
from semistream_lab.experiments.measure.machine_costs import slower
from semistream_lab.experiments.measure.published_bytes import PaperBytes, published_budget, published_setting
from semistream_lab.experiments.measure.settled_cache import arrived, missed_by, warm_front_stage
from semistream_lab.experiments.measure.settled_queue import (
    fill_queue,
    newest_number,
    oldest_first,
    oldest_number,
    queue_of,
)
from semistream_lab.experiments.measure.silent import silent
from semistream_lab.experiments.spec import Point

__all__ = ["Feed", "Run", "Window", "predicted_rate", "setting_of"]

_ONE_BY_ONE = 64  # tuples offered at a time to a join in which none wait; also the reads of its windows
_OF_THE_MODEL = ("seek_pages", "in_flight", "buffer_share", "by_frequency", "replacement", "max_scan", "scan_pinned")
_PORTION = 2048  # tuples offered at a time while the queue is filled
_FIRST_TURNS = 8  # iterations that are discarded after the queue is filled
_MOST_ROUNDS = 8  # limit of the rounds until the buffer behind a cache is full
_REAL_WINDOW_SECONDS = 0.25
_REAL_LAP_SECONDS, _REAL_PASS_SECONDS = 1.5, 6.0
"""Seconds of a window on a real device: its minimum, and its maximum for a lap of the queue and for a pass or phase."""
_REAL_WARM_SECONDS = 1.0
_STOLEN, _MOST_SPOILT, _MOST_SECONDS = 0.02, 3, 60.0
"""Maximum share of a window that the host gives to other machines; limits of repeats: multiple of windows, seconds."""


def setting_of(sides: Sides, constants: Constants) -> Setting:
    """Describe a workload to the cost models."""
    workload = sides.workload
    return Setting.of(
        sides.relation,
        stream_schema(workload.stream_bytes),
        exponent=workload.exponent,
        shape=workload.shape,
        rows_per_key=float(workload.rows_per_key),
        constants=constants,
    )


class Feed:
    """The stream, beginning with tuple ``start``, as a join takes it."""

    def __init__(self, sides: Sides, start: int = 0) -> None:
        self._batches = sides.batches(start)
        self._batch = next(self._batches)
        self._at = 0
        self.offered = 0

    def offer(self, join: Join, most: int) -> bool:
        """Offer up to ``most`` tuples; return False if the join takes no more."""
        while most > 0:
            if self._at == self._batch.num_rows:
                self._batch, self._at = next(self._batches), 0
            rest = self._batch.slice(self._at, most)
            taken = join.offer(self.offered_as(rest))
            self._at += taken
            self.offered += taken
            most -= taken
            if taken < rest.num_rows:
                return False
        return True

    def offered_as(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch in the form in which it is offered."""
        return batch


@dataclass(frozen=True)
class Window:
    """The counters of a window, and its duration."""

    done: JoinStatistics
    seconds: float
    stolen: float = 0.0
    """Seconds in which the host gave the processor to other machines."""

    @property
    def lost(self) -> float:
        """The share of the time that the host gave to other machines."""
        return self.stolen / self.seconds if self.seconds else 0.0

    @property
    def rate(self) -> float:
        """Stream tuples per second."""
        return self.done.rows_done / self.seconds if self.seconds else 0.0


class Run:
    """A join at work, with a clock.

    On a simulated device, time is the device's time plus the price of the counted operations. On a real one it is real.

    Parameters
    ----------
    point, sides
        What to measure, and the stream and relation to join.
    constants
        Prices of operations and reads, for the model and the simulated clock. A simulated device has its own read time.
    """

    def __init__(self, point: Point, sides: Sides, constants: Constants | None = None) -> None:
        self.point, self.sides = point, sides
        self.simulated = sides.blankable is not None
        self.constants = constants or load_constants(DEFAULT)
        if self.simulated:
            self.constants = self.constants.on(sides.relation.device.measure(), sides.relation.page_bytes)
        if point.settings.get("counted"):  # results are counted and cost nothing
            self.constants = dataclasses.replace(self.constants, emit=0.0)
        if times := point.settings.get("processor"):  # a slower processor: it decides when tuples are served
            self.constants = slower(self.constants, float(times))
        if isinstance(device := sides.relation.device, SimulatedDevice):
            device.longest_run = point.settings.get("scan_pages")
        self.setting = setting_of(sides, self.constants)
        self.memory = point.memory
        """Bytes: the point's budget, or the one in which the join holds as many tuples as the paper's join does."""
        self.options = self._options()
        if (paper := point.settings.get("bytes")) is not None:
            of = PaperBytes(**paper)
            self.memory, self.options = published_budget(self._opened, self.setting, point.memory, self.options, of)
        algorithm = find(point.algorithm)
        self.join: Join = self._opened(self.memory, self.options)
        self._queue = queue_of(self.join) if self.simulated else oldest_first(self.join)
        self.feed = Feed(sides)
        self._most = 1 << 40 if algorithm.waits else _ONE_BY_ONE
        self._phases = self._rounds = 0
        self._newest: int | None = None
        self.spoilt = 0
        """Windows that do not count because the host gave the processor to other machines."""

    def _opened(self, memory: int, options: dict[str, Any]) -> Join:
        """Open the join; in simulated runs it only counts its results, unless they are needed."""
        algorithm = find(self.point.algorithm)
        if self.simulated and not self.point.settings.get("results"):
            algorithm = silent(algorithm)
        return algorithm(self.sides.relation, on=KEY, memory=memory, schema=self.schema, how="inner", **options)

    @property
    def schema(self) -> pa.Schema:
        """The columns of a stream tuple."""
        return stream_schema(self.sides.workload.stream_bytes)

    def _options(self) -> dict[str, Any]:
        """Return the point's options; if the point is tuned, the cost model chooses the others."""
        options = dict(self.point.options)
        if self.simulated and find(self.point.algorithm).overlap is not Overlap.NOTHING:
            options["threads"] = False
        if self.point.tuned:
            setting, memory = self.setting, self.memory
            if (paper := self.point.settings.get("bytes")) is not None:  # split the paper's bytes
                setting, memory = published_setting(setting, memory, PaperBytes(**paper))
            options |= best_options(dataclasses.replace(self.point, memory=memory), setting)
        return options

    def advance(self) -> Iterator[pa.RecordBatch]:
        """Fill the join's buffer and run one iteration."""
        self.feed.offer(self.join, self._most)
        yield from self.join.step()

    def warm_up(self) -> int:
        """Run into the steady state; return the number of tuples offered."""
        if self.point.settings.get("begin") == "empty":  # the join learns everything itself
            while self.feed.offered < self.point.settings["warm_tuples"]:
                self._discard()
        elif self.simulated:
            steady = None
            if isinstance(self.join, FrontStage) and self.setting.exponent > 0.0:
                costs = costs_of(self.point.algorithm)
                assert isinstance(costs, FrontCosts)
                steady = costs.steady_cache(self.setting, self.memory, **self._modelled_options())
                warm_front_stage(self.join, self.sides, steady)
            others = missed_by(self.join, self.sides, steady)
            if self.join.scans:
                self._fill_queue(others)
            elif fill_queue(self.join, others):
                for _ in range(_FIRST_TURNS):
                    self._discard()
                if isinstance(self.join, FrontStage):
                    self._window()  # until the cache and the queue are consistent
            else:
                self._turn_over()
        else:
            began, counters = time.perf_counter(), self.sides.relation.counters
            pages = self.sides.relation.page_count
            while time.perf_counter() - began < _REAL_WARM_SECONDS or (
                self.join.scans and (self.sides.relation.counters - counters).pages < 1.2 * pages
            ):
                self._discard()
            if self._queue is not None or isinstance(self.join, Ssij):
                self._window()
        return self.feed.offered

    def _fill_queue(self, others: Sides) -> None:
        """Add tuples that no cache answers until the first ones leave: then the queue of a scanning join is full."""
        assert self.sides.blankable is not None
        self.feed = Feed(others)
        self.sides.blankable.blank = True
        while self.join.stats.evicted == 0:
            # few at a time: tuples of this stream that stay in the stream buffers would be measured too
            if arrived(self.join) < _PORTION:
                self.feed.offer(self.join, _PORTION)
            for _ in self.join.step():
                pass
        self.sides.blankable.blank = False
        # continue after the waiting tuples: a cache would recognize keys that it sees again
        self.feed = Feed(self.sides, self.feed.offered)
        held, rounds = -1, 0
        # behind a cache, run until its stream buffer is full: while it fills, more of the stream passes the cache
        while arrived(self.join) > 1.01 * held and rounds < _MOST_ROUNDS:
            held, rounds, before = arrived(self.join), rounds + 1, self.join.stats
            while not self._far_enough(self.join.stats.since(before), 2 * self.point.passes, self.point.probes):
                self._discard()
            if not isinstance(self.join, FrontStage):
                break

    def _turn_over(self) -> None:
        """Read all of R ``warm_passes`` times, unless that needs too many look-ups."""
        probes = int(max(1.0, self.point.warm_passes) * self.point.probes)
        while not self._far_enough(self.join.stats, self.point.warm_passes, probes):
            self._discard()

    def _discard(self) -> None:
        for _ in self.advance():
            pass

    def windows(self) -> Iterator[Window]:
        """Measure the windows; on a real machine, repeat disturbed ones, and count only the least disturbed."""
        count, taken = self.point.windows, [self._window() for _ in range(self.point.windows)]
        if not self.simulated:
            most, began = count * (1 + _MOST_SPOILT), time.perf_counter()
            while sum(window.lost <= _STOLEN for window in taken) < count and len(taken) < most:
                taken.append(self._window())
                if time.perf_counter() - began > _MOST_SECONDS:
                    break
        self.spoilt = len(taken) - count
        least = sorted(range(len(taken)), key=lambda at: taken[at].lost)[:count]
        yield from (taken[at] for at in sorted(least))

    def _window(self) -> Window:
        stolen, before, began = stolen_seconds(), self.join.stats, time.perf_counter()
        self._phases = self.join.join_phases if isinstance(self.join, Ssij) else 0
        self._rounds = 0
        self._newest = None if self._queue is None else newest_number(self._queue)
        while True:
            self._discard()
            done = self.join.stats.since(before)
            if self._complete(done, time.perf_counter() - began):
                break
        if self.simulated and self.join.scans:
            # results of the tuples that leave in the window: the pages read in it may have many more, or fewer
            done = dataclasses.replace(done, rows_out=round(done.rows_done * self.sides.partners))
        if self.simulated:
            return Window(done, self.seconds(done))
        return Window(done, time.perf_counter() - began, stolen_seconds() - stolen)

    def _complete(self, done: JoinStatistics, wall: float) -> bool:
        lap = None if self._queue is None or self._newest is None else oldest_number(self._queue) > self._newest
        if not self.simulated:
            whole, most = (lap, _REAL_LAP_SECONDS) if lap is not None else (self._came_round(done), _REAL_PASS_SECONDS)
            return done.rows_done > 0 and wall >= _REAL_WINDOW_SECONDS and (whole or wall >= most)
        if lap is not None:
            return lap or done.probes >= self.point.probes
        return self._far_enough(done, self.point.passes, self.point.probes)

    def _came_round(self, done: JoinStatistics) -> bool:
        """Whether this iteration completed a pass or a join phase: pages are not equally popular."""
        if isinstance(self.join, Ssij):
            rounds = self.join.join_phases - self._phases
        elif self.join.scans:
            rounds = done.pages_read // self.sides.relation.page_count
        else:
            return True
        rounds, self._rounds = rounds - self._rounds, rounds
        return rounds > 0

    def _far_enough(self, done: JoinStatistics, passes: float, probes: int) -> bool:
        if not self.join.waits:  # no state, and one read per tuple
            return done.reads >= _ONE_BY_ONE
        if isinstance(self.join, Ssij):
            # join phases since the window began
            return self.join.join_phases - self._phases >= math.ceil(passes) or done.rows_done >= probes
        return done.pages_read >= passes * self.sides.relation.page_count or done.probes >= probes

    def seconds(self, done: JoinStatistics) -> float:
        """Return the seconds that the simulated machine needs for these counts."""
        return simulated_seconds(self.join.overlap, done, done.io_seconds, self.constants)

    def counting(self, windows: Sequence[Window]) -> tuple[list[float], float | None]:
        """Return the rates of windows, and the model's rate, with results counted but not materialized."""
        constants = dataclasses.replace(self.constants, emit=0.0)
        rates = [self._rate(window, constants) for window in windows]
        return rates, self.predicted(setting_of(self.sides, constants))

    def _rate(self, window: Window, constants: Constants) -> float:
        done = window.done
        return done.rows_done / simulated_seconds(self.join.overlap, done, done.io_seconds, constants)

    def _modelled_options(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if name != "threads"}

    def predicted(self, setting: Setting | None = None) -> float | None:
        """Return the cost model's rate for this run, or for another setting."""
        return predicted_rate(self.point.algorithm, setting or self.setting, self.memory, self.options)


def predicted_rate(algorithm: str, setting: Setting, memory: int, options: Mapping[str, Any]) -> float | None:
    """Return the cost model's rate for a join with these options; None if there is no model."""
    options = {name: value for name, value in options.items() if name != "threads"}
    if algorithm not in modelled() or options.get("replacement") == "lru":
        return None
    if not find(algorithm).waits:
        options["arriving"] = _ONE_BY_ONE
    return costs_of(algorithm).rate(setting, memory, **options)


def best_options(point: Point, setting: Setting) -> dict[str, Any]:
    """Return the options with the highest rate by the cost model; the point's own options stay fixed."""
    # a join can be given the options that suit another join
    costs = costs_of(point.settings.get("tuned_as", point.algorithm))
    known = costs.choices(setting, point.memory)
    fixed = {name: value for name, value in point.options.items() if name in (*known, *_OF_THE_MODEL)}
    found = best_split(costs, setting, point.memory, fixed=fixed)
    return {name: found.options[name] for name in known if name not in fixed}
