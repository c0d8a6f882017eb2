"""The page: the layout of R's rows on disk, and the compiled passes that read them in place.

::

     0  u64 checksum of bytes 8.., seeded with the page's id and its file's name (relation/storage/checksum.py)
     8  u32 id of the page within its file | 12  u32 number of rows n
    16  u32 bytes used                     | 20  u32 format version
    24  u64 zero
    32  i64 key64[n]          contiguous, so that probing a page touches these lines only
     .  u8  flags[n]          bit 0 FIRST: the first row of its key in R
     .                        bit 1 WHOLE: every row of its key is in this page
     .                        bit 2 LAST: the last row of its key in R
     .  padding to 8
     .  fixed rows:     n times `stride` bytes
     .  variable rows:  u32 start[n] from the page's first byte, then the rows

A page is never decoded as a whole: the passes below find where the requested rows start, and `RowCodec.decode` gathers
them from there, across pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import Int, copy_bytes, inner_kernel, kernel
from semistream.core.errors import SemistreamError
from semistream.relation.rows.row_codec import Rows

__all__ = ["FIRST", "FORMAT", "HEADER", "LAST", "WHOLE", "PageLayout", "find_rows", "page_keys", "page_rows"]

HEADER = 32
FORMAT = 1
FIRST = 1
WHOLE = 2
LAST = 4
_BESIDE_ROW = 13
"""Bytes per row of variable length in addition to the row itself: its key, flag and start."""


@dataclass(frozen=True)
class PageLayout:
    """The layout of the pages of one relation.

    Parameters
    ----------
    frame_bytes
        Bytes of a page in memory, a multiple of 8.
    stride
        Bytes of a row, or 0 if rows vary in length.
    page_bytes
        Bytes of a page on disk, if these are fewer than in memory; 0 if they are not.
    """

    frame_bytes: int
    stride: int
    page_bytes: int = 0

    def __post_init__(self) -> None:
        if self.frame_bytes % 8 or self.frame_bytes < 64:
            raise ValueError(f"a page must be a multiple of 8 bytes and at least 64, not {self.frame_bytes}")

    @property
    def room(self) -> int:
        """Bytes of a page that rows may use when it is written."""
        return min(self.frame_bytes, self.page_bytes or self.frame_bytes)

    def capacity(self, room: int) -> int:
        """Return how many fixed rows fit into ``room`` bytes of a page."""
        return max(0, (room - HEADER - 7) // (9 + self.stride))

    def mean_row(self, page_bytes: int, rows_per_page: float) -> float:
        """Return the mean bytes of a row, given full pages of ``page_bytes`` with ``rows_per_page`` rows on average."""
        if self.stride:
            return float(self.stride)
        return max(1.0, page_bytes / max(1.0, rows_per_page) - _BESIDE_ROW)

    def largest_row(self) -> int:
        """Return the bytes of the longest row that fits into a page."""
        return self.room - HEADER - 16 - (0 if self.stride else 4)


@inner_kernel
def _rows_base(rows: Int) -> Int:
    return (HEADER + 9 * rows + 7) & ~7


@kernel
def pages_needed(lengths: Ints, room: int, stride: int) -> Ints:
    """Return the first row of each page if rows are packed in order, with ``room`` bytes per page."""
    n = lengths.size
    breaks = np.empty(n + 1, np.int64)
    pages = 0
    if stride > 0:
        capacity = max(1, (room - HEADER - 7) // (9 + stride))
        for first in range(0, n, capacity):
            breaks[pages] = first
            pages += 1
    else:
        used, rows = 0, 0
        for i in range(n):
            # 7 = the padding before the rows
            if rows == 0 or HEADER + 7 + used + lengths[i] + _BESIDE_ROW > room:
                breaks[pages] = i
                pages += 1
                used, rows = 0, 0
            used += lengths[i] + _BESIDE_ROW
            rows += 1
    breaks[pages] = n
    return breaks[: pages + 1]


@kernel
def _pack(
    keys: Ints, flags: Bytes, data: Bytes, starts: Ints, lengths: Ints, breaks: Ints, stride: int, frames: Bytes
) -> None:
    for page in range(breaks.size - 1):
        first, last = breaks[page], breaks[page + 1]
        n = last - first
        frame = frames[page]
        frame[:] = 0
        words = frame.view(np.uint32)
        words[3] = n
        words[5] = FORMAT
        # Copy by element or with `copy_bytes`: Numba needs seconds to compile a slice assigned to a slice.
        stored = frame.view(np.int64)
        for i in range(n):
            stored[HEADER // 8 + i] = keys[first + i]
        copy_bytes(frame, HEADER + 8 * n, flags, first, n)
        at = _rows_base(n)
        if stride == 0:
            table = at // 4
            at += 4 * n
            for i in range(n):
                words[table + i] = at
                start, length = starts[first + i], lengths[first + i]
                copy_bytes(frame, at, data, start, length)
                at += length
        else:
            for i in range(n):
                start = starts[first + i]
                copy_bytes(frame, at, data, start, stride)
                at += stride
        words[4] = at


def pack_pages(layout: PageLayout, keys: Ints, flags: Bytes, rows: Rows, breaks: Ints) -> Bytes:
    """Return pages (without ids and not sealed) that hold the rows between consecutive breaks."""
    counts = np.diff(breaks)
    used = np.diff(np.append(0, np.cumsum(rows.lengths))[breaks]) + HEADER + (9 if layout.stride else 13) * counts + 7
    if used.max(initial=0) - 7 > layout.room:
        raise SemistreamError(
            f"{int(used.max()):,} B of rows do not fit into a page of {layout.room:,} B; this is a bug in "
            "semistream, please report it"
        )
    frames = np.empty((breaks.size - 1, layout.frame_bytes), np.uint8)
    _pack(keys, flags, rows.data, rows.starts, rows.lengths, breaks, layout.stride, frames)
    return frames


@kernel
def set_flags(frames: Bytes, flags: Bytes, at: Int) -> Int:
    """Write ``flags[at:]`` into the pages, row after row; return the position for the next page."""
    for page in range(frames.shape[0]):
        n = np.int64(frames[page, 12:16].view(np.uint32)[0])
        copy_bytes(frames[page], HEADER + 8 * n, flags, at, n)
        at += n
    return at


@kernel
def page_rows(frames: Bytes) -> Ints:
    """Return the number of rows of each page."""
    counts = np.empty(frames.shape[0], np.int64)
    for page in range(frames.shape[0]):
        counts[page] = frames[page, 12:16].view(np.uint32)[0]
    return counts


@inner_kernel
def row_start(flat: Bytes, base: Int, rows: Int, row: Int, stride: int) -> Int:
    """Return where row ``row`` of the page at byte ``base`` starts in ``flat``."""
    at = base + _rows_base(rows)
    if stride > 0:
        return at + row * stride
    at += 4 * row
    return base + np.int64(flat[at : at + 4].view(np.uint32)[0])


@kernel
def page_keys(frames: Bytes, stride: int) -> tuple[Ints, Bytes, Ints]:
    """Return the key, the flags, and the start in the flattened frames, of every row, page after page."""
    total = np.int64(0)
    for page in range(frames.shape[0]):
        total += np.int64(frames[page, 12:16].view(np.uint32)[0])
    keys = np.empty(total, np.int64)
    flags = np.empty(total, np.uint8)
    starts = np.empty(total, np.int64)
    flat = frames.reshape(-1)
    at = np.int64(0)
    for page in range(frames.shape[0]):
        n = np.int64(frames[page, 12:16].view(np.uint32)[0])
        stored = frames[page, HEADER : HEADER + 8 * n].view(np.int64)
        copy_bytes(flags, at, frames[page], HEADER + 8 * n, n)
        base = page * frames.shape[1]
        for i in range(n):
            keys[at + i] = stored[i]
            starts[at + i] = row_start(flat, base, n, i, stride)
        at += n
    return keys, flags, starts


@kernel
def _first_in_page(keys: Ints, key: int, ordered: bool) -> int:
    """Return the position of the first ``key``, or -1."""
    n = keys.size
    if not ordered:
        for i in range(n):
            if keys[i] == key:
                return i
        return -1
    low, high = 0, n
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    if low < n and keys[low] == key:
        return low
    return -1


@kernel
def find_rows(
    frames: Bytes, stride: int, ordered: bool, wanted: Ints, frame_of: Ints, begin: int, cap: int
) -> tuple[Ints, Ints, Bytes, int]:
    """Match keys with the rows of the pages that may hold them.

    ``wanted[i]`` is searched in ``frames[frame_of[i]]``, starting with ``i = begin``. The pass ends early once ``cap``
    pairs are found, but never in the middle of a key. Returns the positions in ``wanted``, the row starts in the
    flattened frames, the rows' flags, and the ``i`` to continue with.
    """
    left = np.empty(min(cap, wanted.size - begin) + 64, np.int64)
    right = np.empty(left.size, np.int64)
    flags = np.empty(left.size, np.uint8)
    flat = frames.reshape(-1)
    pairs = 0
    i = begin
    while i < wanted.size and pairs < cap:
        page = frame_of[i]
        n = np.int64(frames[page, 12:16].view(np.uint32)[0])
        keys = frames[page, HEADER : HEADER + 8 * n].view(np.int64)
        at = _first_in_page(keys, wanted[i], ordered)
        if at >= 0:
            base = page * frames.shape[1]
            while at < n:
                if keys[at] == wanted[i]:
                    if pairs == left.size:
                        left = np.append(left, np.empty(left.size, np.int64))
                        right = np.append(right, np.empty(right.size, np.int64))
                        flags = np.append(flags, np.empty(flags.size, np.uint8))
                    left[pairs] = i
                    right[pairs] = row_start(flat, base, n, at, stride)
                    flags[pairs] = frames[page, HEADER + 8 * n + at]
                    pairs += 1
                elif ordered:
                    break
                at += 1
        i += 1
    return left[:pairs], right[:pairs], flags[:pairs], i
