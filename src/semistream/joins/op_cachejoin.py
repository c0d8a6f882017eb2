"""OP-CACHEJOIN (Figure 5): P-CACHEJOIN with two disk buffers, one loaded while the other is probed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bytes, Ints
from semistream.joins.families.oldest_first import OldestFirstJoin, OldestFirstView, partitions
from semistream.joins.families.parallel_front import ParallelFrontStage
from semistream.joins.interface.contract import Overlap
from semistream.joins.interface.following import Undo
from semistream.relation.changes.patch import Patch
from semistream.relation.relation import Relation

__all__ = ["OPCacheJoin", "TwoBufferJoin"]


@dataclass
class _DiskBuffer:
    """Frames, and the load that fills them. Empty or being probed if there is no load, else being filled or full."""

    frames: Bytes
    rear: bool
    keys: Ints
    pages: Ints
    asked_for: int = 0
    load: Future[None] | None = None


class TwoBufferJoin(OldestFirstJoin):
    """HYBRIDJOIN's disk probing with two buffers, each filled by its own loader.

    One buffer is loaded for the keys at the front of the queue, the other for the keys at its rear. While one is
    probed, the other is filled.

    Notes
    -----
    Keys for which one buffer is being loaded are not chosen for the other. A key with rows in more pages than a buffer
    holds is served without overlap: no tuple may be admitted between its pages.
    """

    id = "two_buffers"
    listed = False
    title = "HYBRIDJOIN with two disk buffers"

    def __init__(self, relation: Relation, *, threads: bool = True, **options: Any) -> None:
        self._threads = threads
        super().__init__(relation, **options)

    def least_bytes(self) -> int:
        return super().least_bytes() + (self._partition_pages or 1) * self.relation.device.frame_bytes

    def open_parts(self) -> None:
        self._open_disk_buffer(self._disk_bytes())
        half = len(self._frames) // 2
        if half == 0:  # minimum memory: the second page is taken from the table's share
            self._frames = self.relation.frames(2)
            self.budget.reserve("second disk buffer", self.relation.device.frame_bytes)
            half = 1
        none = np.empty(0, np.int64)
        self._buffers = [
            _DiskBuffer(self._frames[begin : begin + half], rear, none, none)
            for begin, rear in ((0, False), (half, True))
        ]
        self._loaders = ThreadPoolExecutor(2, thread_name_prefix="loader")
        self._open_table(self.budget.free)

    def absorb(self) -> None:
        self._admit(self.table.free)

    def turn(self) -> Iterator[pa.RecordBatch]:
        self.absorb()
        for buffer in self._buffers:
            if buffer.load is None and not self._start(buffer):
                break  # the front of the queue needs more than a buffer: first finish the other one
        loads = [buffer.load for buffer in self._buffers if buffer.load is not None]
        if not loads:
            yield from self._serve_oldest()
            return
        done, _ = wait(loads, return_when=FIRST_COMPLETED)
        for buffer in self._buffers:
            if buffer.load in done:
                load, buffer.load = buffer.load, None
                assert load is not None
                load.result()
                yield from self._serve(buffer)
                self.absorb()

    def _start(self, buffer: _DiskBuffer) -> bool:
        """Choose keys whose partitions fit into the buffer, and let its loader read them."""
        width = min(self._width(), len(buffer.frames))
        room = max(1, len(buffer.frames) // width)
        keys = (self.table.newest_keys if buffer.rear else self.table.oldest_keys)(2 * room)
        other = self._buffers[0 if buffer.rear else 1]
        if other.load is not None:
            keys = keys[~np.isin(keys, other.keys)]
        located = self.relation.locate(keys)
        count = int(np.searchsorted(located.bounds[1:], room, side="right"))
        if count == 0:
            return keys.size == 0
        buffer.keys = np.sort(keys[:count])
        buffer.pages, buffer.asked_for = partitions(
            located.pages[: located.bounds[count]], width, self.relation.page_count
        )
        frames = buffer.frames[: buffer.pages.size]
        if self._threads:
            buffer.load = self._loaders.submit(self.relation.read, buffer.pages, frames)
        else:
            self.relation.read(buffer.pages, frames)
            buffer.load = Future()
            buffer.load.set_result(None)
        return True

    def _serve(self, buffer: _DiskBuffer) -> Iterator[pa.RecordBatch]:
        """Probe a full buffer: all its keys have all their pages here."""
        frames = buffer.frames[: buffer.pages.size]
        met = np.zeros(buffer.pages.size, np.int64)
        self._serving = True
        try:
            for slots, starts, flags in self._probed(frames, buffer.keys, leave=True):
                yield from self._joined_slots(slots, frames, starts, flags)
                self._let_go(self.table.leaving(slots, flags))
                met += np.bincount(starts // frames.shape[1], minlength=met.size)
            neighbours = buffer.pages.size - buffer.asked_for
            if neighbours:
                self._measure(int(np.count_nonzero(met)) - buffer.asked_for, neighbours)
            yield from self._leave(*self.table.take_keys(buffer.keys))
        finally:
            self._serving = False

    def view(self) -> OldestFirstView:
        return dataclasses.replace(super().view(), buffer_pages=len(self._buffers[0].frames))

    def before_update(self, patch: Patch, undo: list[Undo]) -> None:
        """Discard what is being loaded: the pages may change. Tuples that wait for them continue to wait."""
        for buffer in self._buffers:
            if buffer.load is not None:
                load, buffer.load = buffer.load, None
                load.result()
        super().before_update(patch, undo)


class OPCacheJoin(ParallelFrontStage):
    """P-CACHEJOIN whose reads overlap with probing the pages that were read before."""

    id = "op_cachejoin"
    title = "OP-CACHEJOIN: P-CACHEJOIN with two disk buffers"
    when = "As P-CACHEJOIN, with a disk that is slower than probing."
    place = 120
    calibrated = True

    overlap = Overlap.PHASES_AND_READS
    behind = TwoBufferJoin
    loaders_behind = True
