"""Shared by all columns of a row: cells, the interface of a column, and Arrow's buffers as NumPy arrays.

A column occupies *slots* of the row. A slot is a null bit plus a field of fixed width, a field that points to variable
bytes, or no field. `Column.split` returns one `Cells` per slot; `Column.join` builds the array from them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.compiled import frozen
from semistream.core.errors import SemistreamError
from semistream.relation.rows.row_kernels import write_field

__all__ = [
    "VARIABLE",
    "Cells",
    "CodecFor",
    "Column",
    "FieldPlace",
    "Mask",
    "RowFormat",
    "RowLimitError",
    "Rows",
    "added",
    "batch_without_columns",
    "either",
    "head_field",
    "holds_fixed_lists",
    "null_mask",
    "numbers",
    "offsets_buffer",
    "offsets_of",
    "validity_buffer",
    "write_cells",
]

Mask = NDArray[np.bool_]

VARIABLE = -1
"""The width that marks a slot whose bytes follow the row's fixed head."""

_MAX_OFFSET32 = (1 << 31) - 1  # largest 32-bit offset in Arrow
_NO_COLUMNS = pa.struct([])
_NO_NUMBERS = np.zeros(0, dtype=np.int64)


class RowLimitError(SemistreamError):
    """More bytes or values than a row, or the Arrow type of the output, can hold."""


@dataclass(frozen=True, slots=True)
class Cells:
    """One slot of many rows.

    ``values`` holds the packed fields (any dtype of the slot's width). For variable slots it holds bytes, of which
    cell ``i`` is ``lengths[i]`` bytes from ``begins[i]``. ``nulls`` is None if no cell is NULL.
    """

    nulls: NDArray[np.bool_] | None
    values: NDArray[Any]
    begins: NDArray[np.int64] = field(default_factory=lambda: _NO_NUMBERS)
    lengths: NDArray[np.int64] = field(default_factory=lambda: _NO_NUMBERS)

    def hidden(self, nulls: NDArray[np.bool_] | None) -> Cells:
        """Return the cells, which are also NULL where ``nulls`` is true.

        Values under a NULL parent are arbitrary and not kept.
        """
        if nulls is None:
            return self
        lengths = np.where(nulls, 0, self.lengths) if self.lengths.size else self.lengths
        return Cells(nulls if self.nulls is None else self.nulls | nulls, self.values, self.begins, lengths)


class FieldPlace(NamedTuple):
    """Where rows store a field of fixed width, and its null bit, relative to the start of a row."""

    at: int
    null_byte: int
    null_bit: int


class Column(ABC):
    """Encodes one column into rows and decodes it; ``slots`` are the widths of its slots."""

    slots: tuple[int, ...]
    marks_nulls = True
    """Whether the null bits of a NULL are set."""

    def __init__(self, type_: pa.DataType) -> None:
        self.type = type_

    @abstractmethod
    def split(self, array: pa.Array, hidden: Mask | None = None) -> list[Cells]:
        """Return the cells of each slot.

        Where ``hidden`` is true, a NULL parent hides a value that may be invalid.
        """

    def spread(self, array: pa.Array, hidden: Mask | None = None) -> NDArray[np.int64] | None:
        """Return the variable bytes of each row of ``array``, without the head; None if there are none."""
        return None

    @abstractmethod
    def join(self, cells: Sequence[Cells], rows: int) -> pa.Array:
        """Return the array, of exactly this column's type."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Encoded rows, one after another in ``data``: row ``i`` is ``lengths[i]`` bytes from ``starts[i]``."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return self.starts.size

    def head(self, count: int) -> Rows:
        """Return the first ``count`` rows."""
        return Rows(self.data, self.starts[:count], self.lengths[:count])


class RowFormat(Protocol):
    """The codec interface that columns need if their values are rows themselves; see `row_codec.RowCodec`."""

    schema: pa.Schema
    variable: bool
    stride: int

    def lengths(self, batch: pa.RecordBatch, hidden: Mask | None = None) -> NDArray[np.int64]:
        """Return the encoded length of each row in bytes."""
        ...

    def encode(self, batch: pa.RecordBatch, hidden: Mask | None = None) -> Rows:
        """Encode all rows."""
        ...

    def decode(self, data: NDArray[np.uint8], starts: NDArray[np.int64]) -> pa.RecordBatch:
        """Decode the rows that start at ``starts``."""
        ...

    def nulls(self, rows: int) -> pa.RecordBatch:
        """Return rows in which everything is NULL."""
        ...


CodecFor = Callable[[pa.Schema], RowFormat]
"""Returns the codec of a schema. Lists hold rows and rows hold lists, so the maker of a column passes this function."""


def null_mask(array: pa.Array) -> NDArray[np.bool_] | None:
    """Return where ``array`` is NULL, or None if it has no NULL."""
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
    """Add up the bytes of several columns, row by row; return None if there are no columns."""
    if not spreads:
        return None
    total = spreads[0]
    for spread in spreads[1:]:
        total = total + spread
    return total


def validity_buffer(nulls: NDArray[np.bool_] | None) -> tuple[pa.Buffer | None, int]:
    """Return Arrow's validity bitmap and the number of NULLs; the bitmap is None if there are no NULLs."""
    if nulls is None:
        return None, 0
    return pa.py_buffer(np.packbits(np.logical_not(nulls), bitorder="little")), int(np.count_nonzero(nulls))


