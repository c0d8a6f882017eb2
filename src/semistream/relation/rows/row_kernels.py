"""The compiled kernels that move bytes for `RowCodec`.

Kernels that read at given starts check bounds and return the position of the first row outside the data, or -1: a
wrong start must cause an error, not a read of other memory. Inputs are read-only views (see `core.compiled.frozen`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.core.compiled import Int, copy_bytes, inner_kernel, kernel

__all__ = [
    "copy_cells",
    "count_chained_rows",
    "gather_heads",
    "lengths_at",
    "list_chained_rows",
    "row_length",
    "scatter_heads",
    "split_heads",
    "write_field",
]


@kernel
def gather_heads(data: NDArray[np.uint8], starts: NDArray[np.int64], heads: NDArray[np.uint8]) -> int:
    """Copy the fixed head of every row into ``heads`` (rows × stride)."""
    stride = heads.shape[1]
    flat = heads.reshape(-1)
    last = data.size - stride
    for i in range(starts.size):
        start = starts[i]
        if start < 0 or start > last:
            return i
        copy_bytes(flat, i * stride, data, start, stride)
    return -1


@kernel
def _copy_strided(
    target: NDArray[np.uint8], to: int, by: int, source: NDArray[np.uint8], at: int, step: int, width: int, count: int
) -> None:
    """Copy ``count`` fields of ``width`` bytes, ``by`` and ``step`` bytes apart."""
    # A copy of constant length compiles to a single instruction.
    if width == 8:
        for i in range(count):
            copy_bytes(target, to + i * by, source, at + i * step, 8)
    elif width == 4:
        for i in range(count):
            copy_bytes(target, to + i * by, source, at + i * step, 4)
    elif width == 1:
        for i in range(count):
            target[to + i * by] = source[at + i * step]
    else:
        for i in range(count):
            copy_bytes(target, to + i * by, source, at + i * step, width)


@kernel
def split_heads(
    heads: NDArray[np.uint8], places: NDArray[np.int64], widths: NDArray[np.int64], out: NDArray[np.uint8]
) -> None:
    """Copy the fields of all heads to ``out``, field after field, each at a multiple of 8.

    Skip widths below 1.
    """
    count, stride = heads.shape
    flat = heads.reshape(-1)
    at = 0
    for field in range(places.size):
        width = widths[field]
        if width > 0:
            _copy_strided(out, at, width, flat, places[field], stride, width, count)
            at += (count * width + 7) & ~7


@kernel
def write_field(heads: NDArray[np.uint8], place: int, width: int, values: NDArray[np.uint8]) -> None:
    """Copy values, ``width`` bytes each, to one field of all heads."""
    count, stride = heads.shape
    _copy_strided(heads.reshape(-1), place, stride, values, 0, width, width, count)


@kernel
def scatter_heads(heads: NDArray[np.uint8], starts: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
    """Copy every head to its row's start."""
    stride = heads.shape[1]
    flat = heads.reshape(-1)
    for i in range(starts.size):
        copy_bytes(data, starts[i], flat, i * stride, stride)


@kernel
def copy_cells(
    source: NDArray[np.uint8],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    target: NDArray[np.uint8],
    targets: NDArray[np.int64],
) -> int:
    """Copy ``lengths[i]`` bytes from ``begins[i]`` of ``source`` to ``targets[i]`` of ``target``."""
    for i in range(lengths.size):
        length = lengths[i]
        begin = begins[i]
        to = targets[i]
        if length == 0:
            continue
        if length < 0 or begin < 0 or begin + length > source.size or to + length > target.size:
            return i
        copy_bytes(target, to, source, begin, length)
    return -1


@inner_kernel
def row_length(data: NDArray[np.uint8], at: Int) -> int:
    """Return the length of the variable row that starts at ``at``."""
    length = 0
    for place in range(4):
        length |= int(data[at + place]) << (8 * place)
    return length


@kernel
def lengths_at(data: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the lengths of the variable rows that start at ``starts``; 0 for a row outside the data."""
    lengths = np.zeros(starts.size, np.int64)
    for i in range(starts.size):
        if 0 <= starts[i] <= data.size - 4:
            lengths[i] = row_length(data, starts[i])
    return lengths


@kernel
def count_chained_rows(
    data: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64], counts: NDArray[np.int64]
) -> int:
    """Count the variable rows that follow one another in each cell."""
    for i in range(begins.size):
        at = begins[i]
        end = at + lengths[i]
        if at < 0 or end > data.size:
            return i
        count = 0
        while at < end:
            if at + 4 > end:
                return i
            length = row_length(data, at)
            if length < 4 or at + length > end:
                return i
            at += length
            count += 1
        counts[i] = count
    return -1


@kernel
def list_chained_rows(
    data: NDArray[np.uint8],
    begins: NDArray[np.int64],
    counts: NDArray[np.int64],
    stride: int,
    starts: NDArray[np.int64],
) -> None:
    """Write where each row of each cell starts.

    If ``stride`` is 0, rows contain their own length.
    """
    written = 0
    for i in range(begins.size):
        at = begins[i]
        for _ in range(counts[i]):
            starts[written] = at
            written += 1
            at += stride if stride > 0 else row_length(data, at)
