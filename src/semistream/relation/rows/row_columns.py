"""Columns of a row: how an Arrow array of each type becomes cells and back.

A column occupies *slots* of the row, each a null bit plus a field of fixed width, a field that points to
variable bytes, or no field at all. `Column.split` gives one `Cells` a slot, `Column.join` makes the array
again.

=================================  =====================================================================
type                               slots
=================================  =====================================================================
numbers, dates, decimals, ...      one field of the type's width
boolean                            one byte
null                               none: the type says it all
string, binary, large and views    variable bytes
struct                             a null bit, then its children's slots
others                             see `row_nested`
=================================  =====================================================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.compiled import frozen
from semistream.core.errors import SemistreamError
from semistream.relation.rows.row_kernels import copy_cells

__all__ = ["VARIABLE", "Cells", "Column", "RowLimitError", "column_for", "either", "null_mask", "validity_buffer"]

Mask = NDArray[np.bool_]

VARIABLE = -1
"""The width of a slot whose bytes follow the row's fixed head."""

_MAX_OFFSET32 = (1 << 31) - 1
_NO_NUMBERS = np.zeros(0, dtype=np.int64)


class RowLimitError(SemistreamError):
    """More bytes or values than a row, or the Arrow type of the output, can hold."""


@dataclass(frozen=True, slots=True)
class Cells:
    """One slot of many rows.

    ``values`` holds the fields packed as bytes (any dtype of the slot's width), or for variable slots bytes
    in which cell ``i`` takes ``lengths[i]`` from ``begins[i]``. ``nulls`` is None when no cell is NULL.
    """

    nulls: NDArray[np.bool_] | None
    values: NDArray[Any]
    begins: NDArray[np.int64] = field(default_factory=lambda: _NO_NUMBERS)
    lengths: NDArray[np.int64] = field(default_factory=lambda: _NO_NUMBERS)

    def hidden(self, nulls: NDArray[np.bool_] | None) -> Cells:
        """Return the cells, NULL also where ``nulls``: what a NULL parent hides is arbitrary and not kept."""
        if nulls is None:
            return self
        lengths = np.where(nulls, 0, self.lengths) if self.lengths.size else self.lengths
        return Cells(nulls if self.nulls is None else self.nulls | nulls, self.values, self.begins, lengths)


class Column(ABC):
    """One column's way into rows and out again; ``slots`` are the widths of the slots it takes."""

    slots: tuple[int, ...]

    def __init__(self, type_: pa.DataType) -> None:
        self.type = type_

    @abstractmethod
    def split(self, array: pa.Array, hidden: Mask | None = None) -> list[Cells]:
        """Return the cells of each slot. Where ``hidden``, a NULL parent covers a value that may be no value at all."""

    def spread(self, array: pa.Array, hidden: Mask | None = None) -> NDArray[np.int64] | None:
        """Return the variable bytes that each row of ``array`` takes beside the head; None where none takes any."""
        return None

    @abstractmethod
    def join(self, cells: Sequence[Cells], rows: int) -> pa.Array:
        """Make the array of exactly this column's type."""


