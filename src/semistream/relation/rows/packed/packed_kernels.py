"""The compiled kernels that read packed rows in place.

Each returns the position of the first row that reaches outside of the data or makes no sense, or -1. A start of -1
means that there is no row; it reads as code 0 and as a cell without bytes.
"""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import Int, inner_kernel, kernel

__all__ = ["ENTRY", "cell_bounds", "find_escapes", "mark_rows", "read_codes"]

ENTRY = 6
"""Bytes before an escaped value: u16 number of the column, u32 length of the value."""


@inner_kernel
def little_endian(data: Bytes, at: Int, width: Int) -> Int:
    """Read a number of up to 8 bytes."""
    value = np.int64(0)
    for byte in range(width):
        value |= np.int64(data[at + byte]) << (8 * byte)
    return value


@kernel
def read_codes(data: Bytes, starts: Ints, place: int, width: int, stride: int, codes: Ints) -> tuple[int, int]:
    """Read a field of up to 6 bytes; -1 where it marks an escape. Return how many do, and the first bad row or -1."""
    escape = (np.int64(1) << (8 * width)) - 1
    escapes = 0
    last = data.size - stride
    for i in range(starts.size):
        start = starts[i]
        code = np.int64(0)
        if start >= 0:
            if start > last:
                return escapes, i
            code = little_endian(data, start + place, width)
            if code == escape:
                escapes += 1
                code = np.int64(-1)
        codes[i] = code
    return escapes, -1


@kernel
def cell_bounds(
    data: Bytes, starts: Ints, places: Ints, widths: Ints, stride: int, begins: Ints, lengths: Ints
) -> tuple[int, int]:
    """Find the last of the variable cells whose length fields are given; its length is -1 where it is escaped.

    Return how many are escaped, and the first bad row or -1.
    """
    escapes = 0
    cells = places.size
    for i in range(starts.size):
        start = starts[i]
        begins[i], lengths[i] = 0, 0
        if start < 0:
            continue
        if start > data.size - stride:
            return escapes, i
        begin, length = start + stride, np.int64(0)
        for cell in range(cells):
            begin += max(length, 0)
            width = widths[cell]
            length = little_endian(data, start + places[cell], width)
            if width < 4 and length == (np.int64(1) << (8 * width)) - 1:
                length = np.int64(-1)
        if begin + max(length, 0) > data.size:
            return escapes, i
        escapes += length < 0
        begins[i], lengths[i] = begin, length
    return escapes, -1


@kernel
def find_escapes(
    data: Bytes, starts: Ints, rows: Ints, places: Ints, widths: Ints, stride: int, number: int, begins: Ints,
    lengths: Ints,
) -> int:  # fmt: skip
    """Find the escaped value of a column in some rows; its length is -1 if there is none. Return the first bad row.

    ``places`` and ``widths`` are the length fields of all variable cells, before which no escape begins.
    """
    for i in range(rows.size):
        start = starts[rows[i]]
        lengths[i], begins[i] = -1, 0
        if start < 0 or start > data.size - stride:
            return rows[i]
        end = start + little_endian(data, start, 4)
        at = start + stride
        for cell in range(places.size):
            width = widths[cell]
            length = little_endian(data, start + places[cell], width)
            if width == 4 or length != (np.int64(1) << (8 * width)) - 1:
                at += length
        if end > data.size or at > end:
            return rows[i]
        while at < end:
            if at + ENTRY > end:
                return rows[i]
            column, length = little_endian(data, at, 2), little_endian(data, at + 2, 4)
            at += ENTRY
            if at + length > end:
                return rows[i]
            if column == number:
                begins[i], lengths[i] = at, length
                break
            at += length
    return -1


@kernel
def mark_rows(data: Bytes, starts: Ints, place: int, bit: int, stride: int, marked: Bytes) -> tuple[int, int]:
    """Set ``marked`` where a bit of the row is set. Return how many are, and the first bad row or -1."""
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
