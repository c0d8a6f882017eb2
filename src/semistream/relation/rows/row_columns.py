"""Columns of plain types: how their Arrow arrays become cells and back.

=================================  =====================================================================
type                               slots
=================================  =====================================================================
numbers, dates, decimals, ...      one field of the type's width
boolean                            one byte
null                               none: all values are NULL
string, binary, large and views    variable bytes
others                             see `row_nested` and `row_encoded`
=================================  =====================================================================
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.compiled import frozen
from semistream.core.errors import SemistreamError
from semistream.relation.rows.row_cells import (
    VARIABLE,
    Cells,
    Column,
    Mask,
    either,
    null_mask,
    numbers,
    offsets_buffer,
    offsets_of,
    validity_buffer,
)
from semistream.relation.rows.row_kernels import copy_cells

__all__ = ["BooleanColumn", "BytesColumn", "FixedColumn", "NullColumn"]


class FixedColumn(Column):
    """A type whose values all take the same whole number of bytes."""

    def __init__(self, type_: pa.DataType) -> None:
        super().__init__(type_)
        try:
            self._width: int = type_.bit_width // 8
        except ValueError:
            raise SemistreamError(
                f"rows cannot hold values of the Arrow type {type_}; cast the column to another type"
            ) from None
        self.slots = (self._width,)
        self._dtype = np.dtype(f"<u{self._width}") if self._width in (1, 2, 4, 8) else np.dtype(np.uint8)
        self._items = self._width // self._dtype.itemsize

    def split(self, array: pa.Array, hidden: Mask | None = None) -> list[Cells]:
        count, items = len(array), self._items
        values = numbers(array.buffers()[1], self._dtype, array.offset * items, count * items)
        return [Cells(null_mask(array), values)]

    def join(self, cells: Sequence[Cells], rows: int) -> pa.Array:
        (cell,) = cells
        validity, nulls = validity_buffer(cell.nulls)
        return pa.Array.from_buffers(self.type, rows, [validity, pa.py_buffer(cell.values)], nulls)


class BooleanColumn(Column):
    """Booleans, one byte each: packing eight into a byte would cost more time than the space is worth."""

    slots = (1,)

    def split(self, array: pa.Array, hidden: Mask | None = None) -> list[Cells]:
        bits = pa.Array.from_buffers(self.type, len(array), [None, array.buffers()[1]], 0, array.offset)
        return [Cells(null_mask(array), np.asarray(bits.to_numpy(zero_copy_only=False), dtype=np.uint8))]

    def join(self, cells: Sequence[Cells], rows: int) -> pa.Array:
        (cell,) = cells
        validity, nulls = validity_buffer(cell.nulls)
        bits = pa.py_buffer(np.packbits(cell.values, bitorder="little"))
        return pa.Array.from_buffers(self.type, rows, [validity, bits], nulls)


class NullColumn(Column):
    """Arrow's null type, whose values are all NULL. A row stores nothing for it."""

    slots = ()

    def split(self, array: pa.Array, hidden: Mask | None = None) -> list[Cells]:
        return []

    def join(self, cells: Sequence[Cells], rows: int) -> pa.Array:
        return pa.nulls(rows, self.type)


class BytesColumn(Column):
    """Strings and binary values with 32-bit or 64-bit offsets, or as views."""

    slots = (VARIABLE,)

    def __init__(self, type_: pa.DataType) -> None:
        super().__init__(type_)
        text = pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)
        self._view: bool = pa.types.is_string_view(type_) or pa.types.is_binary_view(type_)
        large = pa.types.is_large_string(type_) or pa.types.is_large_binary(type_)
        self._large: bool = large or self._view
        self._large_type = pa.large_string() if text else pa.large_binary()
        self._plain_type = self._large_type if self._view else type_

    def split(self, array: pa.Array, hidden: Mask | None = None) -> list[Cells]:
        if self._view:
            array = _covered(array, hidden).cast(self._large_type)
        count = len(array)
        _, offsets_at, bytes_at = array.buffers()
        dtype = "<i8" if self._large else "<i4"
        offsets = numbers(offsets_at, dtype, array.offset, count + 1 if count else 0)
        offsets = offsets.astype(np.int64, copy=False)
        nulls = null_mask(array)
        lengths = np.diff(offsets)
        if nulls is not None:
            lengths[nulls] = 0
        data = numbers(bytes_at, "<u1", 0, bytes_at.size if bytes_at is not None else 0)
        return [Cells(nulls, data, begins=offsets[:-1], lengths=lengths)]

    def spread(self, array: pa.Array, hidden: Mask | None = None) -> NDArray[np.int64] | None:
        count = len(array)
        if self._view:
            lengths = numbers(array.buffers()[1], "<i4", 4 * array.offset, 4 * count)[::4].astype(np.int64)
        else:
            dtype = "<i8" if self._large else "<i4"
            offsets = numbers(array.buffers()[1], dtype, array.offset, count + 1 if count else 0)
            lengths = np.diff(offsets).astype(np.int64, copy=False)
        return _zero_where(lengths, either(null_mask(array), hidden))

    def join(self, cells: Sequence[Cells], rows: int) -> pa.Array:
        (cell,) = cells
        offsets = offsets_of(cell.lengths, self._large, "bytes", str(self._large_type))
        data = np.empty(int(offsets[-1]), dtype=np.uint8)
        begins, lengths = frozen(cell.begins), frozen(cell.lengths)
        bad = copy_cells(frozen(cell.values), begins, lengths, data, frozen(offsets[:-1]))
        if bad >= 0:
            raise SemistreamError(
                f"row {bad} of {rows} points outside its {cell.values.size} bytes; these bytes were not "
                "written with this schema, or are damaged: build the relation again"
            )
        validity, nulls = validity_buffer(cell.nulls)
        buffers = [validity, offsets_buffer(offsets, self._large), pa.py_buffer(data)]
        array = pa.Array.from_buffers(self._plain_type, rows, buffers, nulls)
        return array.cast(self.type) if self._view else array


def _zero_where(lengths: NDArray[np.int64], nulls: Mask | None) -> NDArray[np.int64]:
    return lengths if nulls is None else np.where(nulls, 0, lengths)


def _covered(array: pa.Array, hidden: Mask | None) -> pa.Array:
    """Return views that are also NULL where ``hidden``: hidden views may point anywhere."""
    if hidden is None:
        return array
    nulls = either(null_mask(array), hidden)
    padded = np.concatenate([np.zeros(array.offset, np.bool_), nulls])
    validity, _ = validity_buffer(padded)
    return pa.Array.from_buffers(array.type, len(array), [validity, *array.buffers()[1:]], -1, array.offset)