def numbers(buffer: pa.Buffer | None, dtype: np.dtype[Any] | str, first: int, count: int) -> NDArray[Any]:
    """View ``count`` values of an Arrow buffer, starting at ``first``."""
    if buffer is None or count == 0:
        return np.zeros(count, dtype=dtype)
    dtype = np.dtype(dtype)
    return np.frombuffer(buffer, dtype=dtype, count=count, offset=first * dtype.itemsize)


def offsets_of(lengths: NDArray[np.int64], large: bool, what: str, remedy: str) -> NDArray[np.int64]:
    """Return Arrow offsets for cells of these lengths; raise if 32 bits are too few, unless ``large``."""
    offsets = np.zeros(lengths.size + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    total = int(offsets[-1])
    if total > _MAX_OFFSET32 and not large:
        raise RowLimitError(
            f"{lengths.size} rows hold {total} {what} in one column; its type addresses at most {_MAX_OFFSET32} in "
            f"one batch. Request smaller output batches, or give the column the type {remedy}"
        )
    return offsets


def offsets_buffer(offsets: NDArray[np.int64], large: bool) -> pa.Buffer:
    """Return Arrow's buffer of 64-bit or 32-bit offsets."""
    return pa.py_buffer(offsets if large else offsets.astype(np.int32))


def head_field(heads: NDArray[np.uint8], place: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """View one field of all heads, unaligned."""
    count, stride = heads.shape
    if count == 0:
        return np.zeros(0, dtype=dtype)
    return np.ndarray((count,), dtype=dtype, buffer=heads, offset=place, strides=(stride,))


def write_cells(heads: NDArray[np.uint8], place: int, width: int, cell: Cells) -> None:
    """Write the fields of one slot, which has a fixed width, to all heads."""
    values = frozen(cell.values.view(np.uint8).reshape(-1))
    assert values.size == heads.shape[0] * width, f"{values.size} B for {heads.shape[0]} values of {width} B"
    write_field(heads, place, width, values)
    if cell.nulls is not None:
        # Arrow's bytes under a NULL are arbitrary, but equal rows must have equal bytes.
        heads[cell.nulls, place : place + width] = 0


def batch_without_columns(rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with rows but no columns, which only a struct array can represent."""
    empty = pa.Array.from_buffers(_NO_COLUMNS, rows, [None])
    return pa.RecordBatch.from_struct_array(empty).replace_schema_metadata(schema.metadata)


def holds_fixed_lists(type_: pa.DataType) -> bool:
    """Whether values of a type contain lists of a fixed size."""
    if isinstance(type_, pa.BaseExtensionType):
        return holds_fixed_lists(type_.storage_type)
    if pa.types.is_fixed_size_list(type_):
        return True
    return any(holds_fixed_lists(type_.field(child).type) for child in range(type_.num_fields))
