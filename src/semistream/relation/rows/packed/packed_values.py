"""Values of packed columns: Arrow's numbers as 64-bit integers and back, and Arrow's strings as words of a table."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bools, Bytes, Ints, Slots
from semistream.core.compiled import copy_bytes, frozen, kernel
from semistream.core.errors import SemistreamError
from semistream.relation.rows.row_cells import numbers, offsets_buffer, offsets_of
from semistream.relation.rows.row_columns import BytesColumn

__all__ = [
    "SLACK",
    "Escapes",
    "NumberValues",
    "Validity",
    "WordTable",
    "as_large_binary",
    "bytes_array",
    "bytes_offsets",
    "damaged",
]

Validity = tuple[pa.Buffer | None, int]
"""Arrow's validity bitmap, and the number of NULLs."""

SLACK = 8  # bytes after the last word, because words are copied 8 bytes at a time
_EIGHT, _SIXTEEN = np.arange(8), np.arange(16)


class Escapes(NamedTuple):
    """Values of one column that are stored at the end of their rows."""

    rows: Ints
    """Positions of the rows in the batch, ascending."""
    values: Bytes
    begins: Ints
    lengths: Ints
    """Value ``i``, of row ``rows[i]``, is ``lengths[i]`` bytes from ``begins[i]`` of ``values``."""


def damaged(row: int, count: int, size: int) -> SemistreamError:
    """Return the error for an invalid packed row."""
    return SemistreamError(
        f"row {row} of {count} points outside its {size} bytes, or at a value that its column does not have; these "
        "bytes were not written with this schema and packing, or are damaged: build the relation again"
    )


class NumberValues:
    """Integers, dates, times and decimals as 64-bit integers; only decimals may have more bits."""

    def __init__(self, type_: pa.DataType) -> None:
        self.type = type_
        self.bytes: int = type_.bit_width // 8
        self.wide: bool = self.bytes > 8
        unsigned = pa.types.is_unsigned_integer(type_)
        self._dtype = np.dtype(f"<{'u' if unsigned else 'i'}{min(8, self.bytes)}")
        limits = np.iinfo(self._dtype)
        self._least, self._most = int(limits.min), int(limits.max)

    def read(self, array: pa.Array) -> tuple[Ints, Bools | None]:
        """Return the values, and which of them need more than 64 bits, or None if none does."""
        if not self.wide:
            values = numbers(array.buffers()[1], self._dtype, array.offset, len(array))
            return (values.view(np.int64) if self.bytes == 8 else values.astype(np.int64)), None
        pairs = self._pairs(array)
        low = np.ascontiguousarray(pairs[:, 0])
        wide = (low >> 63) != pairs[:, 1]
        return low, wide if wide.any() else None

    def escapes(self, array: pa.Array, rows: Ints) -> Escapes:
        """Return values as they are stored at the end of rows: 8 bytes each, or 16 where a decimal needs them."""
        values, wide = self.read(array)
        if wide is None:
            return Escapes(rows, values[rows].view(np.uint8), np.arange(rows.size) * 8, np.full(rows.size, 8))
        lengths = np.where(wide[rows], 16, 8)
        return Escapes(rows, self._pairs(array)[rows].reshape(-1).view(np.uint8), np.arange(rows.size) * 16, lengths)

    def holds(self, least: int, most: int) -> bool:
        """Whether the type holds all integers from ``least`` to ``most``."""
        return self._least <= least and most <= self._most

    def array(self, values: Ints, validity: Validity, data: Bytes, escapes: Escapes | None, checked: bool) -> pa.Array:
        """Return the array of ``values``, with those in ``escapes`` replaced.

        ``checked`` means that all ``values`` are known to fit the type. Otherwise raise if one does not.
        """
        count = values.size
        packed, nulls = validity
        pairs = None
        if escapes is not None:
            short = np.flatnonzero(escapes.lengths == 8)
            values[escapes.rows[short]] = data[escapes.begins[short][:, None] + _EIGHT].view(np.int64)[:, 0]
            checked = checked and self.bytes == 8
        if self.wide:
            pairs = np.empty((count, 2), np.int64)
            pairs[:, 0], pairs[:, 1] = values, values >> 63
            if escapes is not None:
                long = np.flatnonzero(escapes.lengths == 16)
                pairs[escapes.rows[long]] = data[escapes.begins[long][:, None] + _SIXTEEN].view(np.int64)
            return pa.Array.from_buffers(self.type, count, [packed, pa.py_buffer(pairs)], nulls)
        if not checked and self.bytes < 8:
            self._check(values, packed)
        stored = values if self.bytes == 8 else values.astype(self._dtype)
        return pa.Array.from_buffers(self.type, count, [packed, pa.py_buffer(stored)], nulls)

    def _check(self, values: Ints, packed: pa.Buffer | None) -> None:
        """Raise if a value that is not NULL does not fit into the type."""
        if not values.size or self.holds(int(values.min()), int(values.max())):
            return
        wrong = (values < self._least) | (values > self._most)
        if packed is not None:
            wrong &= np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little", count=values.size).view(np.bool_)
        if wrong.any():
            row = int(wrong.argmax())
            raise SemistreamError(
                f"row {row} of {values.size} has the value {int(values[row])}, which the type {self.type} does not "
                "hold; read it with the schema that it was written with"
            )

    def _pairs(self, array: pa.Array) -> Ints:
        return numbers(array.buffers()[1], "<i8", 2 * array.offset, 2 * len(array)).reshape(-1, 2)