def null_mask(array: pa.Array) -> NDArray[np.bool_] | None:
    """Where ``array`` is NULL, or None if it nowhere is."""
    if array.null_count == 0:
        return None
    buffer = array.buffers()[0]
    if buffer is None:
        return None
    first = array.offset // 8
    skip = array.offset % 8
    packed = np.frombuffer(buffer, dtype=np.uint8)[first : first + (skip + len(array) + 7) // 8]
    bits = np.unpackbits(packed, bitorder="little", count=skip + len(array))[skip:]
    return np.logical_not(bits.view(np.bool_))


def either(one: Mask | None, other: Mask | None) -> Mask | None:
    """Return where one of two masks is true; None is true nowhere."""
    if one is None or other is None:
        return other if one is None else one
    return one | other


def added(spreads: Sequence[NDArray[np.int64]]) -> NDArray[np.int64] | None:
    """Add up what columns take, row by row; None if there is none."""
    if not spreads:
        return None
    total = spreads[0]
    for spread in spreads[1:]:
        total = total + spread
    return total


def _zero_where(lengths: NDArray[np.int64], nulls: Mask | None) -> NDArray[np.int64]:
    return lengths if nulls is None else np.where(nulls, 0, lengths)


def _covered(array: pa.Array, hidden: Mask | None) -> pa.Array:
    """Return views that are NULL also where ``hidden``: there they may point anywhere."""
    if hidden is None:
        return array
    nulls = either(null_mask(array), hidden)
    padded = np.concatenate([np.zeros(array.offset, np.bool_), nulls])
    validity, _ = validity_buffer(padded)
    return pa.Array.from_buffers(array.type, len(array), [validity, *array.buffers()[1:]], -1, array.offset)


def validity_buffer(nulls: NDArray[np.bool_] | None) -> tuple[pa.Buffer | None, int]:
    """Arrow's validity bitmap, and how many NULLs it shows; no bitmap when there are none."""
    if nulls is None:
        return None, 0
    return pa.py_buffer(np.packbits(np.logical_not(nulls), bitorder="little")), int(np.count_nonzero(nulls))


def numbers(buffer: pa.Buffer | None, dtype: np.dtype[Any] | str, first: int, count: int) -> NDArray[Any]:
    """View ``count`` values of an Arrow buffer from the ``first``."""
    if buffer is None or count == 0:
        return np.zeros(count, dtype=dtype)
    dtype = np.dtype(dtype)
    return np.frombuffer(buffer, dtype=dtype, count=count, offset=first * dtype.itemsize)


def offsets_of(lengths: NDArray[np.int64], large: bool, what: str, remedy: str) -> NDArray[np.int64]:
    """Arrow offsets for cells of these lengths; refuses what offsets of 32 bits cannot say, unless ``large``."""
    offsets = np.zeros(lengths.size + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    total = int(offsets[-1])
    if total > _MAX_OFFSET32 and not large:
        raise RowLimitError(
            f"{lengths.size} rows hold {total} {what} in one column; its type addresses at most {_MAX_OFFSET32} in "
            f"one batch. Ask for smaller output batches, or give the column the type {remedy}"
        )
    return offsets


def offsets_buffer(offsets: NDArray[np.int64], large: bool) -> pa.Buffer:
    """Make Arrow's buffer of 64-bit or 32-bit offsets."""
    return pa.py_buffer(offsets if large else offsets.astype(np.int32))


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
    """Booleans, a byte each: eight of them in a byte would cost more to take apart than they save."""

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
    """The type of nothing but NULLs: a row holds nothing of it."""

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


class StructColumn(Column):
    """A struct, flattened: its own null bit, then its children as if they were columns of the row."""

    def __init__(self, type_: pa.StructType) -> None:
        super().__init__(type_)
        self._children = [column_for(type_.field(i).type) for i in range(type_.num_fields)]
        self.slots = (0, *(width for child in self._children for width in child.slots))

    def split(self, array: pa.Array, hidden: Mask | None = None) -> list[Cells]:
        nulls = null_mask(array)
        cells = [Cells(nulls, np.zeros(0, dtype=np.uint8))]
        below = either(nulls, hidden)
        for i, child in enumerate(self._children):
            cells.extend(cell.hidden(nulls) for cell in child.split(array.field(i), below))
        return cells

    def spread(self, array: pa.Array, hidden: Mask | None = None) -> NDArray[np.int64] | None:
        below = either(null_mask(array), hidden)
        spreads = [child.spread(array.field(i), below) for i, child in enumerate(self._children)]
        return added([spread for spread in spreads if spread is not None])

    def join(self, cells: Sequence[Cells], rows: int) -> pa.Array:
        validity, nulls = validity_buffer(cells[0].nulls)
        children = []
        taken = 1
        for child in self._children:
            children.append(child.join(cells[taken : taken + len(child.slots)], rows))
            taken += len(child.slots)
        return pa.Array.from_buffers(self.type, rows, [validity], nulls, children=children)


def column_for(type_: pa.DataType) -> Column:
    """Choose the column class for an Arrow type."""
    is_ = pa.types
    if is_.is_null(type_):
        return NullColumn(type_)
    if is_.is_boolean(type_):
        return BooleanColumn(type_)
    if is_.is_struct(type_):
        return StructColumn(type_)
    if any(
        test(type_)
        for test in (
            is_.is_string, is_.is_binary, is_.is_large_string, is_.is_large_binary,
            is_.is_string_view, is_.is_binary_view,
        )
    ):  # fmt: skip
        return BytesColumn(type_)
    from semistream.relation.rows.row_nested import nested_column_for  # nested columns hold rows, hence columns

    nested = nested_column_for(type_)
    return FixedColumn(type_) if nested is None else nested
