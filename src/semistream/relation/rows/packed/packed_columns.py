"""Columns of packed rows: how their Arrow arrays become fields, cells and escapes, and back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.core.compiled import frozen
from semistream.relation.rows.packed.packed_kernels import ENTRY
from semistream.relation.rows.packed.packed_rows import PackedRows, Place
from semistream.relation.rows.packed.packed_values import (
    SLACK,
    Escapes,
    NumberValues,
    Validity,
    WordTable,
    as_large_binary,
    bytes_array,
    bytes_offsets,
    damaged,
)
from semistream.relation.rows.packed.packing import CONSTANT, DICTIONARY, OFFSET, SYMBOLS, ColumnPacking
from semistream.relation.rows.packed.symbol_kernels import decompress_cells, decompressed_lengths
from semistream.relation.rows.packed.symbol_table import TEXT_GROWTH, SymbolTable
from semistream.relation.rows.row_cells import VARIABLE, Cells, Column, Mask, null_mask
from semistream.relation.rows.row_columns import BytesColumn
from semistream.relation.rows.row_encoded import DictionaryColumn
from semistream.relation.rows.row_kernels import copy_cells

__all__ = ["GROWTH", "CellColumn", "PackedColumn", "WordColumn", "length_bytes", "packed_column"]

GROWTH = 8
"""Maximum decoded bytes per byte of a variable cell: a symbol has up to 8."""
_NONE: Ints = np.zeros(0, np.int64)


class PackedColumn(Column):
    """A column with one slot, whose values may be escaped."""

    packing: ColumnPacking
    fixed_bytes: int
    """Bytes of a decoded value that is not escaped, without those of a word or a variable cell."""
    longest: int = 0
    """Bytes of the longest word."""

    @property
    def packed(self) -> PackedColumn:
        """The column itself; for Arrow's dictionaries, the column of their values."""
        return self

    def split(self, array: pa.Array, hidden: Mask | None = None) -> list[Cells]:
        raise AssertionError("only whole rows are packed")

    def join(self, cells: Sequence[Cells], rows: int) -> pa.Array:
        raise AssertionError("only whole rows are packed")

    def spread(self, array: pa.Array, hidden: Mask | None = None) -> Ints | None:
        cells, escapes = self.pack(array)
        lengths = cells.lengths.copy() if VARIABLE in self.slots else np.zeros(len(array), np.int64)
        lengths[escapes.rows] += ENTRY + escapes.lengths
        return lengths

    @abstractmethod
    def pack(self, array: pa.Array) -> tuple[Cells, Escapes]:
        """Return the cells of the slot, and the values that are escaped.

        Fields of escaped rows are zero, and their cells empty: the codec marks them.
        """

    @abstractmethod
    def read(self, rows: PackedRows, place: Place, validity: Validity) -> pa.Array:
        """Return this column of some rows.

        ``validity`` marks rows that exist and whose null bit is not set.
        """


def packed_column(plain: Column, packing: ColumnPacking | None) -> Column:
    """Return the column that packs the values of a plain one; the plain one if the packing is for other types."""
    if packing is None or not packing.fits(plain.type):
        return plain
    if isinstance(plain, DictionaryColumn):
        values = packed_column(plain.inner, packing)
        assert isinstance(values, PackedColumn)
        return _Dictionary(plain, values)
    number = packing.family != "bytes"
    if packing.kind == CONSTANT:
        return _ConstantNumber(plain.type, packing) if number else _ConstantBytes(plain.type, packing)
    if packing.kind == OFFSET:
        return _Offsets(plain.type, packing)
    return (WordColumn if packing.kind == DICTIONARY else CellColumn)(plain.type, packing)


def length_bytes(column: Column) -> int:
    """Return the bytes of the field of a column's variable cells: their end, or the length of a packed cell."""
    return column.packing.width if isinstance(column, PackedColumn) else 4


def _nulls(array: pa.Array) -> Mask:
    nulls = null_mask(array)
    return np.zeros(len(array), np.bool_) if nulls is None else nulls


class _Dictionary(PackedColumn):
    """Arrow's dictionaries, whose values are packed.

    Each batch gets the dictionary of the values that occur in it.
    """

    def __init__(self, plain: DictionaryColumn, values: PackedColumn) -> None:
        super().__init__(plain.type)
        self._plain, self._values = plain, values
        self.packing, self.slots, self.marks_nulls = values.packing, values.slots, values.marks_nulls
        self.fixed_bytes, self.longest = values.fixed_bytes + 8, values.longest

    @property
    def packed(self) -> PackedColumn:
        return self._values.packed

    def pack(self, array: pa.Array) -> tuple[Cells, Escapes]:
        return self._values.pack(self._plain.unwrapped(array))

    def read(self, rows: PackedRows, place: Place, validity: Validity) -> pa.Array:
        return self._plain.wrapped(self._values.read(rows, place, validity))


