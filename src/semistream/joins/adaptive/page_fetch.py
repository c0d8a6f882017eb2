"""Reads the rows of many keys from R: locates them together, reads by the cheapest plan, and reads ahead."""

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
from semistream.relation.spans import locate_spans, locate_versions
from semistream.structures.hot.hot_rows import HotRows
from semistream.structures.hot.hot_versions import HotVersions
from semistream.structures.hot.row_search import WantedRows
from semistream.structures.read_plan import ReadPlan, ReadPlanner

__all__ = ["PageFetch", "read_costs", "seconds_of_call", "seconds_of_frame"]


_SETS = 4
"""Sets of frames if there is no ring, each with its own thread: one is searched while pages are read into others."""
_LEAST_AHEAD = 32
"""Minimum frames of a set: handing fewer pages to a thread costs more than it saves."""
_DENSE, _DENSE_SETS = 2, 2
"""Reads are dense if there is more than one key per this many pages; then the frames form this many sets."""
MOST_FRAMES = 1024  # maximum frames that are taken without comparing costs
_MOST_FRAMES_OF_ALL = 4096  # maximum frames
MOST_WANTED = 1 << 16  # maximum keys to locate together
_FRAMES_PART, _MORE_FRAMES_PARTS = 16, (8, 5, 3)
"""Frames get 1/16 of the memory above the minimum, or one of the larger parts if this costs less."""
_WANTED_PART = 48
_FEW_WANTED = ((1 << 16, 12), (1 << 20, 24))
"""Keys to locate together get 1/48 of the memory above the minimum. In small memories they get more, because each round
has a fixed cost: 1/12, up to 64 KiB, or 1/24, up to 1 MiB."""
_FEW_FRAMES = ((24, 4), (192, 5))
"""Minimum numbers of frames, as (frames, part): 24 frames if they need at most 1/4 of this memory, 192 if at most 1/5.
A call costs as much as reading many pages."""
_WORTHWHILE_CALL = 5e-4
"""Seconds: a call that takes this long needs no more pages."""
_CALL_SECONDS = 1.5e-4
"""CPU seconds of a call: its pages are listed, handed over and searched."""


