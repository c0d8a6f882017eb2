"""Decodes columns directly from rows: each column is gathered in the requested order into Arrow's own buffers.

`RowCodec.decode` decodes all columns, and every row must exist. A join needs some of the columns, and some tuples have
no row: a start of -1 yields NULLs. Numbers, strings and other simple types are copied cell by cell from the rows.
Nested types are decoded by the codec, and Arrow then places them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import copy_bytes, frozen, kernel
from semistream.core.errors import SemistreamError
from semistream.relation.rows.any_type import gather
from semistream.relation.rows.fitting import null_array
from semistream.relation.rows.packed.packed_columns import PackedColumn
from semistream.relation.rows.packed.packed_rows import PackedRows
from semistream.relation.rows.row_cells import offsets_buffer, offsets_of
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.rows.row_columns import BooleanColumn, BytesColumn, FixedColumn

__all__ = ["RowGather"]


_FEW = 3
"""Columns: up to this many are gathered directly from the rows. For more, the rows are first copied next to each other.
"""


@kernel
def _null_bits(data: Bytes, starts: Ints, place: int, width: int, stride: int, bits: Bytes) -> int:
    """Combine the null bits of all rows with OR into ``bits``; return the first row outside the data, or -1."""
    last = data.size - stride
    for i in range(starts.size):
        start = starts[i]
        if start >= 0:
            if start > last:
                return i
            for byte in range(width):
                bits[byte] |= data[start + place + byte]
    return -1


@kernel
def _validity(data: Bytes, starts: Ints, place: int, bit: int, packed: Bytes) -> int:
    """Set the bit in ``packed`` of each row that exists and whose null bit is not set; return the number of NULLs."""
    nulls = 0
    for i in range(starts.size):
        if starts[i] < 0 or (place >= 0 and (data[starts[i] + place] & bit) != 0):
            nulls += 1
        else:
            packed[i >> 3] |= np.uint8(1 << (i & 7))
    return nulls


@kernel
def _gather_fixed(data: Bytes, starts: Ints, place: int, width: int, out: Bytes) -> None:
    # A copy of constant length compiles to a single instruction.
    if width == 8:
        for i in range(starts.size):
            if starts[i] >= 0:
                copy_bytes(out, i * 8, data, starts[i] + place, 8)
    elif width == 4:
        for i in range(starts.size):
            if starts[i] >= 0:
                copy_bytes(out, i * 4, data, starts[i] + place, 4)
    elif width == 16:
        for i in range(starts.size):
            if starts[i] >= 0:
                copy_bytes(out, i * 16, data, starts[i] + place, 16)
    elif width == 2:
        for i in range(starts.size):
            if starts[i] >= 0:
                copy_bytes(out, i * 2, data, starts[i] + place, 2)
    elif width == 1:
        for i in range(starts.size):
            if starts[i] >= 0:
                out[i] = data[starts[i] + place]
    else:
        for i in range(starts.size):
            if starts[i] >= 0:
                copy_bytes(out, i * width, data, starts[i] + place, width)


@kernel
def _bounds(data: Bytes, starts: Ints, before: int, place: int, stride: int, begins: Ints, lengths: Ints) -> int:
    """Write where each variable cell begins and its length.

    ``before`` is the field that holds the end of the previous variable cell, or -1 for the first.
    """
    for i in range(starts.size):
        start = starts[i]
        if start < 0:
            begins[i], lengths[i] = 0, 0
            continue
        begin = np.int64(stride)
        if before >= 0:
            begin = np.int64(0)
            for byte in range(4):
                begin |= np.int64(data[start + before + byte]) << (8 * byte)
        end = np.int64(0)
        for byte in range(4):
            end |= np.int64(data[start + place + byte]) << (8 * byte)
        if begin > end or start + end > data.size:
            return i
        begins[i], lengths[i] = start + begin, end - begin
    return -1


@kernel
def _gather_bytes(data: Bytes, begins: Ints, offsets: Ints, out: Bytes) -> None:
    for i in range(begins.size):
        length = offsets[i + 1] - offsets[i]
        if length > 0:
            copy_bytes(out, offsets[i], data, begins[i], length)


@kernel
def _gather_rows(data: Bytes, starts: Ints, stride: int, out: Bytes, places: Ints) -> None:
    for i in range(starts.size):
        if starts[i] >= 0:
            copy_bytes(out, i * stride, data, starts[i], stride)
            places[i] = i * stride
        else:
            places[i] = -1


class RowGather:
    """Decodes some columns of rows.

    Parameters
    ----------
    codec
        How the rows are encoded.
    names
        The columns to decode.

    Example
    -------
    >>> batch = pa.record_batch({"id": [7, 8], "name": ["seven", None]})
    >>> codec = RowCodec(batch.schema)
    >>> rows = codec.encode(batch)
    >>> starts = np.array([rows.starts[1], -1, rows.starts[0]])
    >>> [column.to_pylist() for column in RowGather(codec, ["name", "id"])(rows.data, starts)]
    [[None, None, 'seven'], [8, None, 7]]
    """

    def __init__(self, codec: RowCodec, names: Sequence[str]) -> None:
        self._codec = codec
        self.names = tuple(names)
        self._wanted = [codec.schema.get_field_index(name) for name in self.names]
        if -1 in self._wanted:
            unknown = self.names[self._wanted.index(-1)]
            raise SemistreamError(f"rows have no column {unknown!r}, or several; they have {codec.schema.names}")
        slot, self._slots = 0, []
        for column in codec._columns:
            self._slots.append(slot)
            slot += len(column.slots)
        self._bitmap_bytes = (slot + 7) // 8
        simple = [index for index in self._wanted if self._is_simple(index)]
        self._others = [index for index in self._wanted if not self._is_simple(index)]
        self._packed_slots = [self._slots[at] for at in simple if isinstance(codec._columns[at], PackedColumn)]
        self._bring_together = len(simple) > _FEW and not codec.variable
        if codec.packed is not None:  # packed cells are read several times
            self._bring_together = len(simple) > 1 or any(codec._widths[self._slots[index]] < 0 for index in simple)

    def _is_simple(self, index: int) -> bool:
        column = self._codec._columns[index]
        if isinstance(column, PackedColumn):
            return True
        return type(column) in (FixedColumn, BooleanColumn) or (type(column) is BytesColumn and not column._view)

    def __call__(self, data: Bytes, starts: Ints) -> list[pa.Array]:
        """Return the columns of the rows that start at ``starts``, NULL where that is -1."""
        if not self._wanted:
            return []
        codec = self._codec
        data, starts = frozen(data.reshape(-1)), frozen(starts)
        bits = np.zeros(max(1, self._bitmap_bytes), np.uint8)
        bad = _null_bits(data, starts, codec._bitmap_at, self._bitmap_bytes, codec.stride, bits)
        if bad >= 0:
            raise SemistreamError(
                f"row {bad} of {starts.size} would start at byte {int(starts[bad])} and take at least {codec.stride}"
                f" bytes, but there are {data.size}; pass the starts that belong to these bytes"
            )
        missing = bool((starts < 0).any())
        others = self._through_codec(data, starts, missing)
        packed = None
        if codec.packed is not None:
            if self._bring_together:
                data, starts = codec.packed.together(data, starts)
            packed = codec.packed.rows(data, starts, self._packed_slots)
        elif self._bring_together:
            places, rows = np.empty(starts.size, np.int64), np.empty(starts.size * codec.stride, np.uint8)
            _gather_rows(data, starts, codec.stride, rows, places)
            data, starts = frozen(rows), frozen(places)
        return [
            others[index] if index in others else self._column(index, data, starts, bits, missing, packed)
            for index in self._wanted
        ]

    def _column(
        self, index: int, data: Bytes, starts: Ints, bits: Bytes, missing: bool, packed: PackedRows | None
    ) -> pa.Array:
        codec, count = self._codec, starts.size
        column, slot = codec._columns[index], self._slots[index]
        place, bit = codec._null_bits[slot]
        validity, nulls = None, 0
        has_nulls = bool(bits[place - codec._bitmap_at] & bit)
        if missing or has_nulls:
            there = np.zeros((count + 7) // 8, np.uint8)
            nulls = int(_validity(data, starts, place if has_nulls else -1, bit, there))
            validity = pa.py_buffer(there)
        if isinstance(column, PackedColumn) and packed is not None:
            return column.read(packed, packed.place(slot), (validity, nulls))
        if isinstance(column, BytesColumn):
            return self._bytes_column(column, slot, data, starts, validity, nulls, packed)
        width = codec._widths[slot]
        # Bytes under a NULL are never shown, but they must not expose old memory.
        values = np.zeros(count * width, np.uint8) if missing else np.empty(count * width, np.uint8)
        _gather_fixed(data, starts, codec._places[slot], width, values)
        if isinstance(column, BooleanColumn):
            values = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(column.type, count, [validity, pa.py_buffer(values)], nulls)

    def _bytes_column(
        self, column: BytesColumn, slot: int, data: Bytes, starts: Ints, validity: pa.Buffer | None, nulls: int,
        packed: PackedRows | None,
    ) -> pa.Array:  # fmt: skip
        codec, count = self._codec, starts.size
        if packed is not None:
            begins, lengths, _ = packed.bounds(packed.place(slot).cell)
        else:
            earlier = [at for at in range(slot) if codec._widths[at] < 0]
            before = codec._places[earlier[-1]] if earlier else -1
            begins, lengths = np.empty(count, np.int64), np.empty(count, np.int64)
            bad = _bounds(data, starts, before, codec._places[slot], codec.stride, begins, lengths)
            if bad >= 0:
                raise SemistreamError(
                    f"row {bad} of {count} points outside its {data.size} bytes; these bytes were not written with "
                    "this schema, or are damaged: build the relation again"
                )
        offsets = offsets_of(lengths, column._large, "bytes", str(column._large_type))
        out = np.empty(int(offsets[-1]), np.uint8)
        _gather_bytes(data, frozen(begins), frozen(offsets), out)
        buffers = [validity, offsets_buffer(offsets, column._large), pa.py_buffer(out)]
        return pa.Array.from_buffers(column.type, count, buffers, nulls)

    def _through_codec(self, data: Bytes, starts: Ints, missing: bool) -> dict[int, pa.Array]:
        """Return the nested columns: existing rows are decoded, and placed with NULLs between them."""
        if not self._others:
            return {}
        there = np.flatnonzero(starts >= 0) if missing else np.arange(starts.size)
        decoded = self._codec.decode(data, starts[there] if missing else starts)
        if not missing:
            return {index: decoded.column(index) for index in self._others}
        places = np.zeros(starts.size, np.int64)
        places[there] = np.arange(there.size)
        absent = starts < 0
        return {
            index: gather(decoded.column(index), places, absent, RowCodec)
            if there.size
            else null_array(starts.size, decoded.schema.field(index).type)
            for index in self._others
        }
