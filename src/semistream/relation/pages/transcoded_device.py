"""A device whose files have rows in several layouts, because R's columns changed; it shows all of them in one layout.

Only pages in another layout cost anything: 11 to 15 μs more to read a page of 8 KiB, 9 to 23 ns per value. Measured
with 200,000 rows of 4 to 10 columns, integers and texts, on files in memory.
A relation whose files are all in the layout that is shown has no such device.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from semistream.core.arrays import Ints
from semistream.core.compiled import frozen
from semistream.core.errors import UnsupportedJoinError
from semistream.relation.devices.device import Device, DeviceProfile, Frames
from semistream.relation.pages.packed_transcoding import PackedMapping
from semistream.relation.pages.page_layout import HEADER
from semistream.relation.pages.page_transcoding import transcode_pages
from semistream.relation.pages.row_mapping import HEAD, STRIDE, RowMapping

__all__ = ["FileLayout", "TranscodedDevice", "frame_bytes_for"]

_ALIGNMENT = 4096
"""Bytes: the largest unit to which direct reads may have to be aligned in memory."""
_PAGES_AT_ONCE = 32
"""Pages of packed rows that are unpacked together. Their rows need several times as much memory for that time."""


class FileLayout(NamedTuple):
    """The layout of the rows of one file of pages."""

    pages: int
    source: int
    """The source in the mapping, or -1 if the file's rows are in the layout that is shown."""


def frame_bytes_for(page_bytes: int, mapping: RowMapping | PackedMapping) -> int:
    """Return the bytes that a page may need once its rows are in the target's layout."""
    needed, target = page_bytes, mapping.heads[-1]
    for source, growth in zip(mapping.heads[:-1], mapping.growth, strict=True):
        per_row = 9 if source[STRIDE] else 13  # key, flag and, if rows vary in length, start
        rows = (page_bytes - HEADER) // int(per_row + source[HEAD])
        starts = 4 if source[STRIDE] and not target[STRIDE] else 0
        needed = max(needed, page_bytes + 8 + rows * (int(growth) + starts))
    unit = math.gcd(page_bytes, _ALIGNMENT)
    return -(-needed // unit) * unit


class TranscodedDevice(Device):
    """Shows the rows of files in one layout.

    Parameters
    ----------
    device
        Reads the files.
    files
        Its files, in the order of their page ids.
    mapping
        How rows of each source become rows of the layout that is shown.
    """

    def __init__(self, device: Device, files: Sequence[FileLayout], mapping: RowMapping | PackedMapping) -> None:
        self._device, self._packed = device, mapping if isinstance(mapping, PackedMapping) else None
        self.page_bytes, self.page_count = device.page_bytes, device.page_count
        self.frame_bytes = frame_bytes_for(device.page_bytes, mapping)
        self.counters = device.counters
        self.simulated, self.merges = device.simulated, device.merges
        self._ends = np.cumsum([file.pages for file in files])
        self._sources = np.array([file.source for file in files], np.int64)
        plain = mapping.mapping if isinstance(mapping, PackedMapping) else mapping
        self._arrays, self._names = (frozen(plain.heads), frozen(plain.slots), frozen(plain.templates)), plain.names

    def read(self, pages: Ints, frames: Frames) -> None:
        """Read pages, and rewrite those whose rows are in another layout."""
        pages, frames = self._checked(pages, frames)
        if not pages.size:
            return
        room = frames.reshape(-1)
        unread = pages.size * (self.frame_bytes - self.page_bytes)
        try:
            self._device.read(pages, room[unread:].reshape(pages.size, self.page_bytes))
            sources = self._sources[np.searchsorted(self._ends, pages, side="right")]
            if unread or sources.max() >= 0:
                self._transcode(pages, room, sources)
        except BaseException:
            frames[:] = 0
            raise

    def _transcode(self, pages: Ints, room: Frames, sources: Ints) -> None:
        if self._packed is not None:
            slot = self._repack(self._packed, room, sources)
        else:
            _, slot = transcode_pages(
                room, pages.size, self.frame_bytes, self.page_bytes, frozen(sources), *self._arrays
            )  # fmt: skip
        if slot >= 0:
            raise UnsupportedJoinError(
                f"column {self._names[slot]!r} was widened after this query was started, and a row now has a "
                "value that does not fit the earlier type; restart the query from its checkpoint to read the wider type"
            )

    def _repack(self, mapping: PackedMapping, room: Frames, sources: Ints) -> int:
        """Rewrite packed pages, which are at the end of the room; return the slot of a value that does not fit, or -1.

        They are rewritten from the first to the last, so that no frame reaches a page that was not rewritten yet.
        """
        frames = room.reshape(sources.size, self.frame_bytes)
        pages = room[sources.size * (self.frame_bytes - self.page_bytes) :].reshape(sources.size, self.page_bytes)
        changes = np.flatnonzero(np.diff(sources)) + 1
        for begin, end in itertools.pairwise([0, *changes.tolist(), sources.size]):
            for first in range(begin, end, _PAGES_AT_ONCE):
                some = slice(first, min(first + _PAGES_AT_ONCE, end))
                read = pages[some].copy()
                if sources[begin] >= 0:
                    slot = mapping.rewrite(read, int(sources[begin]), frames[some])
                    if slot >= 0:
                        return slot
                else:
                    frames[some, : self.page_bytes], frames[some, self.page_bytes :] = read, 0
        return -1

    def measure(self) -> DeviceProfile:
        """Measure the underlying device."""
        return self._device.measure()

    def _measure_briefly(self) -> DeviceProfile:
        return self._device.profile

    def close(self) -> None:
        """Close the files."""
        self._device.close()