class PageFetch:
    """Reads the rows of keys.

    Parameters
    ----------
    relation
        Where to read.
    frames
        Number of pages in memory.
    wanted
        Maximum wanted pages per plan.
    max_scan
        Maximum pages of a run, including pages that are not wanted.
    """

    def __init__(self, relation: Relation, frames: int, wanted: int, *, max_scan: int = 256) -> None:
        self._relation = relation
        self.pages_wanted = 0
        """Pages that may hold wanted keys, without the other pages of a run."""
        # On a simulated device reading advances the virtual clock, which must happen in the join's own thread.
        sets = 1 if relation.device.simulated else max(1, min(_SETS, frames // _LEAST_AHEAD))
        self._sets_count = sets
        self.resize(frames)
        self._helpers = ThreadPoolExecutor(sets - 1, "semistream-fetch") if sets > 1 else None
        seek, transfer = read_costs(relation)
        seek = 0.0 if relation.device.merges else seek
        self._planner = ReadPlanner(wanted, seek=seek, transfer=transfer, max_scan=max(1, min(max_scan, self._each)))

    def resize(self, frames: int) -> None:
        """Change the number of frames, to no fewer than the initial number."""
        self.count, self._each = frames, frames // self._sets_count
        self._listed = np.empty(frames, np.int64)
        self._block: Bytes | None = None

    def pages_of_call(self, frames: int) -> int:
        """Return how many pages one call reads with ``frames`` frames, if much of R is wanted."""
        return frames // min(self._sets_count, _DENSE_SETS)

    bytes_per_frame = 8
    """Bytes of a frame in addition to its page."""
    bytes_per_key = 8 + 8 + 4 + 16 + 16 + 16 + ReadPlanner.bytes_per_page
    """Bytes per key while it is located: key, order, number, span, page and place, and the read plan."""

    @classmethod
    def frames_for(cls, spare: int, frame_bytes: int, pages: int, transfer: float) -> int:
        """Return how many frames to allocate out of ``spare`` bytes; each page of R takes ``transfer`` seconds."""
        each, enough = frame_bytes + cls.bytes_per_frame, int(_WORTHWHILE_CALL / max(transfer, 1e-7))
        if spare > pages * frame_bytes:
            enough = 0  # R may fit, and is then read once
        few = [min(spare // part // each, frames, enough) for frames, part in _FEW_FRAMES]
        return 1 + min(max(spare // _FRAMES_PART // each, *few), MOST_FRAMES, max(pages - 1, 0))

    @classmethod
    def more_frames_for(cls, frames: int, spare: int, frame_bytes: int, pages: int, transfer: float) -> tuple[int, ...]:
        """Return possible numbers of frames, ascending; only ``frames`` if a call already takes long enough.

        With more frames, fewer calls are needed.
        """
        if spare > pages * frame_bytes:
            return (frames,)  # R may fit, and is then read once
        each, most = frame_bytes + cls.bytes_per_frame, _SETS * int(_WORTHWHILE_CALL / max(transfer, 1e-7))
        more = [min(spare // part // each, _MOST_FRAMES_OF_ALL, pages, most) for part in _MORE_FRAMES_PARTS]
        return tuple(sorted({frames, *(count for count in more if count > frames)}))

    @classmethod
    def wanted_for(cls, spare: int) -> int:
        """Return how many keys to locate together with ``spare`` bytes above the minimum."""
        few = [min(spare // part, most) for most, part in _FEW_WANTED]
        return min(max(spare // _WANTED_PART, *few) // cls.bytes_per_key, MOST_WANTED)

    @classmethod
    def bytes_for(cls, frames: int, frame_bytes: int, wanted: int, results: int = 0) -> int:
        """Return the bytes in addition to ``results``, which are in use only while frames are not: see `let_go`."""
        held = frames * cls.bytes_per_frame + wanted * cls.bytes_per_key + cls.fixed_bytes()
        return held + max(0, frames * frame_bytes - results)

    @staticmethod
    def fixed_bytes(max_scan: int = 256) -> int:
        """Return the bytes in addition to frames and keys."""
        return ReadPlanner.bytes_for(0, max_scan)

    @property
    def frames(self) -> Bytes:
        """All frames, for callers that read on their own; valid until `let_go`."""
        if self._block is None:
            self._block = self._relation.frames(self.count)
        return self._block

    def _sets_for(self, keys: int) -> list[Frames]:
        """Return the frames in sets: fewer and larger ones if ``keys`` keys need much of R.

        Dense reads are long runs. For these the device does not need many concurrent calls, and each call costs CPU
        time.
        """
        dense = _DENSE * keys > self._relation.page_count
        frames, each = self.frames, self.pages_of_call(self.count) if dense else self._each
        return [
            Frames(self._listed[begin : begin + each], frames[begin : begin + each])
            for begin in range(0, self.count - each + 1, each)
        ]

    def let_go(self) -> None:
        """Release the frames until the next read."""
        self._block = None

    def bring(self, arena: HotRows, unknown: Slots, rows_a_key: float = 1.0) -> bool:
        """Read all rows of unknown keys into an arena, each page once; return False if they do not fit.

        In this case some keys may be known, and the others remain unknown. ``rows_a_key`` is the expected mean of rows
        per key.
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
        """Read rows in one compiled loop that reads, checks and searches pages."""
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
            del numbers, wanted  # free them before the next part
        return True

    def _plan(self, pages: Ints) -> ReadPlan:
        """Return the cheapest plan for pages, after checking that they exist."""
        if pages.size and not 0 <= int(pages[0]) <= int(pages[-1]) < self._relation.page_count:
            raise IndexError(
                f"pages {pages[0]} to {pages[-1]} are not among the {self._relation.page_count} pages of R"
            )
        return self._planner.plan_for(pages)

    def _read_in_threads(self, arena: HotRows, unknown: Slots, rows: int) -> bool:
        """Read rows with several threads, for devices without asynchronous requests."""
        # The last pages of some keys are still being read while the next keys are located.
        most = max(1, self._planner.capacity // 2) if self._sets_count > 1 else self._planner.capacity
        fetching = Fetching(self._relation, self._planner, arena, self._wanted(arena, unknown, most))
        sets = self._sets_for(unknown.size)
        firsts = [(each, first) for each in sets if (first := fetching.following(each)) is not None]
        helpers = [self._helpers.submit(fetching.run, *one) for one in firsts[1:] if self._helpers is not None]
        try:
            # Eviction candidates are chosen while the helpers' first pages are being read.
            if fetching.expect(rows) and firsts:
                fetching.run(*firsts[0])
        finally:
            for helper in helpers:  # wait: no read may still write to the frames
                helper.exception()
        return fetching.end()

    def _wanted(self, arena: HotRows, unknown: Slots, most: int) -> Iterator[tuple[Slots, WantedRows]]:
        """Cut unknown keys into parts of at most ``most`` pages, ordered by key."""
        keys = arena.keys_of(unknown)
        versions = arena if isinstance(arena, HotVersions) else None
        order = np.argsort(keys) if versions is None else np.lexsort((versions.times_of(unknown), keys))
        unknown = unknown[order]
        del keys, order
        at = 0
        while at < unknown.size:
            if versions is None:
                wanted = self.locate(arena.keys_of(unknown[at : at + most]), most)
            else:
                wanted = self.locate_versions(versions, unknown[at : at + most])
            self.pages_wanted += int(np.count_nonzero(np.diff(wanted.pages, prepend=-1)))
            begin, at = at, at + wanted.keys.size
            yield unknown[begin:at], wanted
            del wanted

    def locate(self, keys: Ints, most: int) -> WantedRows:
        """Locate the pages of ascending keys; only of the first keys if all have more than ``most`` pages."""
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

    def locate_versions(self, arena: HotVersions, unknown: Slots) -> WantedRows:
        """Locate the page of each request, in the order of key and time; those without a page have no version."""
        relation, keys = self._relation, arena.keys_of(unknown)
        assert relation.times is not None
        pages, following = locate_versions(relation, keys, arena.times_of(unknown))
        none = pages < 0
        arena.has_none(unknown[none], following[none])
        owners = np.flatnonzero(~none)
        pages = pages[owners]
        if pages.size and not np.all(pages[1:] >= pages[:-1]):
            by_page = np.argsort(pages, kind="stable")
            pages, owners = pages[by_page], owners[by_page]
        versions = following, relation.times.fields(relation.codec).array()
        return WantedRows(keys, pages, owners, relation.layout, relation.clustered, versions)

    def all_pages(self) -> Iterator[tuple[Ints, Bytes]]:
        """Yield all pages of R, some at a time."""
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
    """Return the seconds of a seek, when many are requested together, and of the transfer of a page."""
    profile = _profile(relation)
    return profile.queued_seek_seconds, profile.transfer_seconds


def seconds_of_call(relation: Relation) -> float:
    """Return the seconds of a call, summed over threads, that do not depend on the number of pages."""
    return _CALL_SECONDS + (_profile(relation).seek_seconds / _SETS if relation.device.merges else 0.0)


def seconds_of_frame(relation: Relation) -> float:
    """Return the seconds per page that are used to compute the number of frames.

    On a disk this is its transfer. An object store has a high latency for every request, so a page counts for less
    than its transfer: then a call reads more pages.
    """
    profile = _profile(relation)
    part = min(1.0, _WORTHWHILE_CALL / max(profile.seek_seconds, 1e-9)) if relation.device.merges else 1.0
    return profile.transfer_seconds * part


def _profile(relation: Relation) -> DeviceProfile:
    if relation.page_count:
        # A damaged page raises when it is needed. A plan only needs approximate costs of reads.
        with contextlib.suppress(CorruptPageError):
            return relation.device.profile
    return DeviceProfile(1e-4, 1e-5, 5e4, 8e8, 16, True)