class _Offsets(PackedColumn):
    """Numbers relative to a base, in steps of a divisor."""

    def __init__(self, type_: pa.DataType, packing: ColumnPacking) -> None:
        super().__init__(type_)
        self.packing, self.slots = packing, (packing.width,)
        self._values = NumberValues(type_)
        self.fixed_bytes = self._values.bytes
        self._limit = (1 << 8 * packing.width) - 1
        most = packing.base + (self._limit - 1) * packing.divisor
        self._checked = self._values.holds(packing.base, most)

    def pack(self, array: pa.Array) -> tuple[Cells, Escapes]:
        values, wide = self._values.read(array)
        nulls = null_mask(array)
        distance = values.view(np.uint64) - np.uint64(self.packing.base % (1 << 64))
        if self.packing.divisor == 1:
            codes, fits = distance, distance < self._limit
        else:
            codes, rest = np.divmod(distance, np.uint64(self.packing.divisor))
            fits = (codes < self._limit) & (rest == 0)
        if wide is not None:
            fits &= ~wide
        if nulls is not None:
            fits |= nulls
        rows = _NONE if fits.all() else np.flatnonzero(~fits)
        fields = np.ascontiguousarray(codes.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : self.packing.width])
        fields[rows] = 0
        return Cells(nulls, fields), self._values.escapes(array, rows)

    def read(self, rows: PackedRows, place: Place, validity: Validity) -> pa.Array:
        values, count = rows.codes(place, self.packing.width)
        escapes = rows.escapes(np.flatnonzero(values < 0), self.packing) if count else None
        if self.packing.divisor > 1:
            values *= self.packing.divisor
        if self.packing.base:
            values += self.packing.base
        return self._values.array(values, validity, rows.data, escapes, self._checked)


class WordColumn(PackedColumn):
    """Byte strings, each stored as its number in a table."""

    def __init__(self, type_: pa.DataType, packing: ColumnPacking) -> None:
        super().__init__(type_)
        self.packing, self.slots = packing, (packing.width,)
        self._bytes = BytesColumn(type_)
        lengths = np.frombuffer(packing.lengths or b"", "<u4").astype(np.int64)
        self._words = WordTable(packing.table, lengths)
        self.fixed_bytes, self.longest = 8, int(lengths.max(initial=0))
        offsets = pa.py_buffer(np.append(0, np.cumsum(lengths)))
        self._set = pa.Array.from_buffers(pa.large_binary(), lengths.size, [None, offsets, pa.py_buffer(packing.table)])

    @property
    def lengths(self) -> Slots:
        """The length of each word by its number."""
        return self._words.lengths

    def pack(self, array: pa.Array) -> tuple[Cells, Escapes]:
        (cells,) = self._bytes.split(array)
        nulls = null_mask(array)
        found = pc.index_in(as_large_binary(array), value_set=self._set).fill_null(-1)
        codes = found.to_numpy().astype(np.int64) + 1
        rows = np.flatnonzero((codes == 0) & ~_nulls(array))
        dtype = "<u1" if self.packing.width == 1 else "<u2"
        return Cells(nulls, codes.astype(dtype)), Escapes(rows, cells.values, cells.begins[rows], cells.lengths[rows])

    def read(self, rows: PackedRows, place: Place, validity: Validity) -> pa.Array:
        codes, count = rows.codes(place, self.packing.width)
        escapes = None
        if count:
            escapes = rows.escapes(np.flatnonzero(codes < 0), self.packing)
            codes[escapes.rows] = 0
        if codes.size and int(codes.max()) >= self._words.lengths.size:
            raise damaged(int(codes.argmax()), codes.size, rows.data.size)
        return self._words.array(self._bytes, codes, validity, rows.data, escapes)


