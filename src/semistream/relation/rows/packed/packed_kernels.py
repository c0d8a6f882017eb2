"""The compiled kernels that read packed rows in place.

Each returns the position of the first row that is invalid or not within the data, or -1. A start of -1 means that there
is no row: its fields are read as 0, and its cells are empty.
"""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import Int, copy_bytes, inner_kernel, kernel

__all__ = [
    "ENTRY",
    "cell_bounds",
    "collect_rows",
    "find_escapes",
    "little_endian",
    "mark_rows",
    "read_fields",
    "row_ends",
]

ENTRY = 6
"""Bytes before an escaped value: u16 number of the column, u32 length of the value."""


@inner_kernel
def little_endian(data: Bytes, at: Int, width: Int) -> np.int64:
    """Read a number of up to 8 bytes."""
    value = np.int64(data[at])
    for byte in range(1, width):
        value |= np.int64(data[at + byte]) << (8 * byte)
    return value


@kernel
def row_ends(data: Bytes, starts: Ints, stride: int, ends: Ints) -> int:
    """Write where each row ends if the rows are copied one after another; return the first bad row, or -1."""
    total = np.int64(0)
    for i in range(starts.size):
        start = starts[i]
        if start >= 0:
            if start > data.size - stride:
                return i
            length = little_endian(data, start, 4)
            if length < stride or length > data.size - start:
                return i
            total += length
        ends[i] = total
    return -1


@kernel
def collect_rows(data: Bytes, starts: Ints, ends: Ints, out: Bytes, places: Ints) -> None:
    """Copy rows one after another, and write where they begin; -1 for those that do not exist."""
    begin = np.int64(0)
    for i in range(starts.size):
        places[i] = -1
        if starts[i] >= 0:
            places[i] = begin
            copy_bytes(out, begin, data, starts[i], ends[i] - begin)
            begin = ends[i]


@kernel
def read_fields(data: Bytes, starts: Ints, places: Ints, widths: Ints, stride: int, codes: Ints, escapes: Ints) -> int:
    """Read fields of up to 6 bytes into the rows of ``codes``; -1 where a field marks an escape.

    Count the escapes of each field, and return the first bad row or -1.
    """
    buffer = np.empty(8, np.uint8)
    word = buffer.view(np.int64)
    for i in range(starts.size):
        start = starts[i]
        if start >= 0 and start > data.size - stride:
            return i
        for field in range(places.size):
            code = np.int64(0)
            if start >= 0:
                at, width = start + places[field], widths[field]
                ones = (np.int64(1) << (8 * width)) - 1
                if at + 8 <= data.size:
                    copy_bytes(buffer, 0, data, at, 8)
                    code = word[0] & ones
                else:
                    code = little_endian(data, at, width)
                if code == ones:
                    escapes[field] += 1
                    code = np.int64(-1)
            codes[field, i] = code
    return -1


@kernel
def cell_bounds(
    data: Bytes, starts: Ints, places: Ints, widths: Ints, stride: int, begins: Ints, lengths: Ints, escapes: Ints
) -> int:
    """Find where the variable cells with these length fields begin, and their lengths: -1 where they are escaped.

    Count the escapes of each cell, and return the first bad row or -1.
    """
    for i in range(starts.size):
        start = starts[i]
        if start >= 0 and start > data.size - stride:
            return i
        begin = start + stride if start >= 0 else np.int64(0)
        for cell in range(places.size):
            length = np.int64(0)
            if start >= 0:
                width = widths[cell]
                length = little_endian(data, start + places[cell], width)
                if width < 4 and length == (np.int64(1) << (8 * width)) - 1:
                    escapes[cell] += 1
                    length = np.int64(-1)
            begins[cell, i], lengths[cell, i] = begin, length
            if length > 0:
                begin += length
        if begin > data.size:
            return i
    return -1


@kernel
def find_escapes(
    data: Bytes, starts: Ints, rows: Ints, places: Ints, widths: Ints, stride: int, number: int, begins: Ints,
    lengths: Ints,
) -> int:  # fmt: skip
    """Find the escaped value of a column in some rows (length -1: none), and return the first bad row or -1.

    ``places`` and ``widths`` describe the length fields of all variable cells. Escapes begin after these cells.
    """
    for i in range(rows.size):
        start = starts[rows[i]]
        lengths[i], begins[i] = -1, 0
        if start < 0 or start > data.size - stride:
            return int(rows[i])
        end = start + little_endian(data, start, 4)
        at = start + stride
        for cell in range(places.size):
            width = widths[cell]
            length = little_endian(data, start + places[cell], width)
            if width == 4 or length != (np.int64(1) << (8 * width)) - 1:
                at += length
        if end > data.size or at > end:
            return int(rows[i])
        while at < end:
            if at + ENTRY > end:
                return int(rows[i])
            column, length = little_endian(data, at, 2), little_endian(data, at + 2, 4)
            at += ENTRY
            if at + length > end:
                return int(rows[i])
            if column == number:
                begins[i], lengths[i] = at, length
                break
            at += length
    return -1


@kernel
def mark_rows(data: Bytes, starts: Ints, place: int, bit: int, stride: int, marked: Bytes) -> tuple[int, int]:
    """Set ``marked`` for rows in which a bit is set; return the number of these rows, and the first bad row or -1."""
    count = 0
    for i in range(starts.size):
        start = starts[i]
        marked[i] = 0
        if start >= 0:
            if start > data.size - stride:
                return count, i
            if data[start + place] & bit:
                marked[i] = 1
                count += 1
    return count, -1
