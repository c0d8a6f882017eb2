"""Builds whose rows are packed, however few there are: every column that can be packed is, also where it does not pay.

So values are escaped in most rows, and every kind of packing occurs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from unittest import mock

import numpy as np
import pyarrow as pa

from semistream.relation.pages import encoding_choice
from semistream.relation.rows.fitting import as_type
from semistream.relation.rows.packed.packing import (
    BYTES,
    CONSTANT,
    DICTIONARY,
    OFFSET,
    SYMBOLS,
    ColumnPacking,
    Packing,
    family,
)
from semistream.relation.rows.packed.symbol_table import SymbolTable
from semistream.relation.rows.row_columns import BytesColumn

__all__ = ["builds_as_released", "packed_builds"]


@contextlib.contextmanager
def packed_builds(salt: int = 0) -> Iterator[None]:
    """Pack all rows that are built meanwhile; ``salt`` decides which column is packed in which way."""

    class Choice(_EveryColumn):
        pass

    Choice.salt = salt
    with (
        mock.patch.object(encoding_choice, "PACKED_FROM", 0),
        mock.patch.object(encoding_choice, "PackingChoice", Choice),
    ):
        yield


@contextlib.contextmanager
def builds_as_released() -> Iterator[None]:
    """Pack rows that are built meanwhile where it pays, from 1 MiB on, as users see it."""
    with mock.patch.object(encoding_choice, "PACKED_FROM", 1 << 20):
        yield


class _EveryColumn:
    """Takes the place of `PackingChoice`."""

    salt = 0

    def __init__(self, schema: pa.Schema, never: Collection[str] = ()) -> None:
        self._schema, self._never = schema, set(never)
        self._first: pa.RecordBatch | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        if self._first is None and batch.num_rows:
            self._first = batch.slice(0, 200)

    def choose(self, numbers: Sequence[int], more: bool = False, growth: int | None = None) -> Packing | None:
        made = [
            self._packing(field, number)
            for field, number in zip(self._schema, numbers, strict=True)
            if field.name not in self._never and family(field.type)
        ]
        return Packing(tuple(made)) if made else None

    def _packing(self, field: pa.Field, number: int) -> ColumnPacking:
        kind, way = family(field.type), (number + self.salt) % 4
        if kind != "bytes":
            if way == 3:
                return ColumnPacking(number, CONSTANT, kind, 0, table=(7).to_bytes(8, "little"), lengths=b"")
            return ColumnPacking(number, OFFSET, kind, 1 + way, base=way, divisor=1 + way)
        values = pa.nulls(0, pa.large_binary())
        if self._first is not None:
            values = as_type(self._first.column(field.name), pa.large_binary()).drop_null()
        if way == 0 or len(values) == 0:
            return ColumnPacking(number, BYTES, kind, 1)
        if way == 1:
            words = values.unique().to_pylist()[:20]
            lengths = np.array([len(word) for word in words], "<u4").tobytes()
            return ColumnPacking(number, DICTIONARY, kind, 1, table=b"".join(words), lengths=lengths)
        if way == 2:
            (cells,) = BytesColumn(values.type).split(values)
            table = SymbolTable.trained(cells)
            return ColumnPacking(number, SYMBOLS, kind, 1, table=table.table, lengths=table.lengths)
        word = values[0].as_py()
        return ColumnPacking(number, CONSTANT, kind, 0, table=word, lengths=b"")