class CellColumn(PackedColumn):
    """Byte strings in cells whose length takes 1 or 2 bytes, compressed or not."""

    slots = (VARIABLE,)

    def __init__(self, type_: pa.DataType, packing: ColumnPacking) -> None:
        super().__init__(type_)
        self.packing = packing
        self._bytes = BytesColumn(type_)
        self._symbols = SymbolTable(packing.table, packing.lengths or b"") if packing.kind == SYMBOLS else None
        self._limit = (1 << 8 * packing.width) - 1
        self.fixed_bytes = 8

    @property
    def symbol_sizes(self) -> Bytes | None:
        """The length of each symbol by its code; None if cells are not compressed."""
        return None if self._symbols is None else self._symbols.sizes

    def pack(self, array: pa.Array) -> tuple[Cells, Escapes]:
        (cells,) = self._bytes.split(array)
        values, begins, lengths = cells.values, cells.begins, cells.lengths
        long = lengths >= self._limit
        if self._symbols is not None:
            values, begins, lengths = self._symbols.compressed(cells)
            # Text without any symbol would take two bytes per byte.
            long = (lengths >= self._limit) | (lengths > cells.lengths + TEXT_GROWTH)
        rows = np.flatnonzero(long)
        if rows.size:
            lengths = np.where(long, 0, lengths)
        escapes = Escapes(rows, cells.values, cells.begins[rows], cells.lengths[rows])
        return Cells(cells.nulls, values, begins, lengths), escapes

    def read(self, rows: PackedRows, place: Place, validity: Validity) -> pa.Array:
        begins, packed, count = rows.bounds(place.cell)
        escapes = None
        if count:
            escapes = rows.escapes(np.flatnonzero(packed < 0), self.packing)
            packed = np.maximum(packed, 0)
        begins, packed = frozen(begins), frozen(packed)
        lengths = packed.copy()
        if self._symbols is not None:
            bad = decompressed_lengths(rows.data, begins, packed, self._symbols.sizes, lengths)
            if bad >= 0:
                raise damaged(bad, packed.size, rows.data.size)
        if escapes is not None:
            lengths[escapes.rows] = escapes.lengths
        offsets = bytes_offsets(self._bytes, lengths)
        out = np.empty(int(offsets[-1]) + SLACK, np.uint8)
        if self._symbols is None:
            copy_cells(rows.data, begins, packed, out, frozen(offsets[:-1]))
        else:
            symbols, sizes = self._symbols.symbols, self._symbols.sizes
            decompress_cells(rows.data, begins, packed, symbols, sizes, frozen(offsets), out)
        return bytes_array(self._bytes, offsets, out, validity, rows.data, escapes)


class _Constant(PackedColumn):
    """One value, which takes no field.

    The null bit is set in rows that have another value, or none.
    """

    slots = (0,)

    def __init__(self, type_: pa.DataType, packing: ColumnPacking) -> None:
        super().__init__(type_)
        self.packing = packing
        self.marks_nulls = packing.lengths is not None
        self.fixed_bytes = 8 + len(packing.table)

    def _others(self, rows: PackedRows, place: Place, validity: Validity) -> tuple[Ints, Escapes | None, Validity]:
        """Return the rows that do not have the constant, the escapes among them, and which rows are not NULL."""
        others = rows.marked(place)
        escapes = None
        if others.size:
            escapes = rows.escapes(others, self.packing, optional=self.marks_nulls)
            there = escapes.lengths >= 0
            if not there.all():
                escapes = Escapes(others[there], rows.data, escapes.begins[there], escapes.lengths[there])
        elif self.marks_nulls:
            return others, None, validity
        nulls = rows.starts < 0
        if not self.marks_nulls:
            nulls = np.ones(rows.starts.size, np.bool_)
        nulls[others] = True
        if escapes is not None:
            nulls[escapes.rows] = False
        packed = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
        return others, escapes, (packed, int(np.count_nonzero(nulls)))


class _ConstantNumber(_Constant):
    def __init__(self, type_: pa.DataType, packing: ColumnPacking) -> None:
        super().__init__(type_, packing)
        self._values = NumberValues(type_)
        self._value = int.from_bytes(packing.table, "little", signed=True)

    def pack(self, array: pa.Array) -> tuple[Cells, Escapes]:
        nulls = _nulls(array)
        if not self.marks_nulls:
            others = ~nulls
            rows = np.flatnonzero(others)
        else:
            values, wide = self._values.read(array)
            others = values != self._value
            if wide is not None:
                others |= wide
            rows = np.flatnonzero(others & ~nulls)
            others |= nulls
        return Cells(others, np.zeros(0, np.uint8)), self._values.escapes(array, rows)

    def read(self, rows: PackedRows, place: Place, validity: Validity) -> pa.Array:
        _, escapes, validity = self._others(rows, place, validity)
        values = np.full(rows.starts.size, self._value, np.int64)
        return self._values.array(values, validity, rows.data, escapes, self._values.holds(self._value, self._value))


class _ConstantBytes(_Constant):
    def __init__(self, type_: pa.DataType, packing: ColumnPacking) -> None:
        super().__init__(type_, packing)
        self._bytes = BytesColumn(type_)
        self._words = WordTable(packing.table, np.array([len(packing.table)]))

    def pack(self, array: pa.Array) -> tuple[Cells, Escapes]:
        (cells,) = self._bytes.split(array)
        nulls = _nulls(array)
        others = ~nulls
        if self.marks_nulls:
            same = pc.equal(as_large_binary(array), pa.scalar(self.packing.table, pa.large_binary()))
            others &= ~same.fill_null(False).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(others)
        if self.marks_nulls:
            others |= nulls
        escapes = Escapes(rows, cells.values, cells.begins[rows], cells.lengths[rows])
        return Cells(others, np.zeros(0, np.uint8)), escapes

    def read(self, rows: PackedRows, place: Place, validity: Validity) -> pa.Array:
        others, escapes, validity = self._others(rows, place, validity)
        codes = (rows.starts >= 0).astype(np.int64) if self.marks_nulls else np.zeros(rows.starts.size, np.int64)
        codes[others] = 0
        return self._words.array(self._bytes, codes, validity, rows.data, escapes)