@kernel
def _copy_words(table: Bytes, begins: Slots, codes: Ints, offsets: Ints, out: Bytes) -> None:
    """Copy words 8 bytes at a time; bytes that were copied after the end of a word are overwritten by the next word."""
    for i in range(codes.size):
        to, at, end = offsets[i], np.int64(begins[codes[i]]), begins[codes[i] + 1]
        while at < end:
            copy_bytes(out, to, table, at, 8)
            at += 8
            to += 8


@kernel
def _copy_escapes(data: Bytes, begins: Ints, rows: Ints, offsets: Ints, out: Bytes) -> None:
    for i in range(rows.size):
        to = offsets[rows[i]]
        copy_bytes(out, to, data, begins[i], offsets[rows[i] + 1] - to)


class WordTable:
    """Byte strings, numbered from 1; number 0 has no bytes, and stands for NULLs and absent rows."""

    def __init__(self, table: bytes, lengths: Ints) -> None:
        self.lengths: Slots = np.append(0, lengths).astype(np.int32)
        self._begins: Slots = frozen(np.append(0, np.cumsum(self.lengths)).astype(np.int32))
        self._table: Bytes = frozen(np.frombuffer(table + bytes(SLACK), np.uint8))

    def array(
        self, column: BytesColumn, codes: Ints, validity: Validity, data: Bytes, escapes: Escapes | None
    ) -> pa.Array:
        """Return the words with these numbers.

        Those in ``escapes`` have number 0 and are copied from ``data``.
        """
        lengths = self.lengths[codes].astype(np.int64)
        if escapes is not None:
            lengths[escapes.rows] = escapes.lengths
        offsets = bytes_offsets(column, lengths)
        out = np.empty(int(offsets[-1]) + SLACK, np.uint8)
        _copy_words(self._table, self._begins, frozen(codes), frozen(offsets), out)
        return bytes_array(column, offsets, out, validity, data, escapes)


def as_large_binary(array: pa.Array) -> pa.Array:
    """Return strings or binary values of any type, or dictionaries of these, as one type."""
    if pa.types.is_dictionary(array.type):  # Arrow cannot take from a dictionary of views
        return as_large_binary(array.dictionary).take(array.indices)
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.large_string())
    return array.cast(pa.large_binary())


def bytes_offsets(column: BytesColumn, lengths: Ints) -> Ints:
    """Return the offsets of cells of these lengths; raise if the type's offsets are too small."""
    return offsets_of(lengths, column._large, "bytes", str(column._large_type))


def bytes_array(
    column: BytesColumn, offsets: Ints, out: Bytes, validity: Validity, data: Bytes, escapes: Escapes | None
) -> pa.Array:
    """Return the array whose bytes are in ``out``, except for those of ``escapes``, which are copied from ``data``."""
    if escapes is not None:
        _copy_escapes(data, frozen(escapes.begins), frozen(escapes.rows), frozen(offsets), out)
    packed, nulls = validity
    buffers = [packed, offsets_buffer(offsets, column._large), pa.py_buffer(out[: int(offsets[-1])])]
    array = pa.Array.from_buffers(column._plain_type, offsets.size - 1, buffers, nulls)
    return array.cast(column.type) if column._view else array
