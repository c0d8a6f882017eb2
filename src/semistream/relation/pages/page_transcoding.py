"""Rewrites pages of rows in earlier layouts, in memory, as pages of rows in the layout that R shows now.

Pages are read into the end of the room for their frames. Each is rewritten into its frame from the first to the last,
so that no frame reaches a page that was not rewritten yet:

::

    before    |              free             | page 0 | page 1 | page 2 |
    after     |    frame 0    |    frame 1    |    frame 2      |
"""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import Int, copy_bytes, inner_kernel, kernel
from semistream.relation.pages.page_layout import HEADER, row_start
from semistream.relation.pages.row_mapping import BEFORE, BIT, BYTE, DETAIL, HEAD, KIND, PLACE, STRIDE, WIDTH
from semistream.relation.rows.widening import COPY, DAYS, FLOAT, INTEGER

__all__ = ["transcode_pages"]


@inner_kernel
def _u32(data: Bytes, at: Int) -> Int:
    value = np.int64(0)
    for byte in range(4):
        value |= np.int64(data[at + byte]) << (8 * byte)
    return value


@inner_kernel
def _integer(data: Bytes, at: Int, width: Int, unsigned: bool) -> Int:
    value = np.int64(0)
    for byte in range(width):
        value |= np.int64(data[at + byte]) << (8 * byte)
    if not unsigned and width < 8 and (value >> (8 * width - 1)) & 1:
        value -= np.int64(1) << (8 * width)
    return value


@inner_kernel
def _fits(value: Int, width: Int, unsigned: bool) -> bool:
    if unsigned:
        return bool(value >= 0 and (width == 8 or value < np.int64(1) << (8 * width)))
    if width == 8:
        return True
    most = np.int64(1) << (8 * width - 1)
    return bool(-most <= value < most)


@inner_kernel
def _put(data: Bytes, at: Int, width: Int, value: Int) -> None:
    for byte in range(width):
        data[at + byte] = np.uint8((value >> (8 * byte)) & 255)


@kernel
def transcode_pages(
    room: Bytes, count: int, frame_bytes: int, page_bytes: int, sources: Ints, heads: Ints, slots: Ints,
    templates: Bytes,
) -> tuple[int, int]:  # fmt: skip
    """Rewrite the pages at the end of ``room``; see the module's docstring.

    Parameters
    ----------
    sources
        For each page, its source in the mapping; -1 if it is in the target's layout.
    heads, slots, templates
        See `RowMapping`.

    Returns
    -------
    (page, slot)
        The first value that does not fit its column's type, or (-1, -1).
    """
    page = np.empty(page_bytes, np.uint8)
    integer = np.empty(1, np.int64)
    double = integer.view(np.float64)
    half = np.empty(1, np.int32)
    single = half.view(np.float32)
    target, into = heads.shape[0] - 1, slots[slots.shape[0] - 1]
    stride, head = heads[target, STRIDE], heads[target, HEAD]
    for number in range(count):
        copy_bytes(page, 0, room, count * (frame_bytes - page_bytes) + number * page_bytes, page_bytes)
        base, source = number * frame_bytes, sources[number]
        if source < 0:
            copy_bytes(room, base, page, 0, page_bytes)
            continue
        n = _u32(page, 12)
        at = HEADER + 9 * n
        copy_bytes(room, base, page, 0, at)
        while at & 7:
            room[base + at] = 0
            at += 1
        table = at
        if stride == 0:
            at += 4 * n
        plan = slots[source]
        for row in range(n):
            start = row_start(page, 0, n, row, heads[source, STRIDE])
            begin = base + at
            if stride == 0:
                _put(room, base + table + 4 * row, 4, at)
            copy_bytes(room, begin, templates[source], 0, head)
            end, default_end = head, head
            for slot in range(into.shape[0]):
                place, width = plan[slot, PLACE], into[slot, WIDTH]
                put = begin + into[slot, PLACE]
                if width < 0:
                    until = _u32(templates[source], into[slot, PLACE])
                    if place < 0:
                        copy_bytes(room, begin + end, templates[source], default_end, until - default_end)
                        end += until - default_end
                    default_end = until
                if place >= 0:
                    if page[start + plan[slot, BYTE]] & plan[slot, BIT]:
                        room[begin + into[slot, BYTE]] |= np.uint8(into[slot, BIT])
                    kind = plan[slot, KIND]
                    if width < 0:
                        low = heads[source, HEAD]
                        if plan[slot, BEFORE] >= 0:
                            low = _u32(page, start + plan[slot, BEFORE])
                        length = _u32(page, start + place) - low
                        copy_bytes(room, begin + end, page, start + low, length)
                        end += length
                    elif kind == COPY:
                        copy_bytes(room, put, page, start + place, width)
                    elif kind == FLOAT:
                        if width == 8:
                            half[0] = np.int32(_integer(page, start + place, 4, False))
                            double[0] = np.float64(single[0])
                            _put(room, put, 8, integer[0])
                        else:
                            integer[0] = _integer(page, start + place, 8, False)
                            single[0] = np.float32(double[0])
                            if np.float64(single[0]) != double[0] and double[0] == double[0]:
                                return number, slot
                            _put(room, put, 4, np.int64(half[0]))
                    elif kind == INTEGER:
                        detail = plan[slot, DETAIL]
                        value = _integer(page, start + place, plan[slot, WIDTH], detail & 1 != 0)
                        if not _fits(value, width, detail & 2 != 0):
                            return number, slot
                        _put(room, put, width, value)
                    elif kind == DAYS:
                        factor = plan[slot, DETAIL]
                        value = _integer(page, start + place, plan[slot, WIDTH], False)
                        if width == 8:
                            value *= factor
                        else:
                            if value % factor != 0 or not _fits(value // factor, width, False):
                                return number, slot
                            value //= factor
                        _put(room, put, width, value)
                    elif plan[slot, WIDTH] < 8:  # integer to double
                        unsigned = plan[slot, DETAIL] & 1 != 0
                        double[0] = np.float64(_integer(page, start + place, plan[slot, WIDTH], unsigned))
                        _put(room, put, 8, integer[0])
                    else:
                        integer[0] = _integer(page, start + place, 8, False)
                        if not -2147483649.0 < double[0] < 4294967296.0:
                            return number, slot
                        value = np.int64(double[0])
                        unsigned = plan[slot, DETAIL] & 1 != 0
                        if np.float64(value) != double[0] or not _fits(value, width, unsigned):
                            return number, slot
                        if value == 0 and integer[0] != 0:  # -0.0
                            return number, slot
                        _put(room, put, width, value)
                if width < 0:
                    _put(room, put, 4, end)
            if stride == 0:
                _put(room, begin, 4, end)
            at += end if stride == 0 else stride
        for byte in range(base + at, base + frame_bytes):
            room[byte] = 0
        _put(room, base + 16, 4, at)
    return -1, -1
