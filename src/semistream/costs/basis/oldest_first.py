"""The disk side of joins whose oldest tuple decides what is read (HYBRIDJOIN §4.4; X-HYBRIDJOIN §4.3).

Each tuple that reaches it costs ``(S + T·pages) / w`` of reading and ``d / w`` probes, where `queue_steady_state` gives
``w``. An iteration reads the partitions of many oldest keys; neighbouring partitions share a seek.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from semistream.core.arrays import Floats
from semistream.costs.basis.popularity import KeyClasses, Units
from semistream.costs.basis.queue_steady_state import SteadyState, both_ends, oldest_first
from semistream.costs.basis.queue_waves import empty_places, play_laps
from semistream.costs.basis.setting import Setting

__all__ = ["BothEnds", "OldestFirst"]


_PAGES_A_SEEK = 8
_WAVE = 0.15
"""Share of the queue; a unit whose read empties less than this makes no waves."""
_ROUNDS = 8
_AMPLE = 4.0
"""A buffer that holds this many times the tuples of an iteration never limits their entry."""
_HARDLY = 1e-9
"""If less than this share of the stream needs the disk, there is no queue that could have waves."""


class OldestFirst:
    """The disk side alone: the work of an iteration with a given table and frames.

    Parameters
    ----------
    setting, keys
        R, and the tuples that arrive.
    capacity
        Tuples that the table holds.
    frames
        Pages of the disk buffer.
    partition_pages
        None adapts, as the join does. No partition is wider than a buffer.
    pages
        The pages of R, if some of them are held in memory.
    most
        Tuples that can enter per iteration, if the buffer before the join holds no more. Then the table is never full.
    piece
        Tuples that arrive together in the buffer before the join.
    stay
        Share of entering tuples that wait. The others leave immediately, and their room is empty for this iteration.
    """

    buffers = 1
    """Disk buffers that share the frames."""

    def __init__(
        self, setting: Setting, keys: KeyClasses, capacity: float, frames: int,
        partition_pages: int | None, seek_pages: float, pages: KeyClasses | None = None, most: float = math.inf,
        piece: float = math.inf, stay: float = 1.0,
    ) -> None:  # fmt: skip
        self.setting = setting
        self.keys = keys
        self.capacity = capacity
        self.frames = frames = max(1, frames // self.buffers)
        self.page_classes = pages
        self.most, self.piece = most, piece
        self.stay = stay
        if partition_pages is not None:
            self.width = min(partition_pages, frames)
            self.state = self._state(self.width)
            return
        self.width, self.state = 1, self._state(1)
        widest = max(1, min(frames, setting.pages, int(_PAGES_A_SEEK * seek_pages)))
        if self._looks_dense(seek_pages) and widest > 1:
            wide = self._state(widest)
            # the join reads neighbours while they are useful often enough; else it falls back, and tries again
            if self._useful(wide, widest) * (1.0 + seek_pages) > 1.0:
                self.width, self.state = widest, wide

    def _state(self, width: int) -> SteadyState:
        keys_a_unit = max(1.0, self.setting.keys / self.setting.pages * width)
        units, keys = self._units(width), max(1, self.frames // width)
        state = self._turn(units, keys, keys_a_unit)
        if self.keys.stay is None or self.page_classes is not None:
            return state
        return self._turn(self.keys.ripened(units, self.setting, width, state.wait), keys, keys_a_unit)

    def _turn(self, units: Units, keys: float, keys_a_unit: float) -> SteadyState:
        even = self._even(units, keys, keys_a_unit)
        asked_for = units.total(units.popularity)
        if asked_for < _HARDLY or float(units.popularity.max()) * even.wait < _WAVE * self.capacity:
            return self._entering(units, even, lambda waiting: oldest_first(units, waiting, keys, keys_a_unit))
        served, wait, part = play_laps(units, self.capacity, even.units, self.most, even.wait, self.stay)
        return SteadyState(wait, served, even.units, even.runs, part)

    def _even(self, units: Units, keys: float, keys_a_unit: float) -> SteadyState:
        """Return the state without waves.

        Of ``n`` places that are empty when an iteration begins, ``(1 - stay)·n`` are still empty when it reads. So with
        ``s`` answered tuples ``n = (1 - stay)·n + s``, and ``s`` is roughly proportional to the waiting tuples.
        """
        waiting = float(self.capacity)
        even = oldest_first(units, waiting, keys, keys_a_unit)
        for _ in range(_ROUNDS if self.stay < 1.0 else 0):
            waiting = self.capacity / (1.0 + (1.0 - self.stay) / self.stay * even.tuples / waiting)
            even = oldest_first(units, waiting, keys, keys_a_unit)
        return even

    def _entering(self, units: Units, full: SteadyState, state: Callable[[float], SteadyState]) -> SteadyState:
        """Return the steady state if an iteration can admit at most ``most`` tuples to replace the ones that leave."""
        if self.most > _AMPLE * full.tuples or full.tuples <= 1.0:
            return full
        empty = empty_places(units, full, self.capacity, self.most, self.piece)
        if empty < 1.0:
            return full
        waiting = max(1.0, self.capacity - empty)
        found = state(waiting)
        for _ in range(_ROUNDS):  # not more tuples are answered than can enter
            if found.tuples <= self.most or waiting <= 1.0:
                break
            waiting = max(1.0, waiting * self.most / found.tuples)
            found = state(waiting)
        return found

    def _units(self, width: int) -> Units:
        if self.page_classes is None:
            return self.keys.units(self.setting, width)
        return self.page_classes.grouped(float(width), self.setting.shape)

    def _looks_dense(self, seek_pages: float) -> bool:
        """Return whether the join, while it reads single pages, would estimate that neighbours are worth reading."""
        density = -math.expm1(-self.waiting_keys() / self.setting.pages)
        return density * (1.0 + seek_pages) > 1.0

    def _useful(self, state: SteadyState, width: int) -> float:
        """Return the share of pages, read only as neighbours, that some tuple waits for."""
        units = self._units(1)
        wait = state.wait
        read = units.popularity / (1.0 + units.popularity * (width if units.neighbours else 1) * wait)
        weight = read if units.neighbours else np.ones_like(read)
        return units.total(weight * -np.expm1(-units.popularity * wait)) / units.total(weight)

    def waiting_keys(self) -> float:
        """Return the distinct keys that wait."""
        own, unit = self.keys.in_units(self.setting, self.width)
        wait = self.state.wait
        busy = unit * wait / (1.0 + unit * wait)
        lone = (1.0 - own / unit) * -np.expm1(-own * wait) / np.maximum(own * wait, 1e-12)
        keys = self.keys.count * self.keys.missing
        return float(np.dot(keys, busy * np.clip(1.0 - lone, 0.0, 1.0)))

    def events(self) -> Floats:
        """Return match events for each class of keys, per tuple of the whole stream."""
        own, unit = self.keys.in_units(self.setting, self.width)
        wait = self.state.wait
        matched = 1.0 - (1.0 - own / unit) * np.exp(-own * wait)
        return matched / (1.0 / unit + wait) * max(self.keys.miss_share, 1e-12)

    @property
    def pages(self) -> float:
        """Pages read per tuple."""
        beyond = (self.setting.rows_per_key - 1.0) / self.setting.rows_per_page  # a key's rows on other pages
        return (self.width * self.state.part + beyond) / self.state.served

    @property
    def reads(self) -> float:
        """Seeks per tuple."""
        return self.state.runs / self.state.tuples


class BothEnds(OldestFirst):
    """The disk side of OP-CACHEJOIN: two buffers of half the frames, for the oldest keys and for the newest."""

    buffers = 2

    def _turn(self, units: Units, keys: float, keys_a_unit: float) -> SteadyState:
        def state(waiting: float) -> SteadyState:
            return both_ends(units, waiting, keys, keys, keys_a_unit)

        return self._entering(units, state(self.capacity), state)
