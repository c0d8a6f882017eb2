"""Rows as bytes: any Arrow schema, one self-contained byte string per row.

A join needs a matching tuple of R on its own, without its page. So pages, caches and the stream table hold rows, and a
row has the same bytes in all of them. Encoding and decoding work column by column over many rows: fixed fields through
strided NumPy views, variable bytes through compiled kernels.

::

    fixed row      [null bits][fields packed]
    variable row   [u32 length of the row][null bits][fields packed][bytes of the variable cells, in order]

A null bit is set if the cell is NULL. Among the packed fields, a variable field is a u32: the end of its bytes,
counted from the row's start. Its bytes begin where those of the previous variable field end; the first begin at
``stride``. Numbers are little-endian; nothing is aligned. The type of a column determines its fields: see
`row_columns`, `row_nested` and `row_encoded`.

If columns are packed (see `packed`), a variable field is the length of its cell instead, and escaped values follow:

::

    packed row     [u32 length of the row][null bits][fields packed][bytes of the variable cells][escaped values]
    escaped value  [u16 number of the column][u32 length][bytes]
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.compiled import frozen
from semistream.core.errors import SemistreamError
from semistream.relation.rows.packed.packed_columns import GROWTH, PackedColumn, length_bytes, packed_column
from semistream.relation.rows.packed.packed_rows import PackedLayout, PackedRows
from semistream.relation.rows.packed.packed_tails import RowTails
from semistream.relation.rows.packed.packed_values import Escapes
from semistream.relation.rows.packed.packing import ColumnPacking
from semistream.relation.rows.row_cells import (
    VARIABLE,
    Cells,
    Column,
    FieldPlace,
    RowLimitError,
    Rows,
    batch_without_columns,
    head_field,
    holds_fixed_lists,
    validity_buffer,
    write_cells,
)
from semistream.relation.rows.row_columns import BooleanColumn, BytesColumn, FixedColumn, NullColumn
from semistream.relation.rows.row_encoded import DictionaryColumn, ExtensionColumn, RunEndColumn
from semistream.relation.rows.row_kernels import (
    copy_cells,
    gather_heads,
    lengths_at,
    scatter_heads,
    split_heads,
)
from semistream.relation.rows.row_nested import ListColumn, StructColumn, UnionColumn

__all__ = ["FieldPlace", "RowCodec", "Rows"]

_LENGTH_BYTES = 4
_MAX_ROW_BYTES = (1 << 32) - 1
_TESTS_OF_BYTES = (
    pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary,
    pa.types.is_string_view, pa.types.is_binary_view,
)  # fmt: skip


class RowCodec:
    """Turn record batches of one schema into rows and back.

    Parameters
    ----------
    schema
        Any Arrow schema. `decode` returns batches of exactly this schema. Dictionary and run-end encoded columns are
        stored as plain values and encoded again when decoded, so a row costs the bytes of its values.
    packings
        How columns are packed, by name. A packing that does not fit the type of its column is ignored. If any column is
        packed, rows are variable.

    Attributes
    ----------
    packings
        How columns are packed, by name, without those that were ignored.
    packed
        Where packed rows have their slots; None if no column is packed.
    variable
        Whether rows differ in length. A fixed row carries no length and is a little smaller and faster.
    stride
        The length of a fixed row. For a variable row, the length of the head before its variable bytes.

    Example
    -------
    >>> import pyarrow as pa
    >>> batch = pa.record_batch({"id": [7, 8], "name": ["seven", None]})
    >>> codec = RowCodec(batch.schema)
    >>> rows = codec.encode(batch)
    >>> rows.lengths.tolist()
    [22, 17]
    >>> codec.decode(rows.data, rows.starts[[1, 0, 0]]).to_pydict()
    {'id': [8, 7, 7], 'name': [None, 'seven', 'seven']}
    """

    def __init__(self, schema: pa.Schema, packings: Mapping[str, ColumnPacking] = MappingProxyType({})) -> None:
        self.schema = schema
        self._columns = [packed_column(column_for(field.type), packings.get(field.name)) for field in schema]
        self.packings = {
            field.name: column.packing
            for field, column in zip(schema, self._columns, strict=True)
            if isinstance(column, PackedColumn)
        }
        self._widths = [width for column in self._columns for width in column.slots]
        self.variable: bool = bool(self.packings) or VARIABLE in self._widths
        self._bitmap_at = _LENGTH_BYTES if self.variable else 0
        at = self._bitmap_at + (len(self._widths) + 7) // 8
        self._places: list[int] = []
        self._length_widths = [length_bytes(column) for column in self._columns for _ in column.slots]
        for width, length in zip(self._widths, self._length_widths, strict=True):
            self._places.append(at)
            at += length if width == VARIABLE else width
        self._field_places = np.array(self._places, np.int64)
        self._field_widths = np.array(self._widths, np.int64)
        # At least 1: rows of zero bytes would all have the same start.
        self.stride: int = max(at, 1)
        columns = [column for column in self._columns for _ in column.slots]
        self._packed_slots = [slot for slot, column in enumerate(columns) if isinstance(column, PackedColumn)]
        self.packed: PackedLayout | None = None
        if self.packings:
            self.packed = PackedLayout(self._widths, self._length_widths, self._places, self._null_bits, self.stride)

    @cached_property
    def blank_bytes(self) -> int:
        """Arrow bytes that a row may need in addition to its encoded length: a NULL fixed-size list still has items."""
        return sum(pa.nulls(1, field.type).nbytes for field in self.schema if holds_fixed_lists(field.type))

    def lengths(self, batch: pa.RecordBatch, hidden: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return the encoded length of each row of ``batch`` in bytes, without encoding it.

        >>> batch = pa.record_batch({"id": [7, 8], "name": ["seven", None]})
        >>> RowCodec(batch.schema).lengths(batch).tolist()
        [22, 17]
        """
        lengths = np.full(batch.num_rows, self.stride, dtype=np.int64)
        if self.variable:
            batch = self._fitted(batch)
            for column, array in zip(self._columns, batch.columns, strict=True):
                wanted = VARIABLE in column.slots or isinstance(column, PackedColumn)
                if wanted and (spread := column.spread(array, hidden)) is not None:
                    lengths += spread
        return lengths

    def sizes_at(self, data: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.int64] | int:
        """Return the most bytes that each row at ``starts`` takes when it is decoded; one number if rows are fixed."""
        return self.decoded_bytes(lengths_at(frozen(data), frozen(starts)) if self.variable else self.stride)

    def decoded_bytes(self, lengths: NDArray[np.int64] | int) -> NDArray[np.int64] | int:
        """Return the most bytes that rows of these encoded lengths take when they are decoded."""
        if self.packed is None:
            return lengths + self.blank_bytes
        return (lengths - self.stride) * GROWTH + (self._most_bytes + self.blank_bytes)

    @cached_property
    def _most_bytes(self) -> int:
        """The most bytes of a packed row, decoded, if it has no variable cells and no escapes."""
        packed = [column for column in self._columns if isinstance(column, PackedColumn)]
        return self.stride + sum(column.fixed_bytes + column.longest for column in packed)

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if (batch.schema.names, batch.schema.types) != (self.schema.names, self.schema.types):
            batch = batch.cast(self.schema)
        return batch

    def encode(self, batch: pa.RecordBatch, hidden: NDArray[np.bool_] | None = None) -> Rows:
        """Encode all rows of ``batch``, in order, without gaps.

        Where ``hidden`` is true, the values of the batch may be invalid. The rows encoded for them have no meaning.
        """
        batch = self._fitted(batch)
        count = batch.num_rows
        cells: list[Cells] = []
        escaped: list[tuple[ColumnPacking, int, Escapes]] = []
        for column, array in zip(self._columns, batch.columns, strict=True):
            if isinstance(column, PackedColumn):
                cell, escapes = column.pack(array)
                escaped.append((column.packing, self._places[len(cells)], escapes))
                cells.append(cell)
            else:
                cells.extend(column.split(array, hidden))
        if hidden is not None:
            cells = [cell.hidden(hidden) for cell in cells]
        heads = np.zeros((count, self.stride), dtype=np.uint8)
        self._write_null_bits(heads, cells)
        lengths = np.full(count, self.stride, dtype=np.int64)
        targets: list[NDArray[np.int64]] = []
        for cell, width, place, field in zip(cells, self._widths, self._places, self._length_widths, strict=True):
            if width == VARIABLE:
                targets.append(lengths.copy())
                lengths += cell.lengths
                head_field(heads, place, np.dtype(f"<u{field}"))[:] = (
                    cell.lengths if self.packed is not None else lengths
                )
            elif width > 0:
                write_cells(heads, place, width, cell)
        if not self.variable:
            return Rows(heads.reshape(-1), self._regular_starts(count), lengths)
        tails = RowTails()
        for packing, place, escapes in escaped:
            heads[escapes.rows, place : place + packing.width] = 0xFF
            tails.add(packing.number, escapes, lengths)
        if count and int(lengths.max()) > _MAX_ROW_BYTES:
            row = int(lengths.argmax())
            raise RowLimitError(
                f"row {row} of the batch takes {int(lengths[row])} bytes; a row holds at most "
                f"{_MAX_ROW_BYTES}. Store values of that size outside the relation, and references to them in the row"
            )
        head_field(heads, 0, np.dtype("<u4"))[:] = lengths
        ends = np.cumsum(lengths)
        starts = ends - lengths
        data = np.empty(int(ends[-1]) if count else 0, dtype=np.uint8)
        scatter_heads(frozen(heads), frozen(starts), data)
        variable = [cell for cell, width in zip(cells, self._widths, strict=True) if width == VARIABLE]
        for cell, target in zip(variable, targets, strict=True):
            target += starts
            copy_cells(frozen(cell.values), frozen(cell.begins), frozen(cell.lengths), data, frozen(target))
        tails.write(data, starts)
        return Rows(data, starts, lengths)

    def decode(self, data: NDArray[np.uint8], starts: NDArray[np.int64]) -> pa.RecordBatch:
        """Decode the rows that start at ``starts`` in ``data``: anywhere, in any order, repeats allowed."""
        count = starts.size
        data = frozen(data.reshape(-1))
        starts = frozen(starts.astype(np.int64, copy=False))
        heads = np.empty((count, self.stride), dtype=np.uint8)
        bad = gather_heads(data, starts, heads)
        if bad >= 0:
            raise SemistreamError(
                f"row {bad} of {count} would start at byte {int(starts[bad])} and take at least {self.stride}"
                f" bytes, but there are {data.size}; pass the starts that were returned when these bytes were encoded"
            )
        rows = None
        if self.packed is not None:
            data, starts = self.packed.together(data, starts)
            rows = self.packed.rows(data, starts, self._packed_slots)
        cells = self._read_cells(data, starts, heads, rows)
        arrays = []
        taken = 0
        for column in self._columns:
            mine = cells[taken : taken + len(column.slots)]
            if isinstance(column, PackedColumn) and rows is not None:
                arrays.append(column.read(rows, rows.place(taken), validity_buffer(mine[0].nulls)))
            else:
                arrays.append(column.join(mine, count))
            taken += len(column.slots)
        if not arrays:
            return batch_without_columns(count, self.schema)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def nulls(self, rows: int) -> pa.RecordBatch:
        """Return rows in which everything is NULL."""
        row = np.zeros((1, self.stride), dtype=np.uint8)
        marks = [column.marks_nulls for column in self._columns for _ in column.slots]
        for (byte, bit), mark in zip(self._null_bits, marks, strict=True):
            row[0, byte] |= bit * mark
        ends = [] if self.packed else [self._places[at] for at, width in enumerate(self._widths) if width == VARIABLE]
        for place in [0, *ends] if self.variable else ends:
            head_field(row, place, np.dtype("<u4"))[:] = self.stride
        return self.decode(row, np.zeros(rows, dtype=np.int64))

    @cached_property
    def _null_bits(self) -> list[tuple[int, int]]:
        """For each slot, the byte of the head and the bit in it that mark the cell as NULL."""
        return [(self._bitmap_at + slot // 8, 1 << slot % 8) for slot in range(len(self._widths))]

    def place_of(self, name: str) -> FieldPlace:
        """Return where rows store a column that has one field of fixed width."""
        column = self.schema.get_field_index(name)
        slot = sum(len(before.slots) for before in self._columns[:column])
        return FieldPlace(self._places[slot], *self._null_bits[slot])

    def _regular_starts(self, count: int) -> NDArray[np.int64]:
        return np.arange(count, dtype=np.int64) * self.stride

    def _write_null_bits(self, heads: NDArray[np.uint8], cells: list[Cells]) -> None:
        for cell, (byte, bit) in zip(cells, self._null_bits, strict=True):
            if cell.nulls is not None:
                heads[:, byte] |= cell.nulls.view(np.uint8) * np.uint8(bit)

    def _read_cells(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], heads: NDArray[np.uint8], rows: PackedRows | None
    ) -> list[Cells]:
        cells = []
        count, at = starts.size, 0
        fields = np.empty(sum((count * width + 7) & ~7 for width in self._widths if width > 0), dtype=np.uint8)
        split_heads(heads, self._field_places, self._field_widths, fields)
        bits_at = -1
        bits = np.zeros(0, dtype=np.uint8)
        any_null = False
        before: NDArray[Any] | int = self.stride
        slots = zip(self._widths, self._places, self._null_bits, strict=True)
        for slot, (width, place, (byte, bit)) in enumerate(slots):
            if byte != bits_at:
                bits_at, bits = byte, heads[:, byte].copy()
                any_null = bool(bits.any())
            nulls = None
            if any_null:
                nulls = (bits & np.uint8(bit)) != 0
                nulls = nulls if nulls.any() else None
            if width == VARIABLE and rows is not None:
                begins, lengths, _ = rows.bounds(rows.place(slot).cell)
                cells.append(Cells(nulls, data, begins, lengths))
            elif width == VARIABLE:
                ends = head_field(heads, place, np.dtype("<u4")).astype(np.int64)
                cells.append(Cells(nulls, data, begins=starts + before, lengths=ends - before))
                before = ends
            else:
                cells.append(Cells(nulls, fields[at : at + count * width]))
                at += (count * width + 7) & ~7  # Arrow's buffers begin at a multiple of 8
        return cells


def column_for(type_: pa.DataType) -> Column:
    """Return the column for an Arrow type, including the columns and codecs that it consists of."""
    is_ = pa.types
    if isinstance(type_, pa.BaseExtensionType):
        return ExtensionColumn(type_, column_for(type_.storage_type))
    if is_.is_null(type_):
        return NullColumn(type_)
    if is_.is_boolean(type_):
        return BooleanColumn(type_)
    if any(test(type_) for test in _TESTS_OF_BYTES):
        return BytesColumn(type_)
    if is_.is_dictionary(type_):
        return DictionaryColumn(type_, column_for(type_.value_type), RowCodec)
    if is_.is_run_end_encoded(type_):
        return RunEndColumn(type_, column_for(type_.value_type), RowCodec)
    if not is_.is_nested(type_):
        return FixedColumn(type_)
    if is_.is_struct(type_) or is_.is_union(type_):
        children = [column_for(type_.field(child).type) for child in range(type_.num_fields)]
        return StructColumn(type_, children) if is_.is_struct(type_) else UnionColumn(type_, children, RowCodec)
    return ListColumn(type_, RowCodec)
