"""The decoded size of each packed row.

`RowCodec.decoded_bytes` returns an upper bound instead, and is faster.
"""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.core.compiled import frozen, kernel
from semistream.core.errors import SemistreamError
from semistream.relation.rows.packed.packed_columns import CellColumn, PackedColumn, WordColumn
from semistream.relation.rows.packed.packed_kernels import little_endian
from semistream.relation.rows.row_codec import RowCodec

__all__ = ["DecodedSizes"]


@kernel
def _decoded_sizes(
    data: Bytes,
    starts: Ints,
    stride: int,
    base: int,
    cells: Ints,
    symbols: Bytes,
    fields: Ints,
    words: Slots,
    out: Ints,
) -> None:
    """Write the decoded bytes of each row; 0 for rows that do not exist, or whose head is not within the data.

    ``cells``: of each variable cell, its place, its width, and where its symbols begin in ``symbols`` (-1: none).
    ``fields``: of each dictionary, its place, its width, where its words begin in ``words``, and how many they are.
    ``symbols`` and ``words`` hold the lengths of symbols and words.
    """
    for i in range(starts.size):
        start = starts[i]
        out[i] = 0
        if start < 0 or start > data.size - stride:
            continue
        end = min(start + little_endian(data, start, 4), data.size)
        at, total = start + stride, np.int64(base)
        for cell in range(cells.shape[0]):
            width = cells[cell, 1]
            length = little_endian(data, start + cells[cell, 0], width)
            if width < 4 and length == (np.int64(1) << (8 * width)) - 1:
                continue  # escaped
            until = min(at + length, end)
            if cells[cell, 2] < 0:
                total += until - at
                at = until
            while at < until:
                code = data[at]
                if code == 255:
                    total += 1
                    at += 1
                else:
                    total += symbols[cells[cell, 2] + code]
                at += 1
        total += max(end - at, 0)
        for field in range(fields.shape[0]):
            code = little_endian(data, start + fields[field, 0], fields[field, 1])
            if code < fields[field, 3]:
                total += words[fields[field, 2] + code]
        out[i] = total


class DecodedSizes:
    """Computes the decoded sizes of rows of one codec.

    >>> import pyarrow as pa
    >>> from semistream.relation.rows.packed.packing import BYTES, ColumnPacking
    >>> batch = pa.record_batch({"name": ["fig", "pear"]})
    >>> codec = RowCodec(batch.schema, {"name": ColumnPacking(0, BYTES, "bytes", 1)})
    >>> rows = codec.encode(batch)
    >>> DecodedSizes(codec)(rows.data, np.array([rows.starts[0], -1, rows.starts[1]])).tolist()
    [17, 0, 18]
    """

    def __init__(self, codec: RowCodec) -> None:
        if codec.packed is None:
            raise SemistreamError("rows are not packed; their bytes are those of RowCodec.decoded_bytes")
        cells, fields, symbols, words = [], [], [np.zeros(0, np.uint8)], [np.zeros(0, np.int32)]
        self._base, slot = codec.stride + codec.blank_bytes, 0
        for column in codec._columns:
            packed = column.packed if isinstance(column, PackedColumn) else None
            if packed is not None:
                self._base += packed.fixed_bytes
            for at in range(slot, slot + len(column.slots)):
                place = codec.packed.places[at]
                if isinstance(packed, WordColumn):
                    fields.append([place.at, packed.packing.width, sum(map(len, words)), packed.lengths.size])
                    words.append(packed.lengths)
                elif place.cell >= 0:
                    width = 4 if packed is None else packed.packing.width
                    sizes = packed.symbol_sizes if isinstance(packed, CellColumn) else None
                    cells.append([place.at, width, -1 if sizes is None else sum(map(len, symbols))])
                    symbols += [] if sizes is None else [sizes]
            slot += len(column.slots)
        self._stride = codec.stride
        self._cells = frozen(np.array(cells, np.int64).reshape(-1, 3))
        self._fields = frozen(np.array(fields, np.int64).reshape(-1, 4))
        self._symbols, self._words = frozen(np.concatenate(symbols)), frozen(np.concatenate(words))

    def __call__(self, data: Bytes, starts: Ints) -> Ints:
        """Return the decoded bytes of the rows that start at ``starts``; 0 where that is -1."""
        out = np.empty(starts.size, np.int64)
        _decoded_sizes(
            frozen(data.reshape(-1)), frozen(starts), self._stride, self._base, self._cells, self._symbols,
            self._fields, self._words, out,
        )  # fmt: skip
        return out
