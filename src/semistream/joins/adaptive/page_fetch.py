"""Rows of many keys out of R: located at once, read on the cheapest plan, the next pages on their way meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.core.compiled import frozen
from semistream.core.errors import CorruptPageError
from semistream.joins.adaptive.fetching import Fetching, Frames
from semistream.relation.devices.device import DeviceProfile
from semistream.relation.devices.ring_reader import RingReader
from semistream.relation.relation import Relation
from semistream.relation.rows.row_codec import Rows
from semistream.relation.rows.row_kernels import lengths_at
from semistream.relation.spans import locate_spans
from semistream.structures.hot.hot_rows import HotRows
from semistream.structures.hot.row_search import WantedRows
from semistream.structures.read_plan import ReadPlan, ReadPlanner

__all__ = ["PageFetch", "read_costs", "seconds_of_call", "seconds_of_frame"]


_SETS = 4
"""Without a ring, sets of frames, a thread each: one is searched while others are read into."""
_LEAST_AHEAD = 32
"""Frames of a set at least: handing fewer over to a thread costs more than it saves."""
_DENSE, _DENSE_SETS = 2, 2
"""Pages are wanted densely by more keys than one for so many, and are then read with so many sets."""
MOST_FRAMES = 1024
_MOST_FRAMES_OF_ALL = 4096
MOST_WANTED = 1 << 16
_FRAMES_PART, _MORE_FRAMES_PARTS = 16, (8, 5, 3)
"""Of what is left beside the least memory, one part is for frames; a larger one, where that costs less."""
_WANTED_PART = 48
_FEW_WANTED = ((1 << 16, 12), (1 << 20, 24))
"""One is for keys that are looked for together; a larger one, up to so many bytes, as each time takes a while."""
_FEW_FRAMES = ((24, 4), (192, 5))
"""But so many in any case, if they take no more than such a part: a call costs as much as many a page,"""
_WORTHWHILE_CALL = 5e-4
"""unless it takes longer than this, in seconds."""
_CALL_SECONDS = 1.5e-4
"""What a call takes of the processor: its pages are listed, handed over and searched."""


class PageFetch:
    """Reads the rows of keys.

    Parameters
    ----------
    relation
        Where to look.
    frames
        Pages in memory at once.
    wanted
        Pages asked for in one call at most.
    max_scan
        Pages read in one run at most, those nobody wants included.
    """

    def __init__(self, relation: Relation, frames: int, wanted: int, *, max_scan: int = 256) -> None:
        self._relation = relation
        self.pages_wanted = 0
        """Pages that keys were looked for in, without those that a plan reads along."""
        # virtual time goes by while pages are read, and must not do so behind the join's back
        sets = 1 if relation.device.simulated else max(1, min(_SETS, frames // _LEAST_AHEAD))
        self._sets_count = sets
        self.resize(frames)
        self._helpers = ThreadPoolExecutor(sets - 1, "semistream-fetch") if sets > 1 else None
        seek, transfer = read_costs(relation)
        seek = 0.0 if relation.device.merges else seek
        self._planner = ReadPlanner(wanted, seek=seek, transfer=transfer, max_scan=max(1, min(max_scan, self._each)))

    def resize(self, frames: int) -> None:
        """Have another number of frames, no fewer than at first."""
        self.count, self._each = frames, frames // self._sets_count
        self._listed = np.empty(frames, np.int64)
        self._block: Bytes | None = None

    def pages_of_call(self, frames: int) -> int:
        """Return how many pages one call reads, with so many frames, where much of R is wanted."""
        return frames // min(self._sets_count, _DENSE_SETS)

    bytes_per_frame = 8
    """What a frame costs beside its bytes."""
    bytes_per_key = 8 + 8 + 4 + 16 + 16 + 16 + ReadPlanner.bytes_per_page
    """What a key costs while it is looked for: key, order, number, span, page and place, and the read plan."""

    @classmethod
    def frames_for(cls, spare: int, frame_bytes: int, pages: int, transfer: float) -> int:
        """Return how many frames to have of ``spare`` bytes, for an R of so many pages of ``transfer`` seconds each."""
        each, enough = frame_bytes + cls.bytes_per_frame, int(_WORTHWHILE_CALL / max(transfer, 1e-7))
        if spare > pages * frame_bytes:
            enough = 0  # R may fit, and is then read once
        few = [min(spare // part // each, frames, enough) for frames, part in _FEW_FRAMES]
        return 1 + min(max(spare // _FRAMES_PART // each, *few), MOST_FRAMES, max(pages - 1, 0))

    @classmethod
    def more_frames_for(cls, frames: int, spare: int, frame_bytes: int, pages: int, transfer: float) -> tuple[int, ...]:
        """Return how many frames to have, fewest first: more make fewer calls, and are none if calls take long."""
        if spare > pages * frame_bytes:
            return (frames,)  # R may fit, and is then read once
        each, most = frame_bytes + cls.bytes_per_frame, _SETS * int(_WORTHWHILE_CALL / max(transfer, 1e-7))
        more = [min(spare // part // each, _MOST_FRAMES_OF_ALL, pages, most) for part in _MORE_FRAMES_PARTS]
        return tuple(sorted({frames, *(count for count in more if count > frames)}))

    @classmethod
    def wanted_for(cls, spare: int) -> int:
        """Return how many keys to look for together with ``spare`` bytes beside the least."""
        few = [min(spare // part, most) for most, part in _FEW_WANTED]
        return min(max(spare // _WANTED_PART, *few) // cls.bytes_per_key, MOST_WANTED)

    @classmethod
    def bytes_for(cls, frames: int, frame_bytes: int, wanted: int, results: int = 0) -> int:
        """Return what it takes beside ``results`` bytes, which are in use only while no frames are: see `let_go`."""
        held = frames * cls.bytes_per_frame + wanted * cls.bytes_per_key + cls.fixed_bytes()
        return held + max(0, frames * frame_bytes - results)

    @staticmethod
    def fixed_bytes(max_scan: int = 256) -> int:
        """Return what it takes beside frames and keys."""
        return ReadPlanner.bytes_for(0, max_scan)

    @property
    def frames(self) -> Bytes:
        """All frames, for who reads by himself; they are there until `let_go`."""
        if self._block is None:
            self._block = self._relation.frames(self.count)
        return self._block

    def _sets_for(self, keys: int) -> list[Frames]:
        """Return the frames in sets: fewer and larger ones where so many keys want much of R.

        Those are read in long runs, for which the device needs not many calls at once, and each takes processor time.
        """
        dense = _DENSE * keys > self._relation.page_count
        frames, each = self.frames, self.pages_of_call(self.count) if dense else self._each
        return [
            Frames(self._listed[begin : begin + each], frames[begin : begin + each])
            for begin in range(0, self.count - each + 1, each)
        ]

    def let_go(self) -> None:
        """Give the frames back, for as long as nothing is read."""
        self._block = None

    def bring(self, arena: HotRows, unknown: Slots, rows_a_key: float = 1.0) -> bool:
        """Bring all rows of unknown keys into an arena, each page read once; return False if they do not fit.

        Then some keys are known and the others as unknown as before. About so many rows of each are to be expected.
        """
        if unknown.size == 0:
            return True
        rows = min(int(unknown.size * rows_a_key), arena.capacity)
        with self._relation.ring(self.frames) as ring:
            if ring is not None:
                fitted = self._stream(ring, arena, unknown, rows)
                if not ring.refused:
                    return fitted
                unknown = np.intersect1d(unknown, arena.unknown())  # some may be known now
        return self._read_in_threads(arena, unknown, rows)

    def _stream(self, ring: RingReader, arena: HotRows, unknown: Slots, rows: int) -> bool:
        """Bring rows in one loop, in which pages are read, checked and searched."""
        arena.expect(rows)
        for numbers, wanted in self._wanted(arena, unknown, self._planner.capacity):
            fitted = False
            try:
                fitted = numbers.size > 0 and arena.stream(ring, numbers, wanted, self._plan(wanted.pages))
            finally:
                if fitted:
                    arena.settle(numbers)
                else:
                    arena.reset(numbers)
            if not fitted:
                return False
            del numbers, wanted  # before others come
        return True

    def _plan(self, pages: Ints) -> ReadPlan:
        """Return the cheapest plan for pages, which are there."""
        if pages.size and not 0 <= int(pages[0]) <= int(pages[-1]) < self._relation.page_count:
            raise IndexError(
                f"pages {pages[0]} to {pages[-1]} are not among the {self._relation.page_count} pages of R"
            )
        return self._planner.plan_for(pages)

    def _read_in_threads(self, arena: HotRows, unknown: Slots, rows: int) -> bool:
        """Bring rows with several threads, where requests are not in flight by themselves."""
        # the last pages of some keys are still being read when the next keys are looked for
        most = max(1, self._planner.capacity // 2) if self._sets_count > 1 else self._planner.capacity
        fetching = Fetching(self._relation, self._planner, arena, self._wanted(arena, unknown, most))
        sets = self._sets_for(unknown.size)
        firsts = [(each, first) for each in sets if (first := fetching.following(each)) is not None]
        helpers = [self._helpers.submit(fetching.run, *one) for one in firsts[1:] if self._helpers is not None]
        try:
            # who goes for the rows that come is found while the helpers' first pages are on their way
            if fetching.expect(rows) and firsts:
                fetching.run(*firsts[0])
        finally:
            for helper in helpers:  # frames must not be written to by a read that nobody waits for
                helper.exception()
        return fetching.end()

    def _wanted(self, arena: HotRows, unknown: Slots, most: int) -> Iterator[tuple[Slots, WantedRows]]:
        """Cut unknown keys into parts of at most so many pages, in the order of the keys."""
        keys = arena.keys_of(unknown)
        order = np.argsort(keys)
        unknown = unknown[order]
        del keys, order
        at = 0
        while at < unknown.size:
            wanted = self.locate(arena.keys_of(unknown[at : at + most]), most)
            self.pages_wanted += int(np.count_nonzero(np.diff(wanted.pages, prepend=-1)))
            begin, at = at, at + wanted.keys.size
            yield unknown[begin:at], wanted
            del wanted

    def locate(self, keys: Ints, most: int) -> WantedRows:
        """Find the pages of as many keys, which ascend, as have no more pages than that."""
        spans = locate_spans(self._relation, keys, keys)
        pages_before = np.append(0, np.cumsum(spans.length))[spans.bounds]
        count = int(np.searchsorted(pages_before, most, side="right")) - 1
        last = int(spans.bounds[count])
        first, length = spans.first[:last], spans.length[:last]
        owners = np.repeat(np.repeat(np.arange(count), np.diff(spans.bounds[: count + 1])), length)
        pages = np.repeat(first - (np.cumsum(length) - length), length) + np.arange(owners.size)
        order = self._relation.page_order
        if order.size:
            pages = order[pages]
        if pages.size and not np.all(pages[1:] >= pages[:-1]):
            by_page = np.argsort(pages, kind="stable")
            pages, owners = pages[by_page], owners[by_page]
        return WantedRows(keys[:count], pages, owners, self._relation.layout, self._relation.clustered)

    def all_pages(self) -> Iterator[tuple[Ints, Bytes]]:
        """Yield all of R, some pages at a time."""
        each = self._each
        for begin in range(0, self._relation.page_count, each):
            pages = np.arange(begin, min(begin + each, self._relation.page_count))
            frames = self.frames[: pages.size]
            self._relation.read(pages, frames)
            yield pages, frames

    def rows_at(self, data: Bytes, starts: Ints) -> Rows:
        """Return the rows that start at ``starts`` of ``data``, with their lengths."""
        codec = self._relation.codec
        if not codec.variable:
            return Rows(data, starts, np.full(starts.size, codec.stride, np.int64))
        return Rows(data, starts, lengths_at(frozen(data), frozen(starts)))


def read_costs(relation: Relation) -> tuple[float, float]:
    """Return the seconds of a seek, when many are asked for together, and of the transfer of a page."""
    profile = _profile(relation)
    return profile.queued_seek_seconds, profile.transfer_seconds


def seconds_of_call(relation: Relation) -> float:
    """Return the seconds that a call takes of those of all threads, however many pages it reads."""
    return _CALL_SECONDS + (_profile(relation).seek_seconds / _SETS if relation.device.merges else 0.0)


def seconds_of_frame(relation: Relation) -> float:
    """Return the seconds of a page's transfer, by which it is said how many frames a call is worth.

    A store answers no sooner than after a while, whatever it is asked for: then a page counts for a part of it.
    """
    profile = _profile(relation)
    part = min(1.0, _WORTHWHILE_CALL / max(profile.seek_seconds, 1e-9)) if relation.device.merges else 1.0
    return profile.transfer_seconds * part


def _profile(relation: Relation) -> DeviceProfile:
    if relation.page_count:
        # whoever needs a damaged page will be told; a plan only needs to know about what reads cost
        with contextlib.suppress(CorruptPageError):
            return relation.device.profile
    return DeviceProfile(1e-4, 1e-5, 5e4, 8e8, 16, True)
