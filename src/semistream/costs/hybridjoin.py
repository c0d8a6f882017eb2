"""HYBRIDJOIN and X-HYBRIDJOIN: the oldest tuple chooses what is read (HYBRIDJOIN §4.4; X-HYBRIDJOIN §4.3, §6).

=============  =============================================================================================
symbol         meaning
=============  =============================================================================================
``h_S``        stream tuples that wait
``d``, ``d_S`` rows of R read at once for a key: a partition of ``partition_pages``
``d_N``        rows of the pinned pages (X-HYBRIDJOIN)
``w``          stream tuples that one read serves; see `semistream.costs.basis.queue_steady_state`
``p_N``        share of the stream that the pinned pages answer
=============  =============================================================================================

For each tuple that reaches the disk side: ``(S + T·pages) / w`` of reading, ``d / w`` probes, and its own
``c_S + c_A + c_E + K·c_O``. A turn reads the partitions of many oldest keys; those that are neighbours share a seek.

Departures from the papers' models. ``w`` is derived, not fitted (HYBRIDJOIN Eq. 2), and covers any exponent and place
of the frequent keys. X-HYBRIDJOIN's non-swappable part is probed by tuples that come in instead of probing all of its
rows in ``H_S``, so it costs one ``c_H`` a tuple instead of ``d_N·c_H`` a turn (Eq. 5).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semistream.costs.basis.model import Memory, common_memory
from semistream.costs.basis.popularity import KeyClasses, Units
from semistream.costs.basis.queue_steady_state import SteadyState, both_ends, oldest_first, root
from semistream.costs.basis.queue_waves import play_laps
from semistream.costs.basis.served import DiskCosts, Served, matched_in_passes
from semistream.costs.basis.setting import Setting
from semistream.joins.oldest_first import DISK_SHARE, IN_FLIGHT
from semistream.structures.directory import entries_for
from semistream.structures.stream_table import StreamTable

__all__ = ["HybridJoinCosts", "OldestFirst", "XHybridJoinCosts"]

Floats = NDArray[np.float64]

_PAGES_A_SEEK = 8
_PORTION = 1 << 14
_WAVE = 0.15
"""A unit that empties less than this of the queue makes no waves."""
_HARDLY = 1e-9
"""Where less than this of the stream asks for anything on the disk, no queue forms that could have waves."""


class OldestFirst:
    """The disk side alone: given a table and frames, what a turn does.

    Parameters
    ----------
    setting, keys
        R, and the tuples that come.
    capacity
        Tuples that the table holds.
    frames
        Pages of the disk buffer.
    partition_pages
        None adapts, as the join does. No partition is wider than a buffer.
    pages
        The pages of R, if some of them are held in memory.
    most
        Tuples that can enter in a turn, if what is before the join holds no more: then the table does not fill up.
    """

    buffers = 1
    """Disk buffers that share the frames."""

    def __init__(
        self, setting: Setting, keys: KeyClasses, capacity: float, frames: int,
        partition_pages: int | None, seek_pages: float, pages: KeyClasses | None = None, most: float = math.inf,
    ) -> None:  # fmt: skip
        self.setting = setting
        self.keys = keys
        self.capacity = capacity
        self.frames = frames = max(1, frames // self.buffers)
        self.page_classes = pages
        self.most = most
        if partition_pages is not None:
            self.width = min(partition_pages, frames)
            self.state = self._state(self.width)
            return
        self.width, self.state = 1, self._state(1)
        widest = max(1, min(frames, setting.pages, int(_PAGES_A_SEEK * seek_pages)))
        if self._looks_dense(seek_pages) and widest > 1:
            wide = self._state(widest)
            # the join reads on while neighbours are useful often enough; else it falls back, and tries again
            if self._useful(wide, widest) * (1.0 + seek_pages) > 1.0:
                self.width, self.state = widest, wide

    def _state(self, width: int) -> SteadyState:
        keys_a_unit = max(1.0, self.setting.keys / self.setting.pages * width)
        units, keys = self._units(width), max(1, self.frames // width)
        return self._turn(units, keys, keys_a_unit)

    def _turn(self, units: Units, keys: float, keys_a_unit: float) -> SteadyState:
        even = oldest_first(units, self.capacity, keys, keys_a_unit)
        asked_for = units.total(units.popularity)
        if asked_for < _HARDLY or float(units.popularity.max()) * even.wait < _WAVE * self.capacity:
            return self._entering(even, lambda waiting: oldest_first(units, waiting, keys, keys_a_unit))
        served, wait = play_laps(units, self.capacity, even.units, self.most, even.wait)
        return SteadyState(wait, served, even.units, even.runs)

    def _entering(self, full: SteadyState, state: Callable[[float], SteadyState]) -> SteadyState:
        """Return the state with so many waiting as can enter in the place of those who leave."""
        if full.tuples <= self.most or full.tuples <= 1.0:
            return full
        return state(root(lambda waiting: state(waiting).tuples - self.most, 1.0, self.capacity, exact=1e-3))

    def _units(self, width: int) -> Units:
        if self.page_classes is None:
            return self.keys.units(self.setting, width)
        return self.page_classes.grouped(float(width), self.setting.shape)

    def _looks_dense(self, seek_pages: float) -> bool:
        """Say whether the join, reading single pages, would guess that neighbours are worth reading."""
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
        """Return match events for each class of keys, for each tuple of the whole stream."""
        own, unit = self.keys.in_units(self.setting, self.width)
        wait = self.state.wait
        matched = 1.0 - (1.0 - own / unit) * np.exp(-own * wait)
        return matched / (1.0 / unit + wait) * max(self.keys.miss_share, 1e-12)

    @property
    def pages(self) -> float:
        """Pages read for each tuple."""
        beyond = (self.setting.rows_per_key - 1.0) / self.setting.rows_per_page  # a key's rows in other pages
        return (self.width + beyond) / self.state.served

    @property
    def reads(self) -> float:
        """Seeks for each tuple."""
        return self.state.runs / self.state.tuples


class BothEnds(OldestFirst):
    """The disk side of OP-CACHEJOIN: two buffers of half the frames, for the oldest keys and for the newest."""

    buffers = 2

    def _turn(self, units: Units, keys: float, keys_a_unit: float) -> SteadyState:
        def state(waiting: float) -> SteadyState:
            return both_ends(units, waiting, keys, keys, keys_a_unit)

        return self._entering(state(self.capacity), state)


class HybridJoinCosts(DiskCosts):
    """The disk buffer takes an eighth of the memory at most, the stream table the rest."""

    id = "hybridjoin"
    side = OldestFirst

    def serve(
        self, setting: Setting, memory: int, keys: KeyClasses, *,
        partition_pages: int | None = None, in_flight: int = IN_FLIGHT, seek_pages: float = 3.0,
        disk_share: float = DISK_SHARE, most: float = math.inf, **options: Any,
    ) -> Served:  # fmt: skip
        parts = common_memory(setting, memory, index=True)
        frames = self.give_disk_buffer(setting, parts, partition_pages, in_flight, int(parts.free * disk_share))
        capacity = self.give_table(setting, parts)
        # what the stream buffer holds enters between two turns, and no more
        most = min(most, parts.parts["stream buffer"] / setting.buffered_bytes)
        side = self.side(setting, keys, capacity, frames, partition_pages, seek_pages, most=most)
        return Served(
            parts,
            {
                **options, "partition_pages": partition_pages, "in_flight": in_flight, "seek_pages": seek_pages,
                "disk_share": disk_share,
            },
            probes=side.pages * setting.rows_per_page,
            reads=side.reads,
            pages=side.pages,
            seek=setting.seek_with(max(1, side.frames // side.width)),
            turns=1.0 / side.state.tuples,
            events=side.events(),
            details={
                "w": side.state.served, "h_S": capacity, "width": side.width, "turn": side.state.tuples,
                "kappa": side.state.served * setting.pages / (side.width * capacity),
            },
        )  # fmt: skip

    def least(self, setting: Setting, **options: Any) -> int:
        table = 16 * setting.waiting_bytes + StreamTable.fixed_bytes()
        return (options.get("partition_pages") or 1) * setting.frame_bytes + table

    def choices(self, setting: Setting, memory: int) -> dict[str, list[Any]]:
        """Return partition sizes up to half of the memory."""
        room = common_memory(setting, memory, index=True).free // 2 // setting.frame_bytes
        sizes = [pages for pages in _doubling(setting.pages) if pages <= max(1, room)]
        # where reads overlap, more in flight only help; where they do not, more only take memory
        flights = [IN_FLIGHT] if setting.queued_seek < setting.seek else [1, 16, IN_FLIGHT]
        return {"partition_pages": sizes, "in_flight": flights}

    def give_disk_buffer(
        self, setting: Setting, parts: Memory, partition_pages: int | None, in_flight: int, share: int
    ) -> int:
        """Give frames for as many partitions as are wanted and fit into ``share``, at least one; return the pages."""
        pages = partition_pages or 1
        least = HybridJoinCosts.least(self, setting, partition_pages=pages)
        if least > parts.free:
            raise self._too_small(setting, parts, least)
        frames = min(in_flight, max(1, share // (pages * setting.frame_bytes))) * pages
        parts.give("disk buffer", frames * setting.frame_bytes)
        return frames

    def give_table(self, setting: Setting, parts: Memory) -> int:
        """Give all that is left to the stream table; return its capacity."""
        capacity = (parts.free - StreamTable.fixed_bytes()) // setting.waiting_bytes
        if capacity < 1:
            raise self._too_small(setting, parts, setting.waiting_bytes + StreamTable.fixed_bytes())
        parts.give("stream table", capacity * setting.waiting_bytes + StreamTable.fixed_bytes())
        return capacity


class XHybridJoinCosts(HybridJoinCosts):
    """Some pages are pinned, and answer what the stream wants of them without a read.

    Memory: ``(k + l)·v_P`` and the directory of the pinned rows, a counter for each page of R, and the table. The
    pinned pages are taken to be the most popular ones, which uses counted over many tuples tell well.
    """

    id = "x_hybridjoin"

    def serve(
        self, setting: Setting, memory: int, keys: KeyClasses, *,
        pinned_pages: int | None = None, partition_pages: int | None = None, in_flight: int = IN_FLIGHT,
        seek_pages: float = 3.0, disk_share: float = DISK_SHARE, by_frequency: bool = False, **options: Any,
    ) -> Served:  # fmt: skip
        parts = common_memory(setting, memory, index=True)
        whole = parts.free
        least = self.least(
            setting, partition_pages=partition_pages, pinned_pages=pinned_pages, by_frequency=by_frequency
        )
        spare = whole - least
        if spare < 0:
            raise self._too_small(setting, parts, least)
        frames = self.give_disk_buffer(setting, parts, partition_pages, in_flight, min(spare, int(whole * disk_share)))
        spare -= (frames - (partition_pages or 1)) * setting.frame_bytes
        pinned = pinned_pages
        if pinned is None:
            pinned = 1 + int(min(spare, whole // 4) // (_pinned_bytes(setting, 1000) / 1000))
            pinned = max(1, min(pinned, setting.pages))
            spare -= _pinned_bytes(setting, pinned) - _pinned_bytes(setting, 1)
        pinned = min(pinned, setting.pages)
        counters = 0 if by_frequency else max(1, min(setting.pages, min(spare, whole // 32) // 4))
        parts.give("pinned pages", _pinned_bytes(setting, pinned) + 4 * counters)
        capacity = self.give_table(setting, parts)

        pages = keys.units(setting, 1).items().top(pinned)
        missed = max(pages.miss_share, 1e-9)
        side = OldestFirst(setting, keys, capacity, frames, partition_pages, seek_pages, pages)
        return Served(
            parts,
            {
                **options, "pinned_pages": pinned, "partition_pages": partition_pages, "in_flight": in_flight,
                "seek_pages": seek_pages, "disk_share": disk_share, "by_frequency": by_frequency,
            },
            probes=1.0 + missed * side.pages * setting.rows_per_page,
            reads=missed * side.reads,
            pages=missed * side.pages,
            seek=setting.seek_with(max(1, frames // side.width)),
            turns=missed / side.state.tuples,
            events=self._events(setting, keys, parts, pages, missed * side.events()),
            recorded=0.0 if by_frequency else missed,
            cache_hits=1.0 - missed,
            details={
                "w": side.state.served, "h_S": capacity, "width": side.width, "d_N": pinned * setting.rows_per_page,
                "p_N": 1.0 - missed, "turn": side.state.tuples,
            },
        )  # fmt: skip

    def least(self, setting: Setting, **options: Any) -> int:
        pinned, counters = options.get("pinned_pages"), 0 if options.get("by_frequency") else 4
        return super().least(setting, **options) + _pinned_bytes(setting, 1 if pinned is None else pinned) + counters

    @staticmethod
    def _events(setting: Setting, keys: KeyClasses, parts: Memory, pages: KeyClasses, others: Floats) -> Floats:
        """Return match events of keys: of those on pinned pages with each portion of the stream that is looked up."""
        portion = min(_PORTION, parts.parts["stream buffer"] / setting.buffered_bytes)
        with_portion = matched_in_passes(keys, portion / max(keys.miss_share, 1e-12))
        pinned = np.interp(keys.in_units(setting, 1)[1], pages.popularity[::-1], 1.0 - pages.missing[::-1])
        return pinned * with_portion + (1.0 - pinned) * others

    def choices(self, setting: Setting, memory: int) -> dict[str, list[Any]]:
        """Return a grid of partition sizes and of shares of the memory for pinned pages."""
        room = common_memory(setting, memory, index=True).free
        most = int(room // (_pinned_bytes(setting, 1000) / 1000))
        pinned = sorted({max(1, min(int(most * share / 16), setting.pages)) for share in range(1, 16)} | {0})
        return {**super().choices(setting, memory), "pinned_pages": pinned}


def _pinned_bytes(setting: Setting, pages: int) -> int:
    """Return what the non-swappable part costs, counters left out: frames and a directory of their rows."""
    rows = pages * math.ceil(setting.rows_per_page)
    return pages * (setting.frame_bytes + 24) + 8 * (entries_for(rows) + entries_for(pages))


def _doubling(most: int) -> list[int]:
    """Return 1, 2, 3, 4, 6, 8, 12 … up to ``most``."""
    values = sorted({int(step * 2**power) for power in range(40) for step in (1, 1.5)})
    return [value for value in values if value <= most]
