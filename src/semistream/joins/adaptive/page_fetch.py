"""Rows of many keys out of R: located at once, read on the cheapest plan, the next pages on their way meanwhile."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import numpy as np

from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import frozen
from semistream.core.errors import CorruptPageError
from semistream.relation.devices.device import DeviceProfile
from semistream.relation.relation import Relation
from semistream.relation.rows.row_codec import Rows
from semistream.relation.rows.row_kernels import lengths_at
from semistream.relation.spans import locate_spans
from semistream.structures.hot.row_search import WantedRows
from semistream.structures.read_plan import ReadPlan, ReadPlanner

__all__ = ["PageFetch", "read_costs"]


_SETS = 3
"""Sets of frames: one is searched while two are on their way, so that the device never waits for its next request."""
_LEAST_AHEAD = 4


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
        # virtual time goes by while pages are read, and must not do so behind the join's back
        ahead = frames >= _SETS * _LEAST_AHEAD and not relation.device.simulated
        each = frames // _SETS if ahead else frames
        block = relation.frames(frames)
        listed = np.empty(frames, np.int64)
        self._sets = [
            (listed[begin : begin + each], block[begin : begin + each])
            for begin in range(0, each * (_SETS if ahead else 1), each)
        ]
        self._block = block
        self._reader = ThreadPoolExecutor(_SETS - 1, "semistream-fetch") if ahead else None
        seek, transfer = read_costs(relation)
        self._planner = ReadPlanner(wanted, seek=seek, transfer=transfer, max_scan=max(1, min(max_scan, each)))

    bytes_per_frame = 8
    """What a frame costs beside its bytes."""
    bytes_per_key = 8 + 8 + 4 + 16 + 16 + 16 + ReadPlanner.bytes_per_page
    """What a key costs while it is looked for: key, order, number, span, page and place, and the read plan."""

    @staticmethod
    def fixed_bytes(max_scan: int = 256) -> int:
        """Return what it takes beside frames and keys."""
        return ReadPlanner.bytes_for(0, max_scan)

    @property
    def capacity(self) -> int:
        """Pages, and keys, that may be asked for at once."""
        return self._planner.capacity

    @property
    def nbytes(self) -> int:
        """Bytes of frames and plan."""
        return self._block.nbytes + self._sets[0][0].nbytes * len(self._sets) + self._planner.nbytes

    def locate(self, keys: Ints) -> WantedRows:
        """Find the pages of as many keys, which ascend, as can be asked for together."""
        keys = keys[: self.capacity]
        spans = locate_spans(self._relation, keys, keys)
        pages_before = np.append(0, np.cumsum(spans.length))[spans.bounds]
        count = int(np.searchsorted(pages_before, self.capacity, side="right")) - 1
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

    def read(self, wanted: WantedRows) -> Generator[tuple[Ints, Bytes], None, None]:
        """Yield the pages of keys, some at a time, and the frames that they are in until the next are asked for."""
        pages = wanted.pages
        if pages.size == 0:
            return
        first = np.flatnonzero(np.diff(pages, prepend=pages[0] - 1))
        distinct = self._planner.pages[: first.size]
        distinct[:] = pages[first]
        with closing(self._read(self._planner.plan(distinct))) as read:
            yield from read

    def all_pages(self) -> Iterator[tuple[Ints, Bytes]]:
        """Yield all of R, some pages at a time."""
        each = len(self._sets[0][1])
        for begin in range(0, self._relation.page_count, each):
            pages = np.arange(begin, min(begin + each, self._relation.page_count))
            frames = self._sets[0][1][: pages.size]
            self._relation.read(pages, frames)
            yield pages, frames

    def _read(self, plan: ReadPlan) -> Generator[tuple[Ints, Bytes], None, None]:
        """Yield the pages of a plan, some runs at a time; the next are read meanwhile."""
        coming: deque[tuple[Ints, Bytes, Future[None] | None]] = deque()
        at, turn = 0, 0
        try:
            while at < plan.pages.size or coming:
                while at < plan.pages.size and len(coming) < max(1, len(self._sets) - 1):
                    listed, frames = self._sets[turn]
                    turn = (turn + 1) % len(self._sets)
                    pages, at = plan.list_pages(at, listed)
                    frames = frames[: pages.size]
                    ahead = None if self._reader is None else self._reader.submit(self._relation.read, pages, frames)
                    coming.append((pages, frames, ahead))
                pages, frames, reading = coming.popleft()
                if reading is None:
                    self._relation.read(pages, frames)
                else:
                    reading.result()
                yield pages, frames
        finally:
            for _, _, reading in coming:  # frames must not be written to by a read that nobody waits for
                if reading is not None:
                    reading.exception()

    def rows_at(self, data: Bytes, starts: Ints) -> Rows:
        """Return the rows that start at ``starts`` of ``data``, with their lengths."""
        codec = self._relation.codec
        if not codec.variable:
            return Rows(data, starts, np.full(starts.size, codec.stride, np.int64))
        return Rows(data, starts, lengths_at(frozen(data), frozen(starts)))


def read_costs(relation: Relation) -> tuple[float, float]:
    """Return the seconds of a seek, when many are asked for together, and of the transfer of a page."""
    profile = DeviceProfile(1e-4, 1e-5, 5e4, 8e8, 16, True)
    if relation.page_count:
        # whoever needs a damaged page will be told; a plan only needs to know about what reads cost
        with contextlib.suppress(CorruptPageError):
            profile = relation.device.profile
    return profile.queued_seek_seconds, profile.transfer_seconds
