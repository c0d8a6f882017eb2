"""What the machine puts into relations and streams: rows that can be told apart, and what keys look like.

A key is a small number ``k``, written as the columns of one of several kinds. A row of R has a serial number of its
own, and its text follows from that number, so a result names the row that it claims to show and proves that it does.
The same holds for stream tuples and their positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa

__all__ = ["KINDS", "Contents", "Shape", "changed", "draw_shape", "least_page", "text_of"]

Contents = dict[int, tuple[int, ...]]
"""Key → serial numbers of its rows."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz" * 400


@dataclass(frozen=True)
class Kind:
    """How keys are written."""

    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    of: Callable[[int], tuple[Any, ...]]


KINDS = {
    "integer": Kind(("id",), (pa.int64(),), lambda k: (3 * k - 40,)),
    "small": Kind(("id",), (pa.int16(),), lambda k: (300 - k,)),
    "text": Kind(("id",), (pa.string(),), lambda k: (f"key {k}" * (1 + k % 3),)),
    "two": Kind(("region", "code"), (pa.int32(), pa.string()), lambda k: (k % 5, f"{k // 5}")),
}


def text_of(number: int, most: int) -> str | None:
    """Return the text of a row: nothing, empty, short, or up to ``most`` letters."""
    mixed = (number * 0x9E3779B97F4A7C15 >> 17) & 0xFFFFFF
    sort, length = mixed & 15, mixed >> 4
    if sort == 0:
        return None
    if sort <= 11:
        length %= 25
    elif sort <= 14:
        length %= 1 + most // 6
    else:
        length %= 1 + most
    begin = number % 26
    return _LETTERS[begin : begin + length]


@dataclass(frozen=True)
class Shape:
    """Columns of R and of the stream, of which rows and batches are made."""

    kind: str
    longest: int
    """Letters of the longest text of R; 0 for rows of one length."""
    longest_note: int
    """Letters of the longest note of a stream tuple; 0 for tuples of one length."""

    @property
    def key(self) -> Kind:
        return KINDS[self.kind]

    @property
    def schema(self) -> pa.Schema:
        """R's."""
        text = [pa.field("text", pa.string())] if self.longest else []
        return pa.schema([*map(pa.field, self.key.names, self.key.types), pa.field("row", pa.int64()), *text])

    @property
    def stream_schema(self) -> pa.Schema:
        note = [pa.field("note", pa.string())] if self.longest_note else []
        keys = map(pa.field, self.key.names, self.key.types)
        return pa.schema([pa.field("position", pa.int64()), *keys, *note])

    def keys(self, keys: Iterable[int | None]) -> list[pa.Array]:
        """Write keys as columns; None becomes a key with a NULL in it."""
        width = len(self.key.names)
        values: list[list[Any]] = [[] for _ in range(width)]
        for k in keys:
            parts = self.key.of(k) if k is not None else (*self.key.of(0)[: width - 1], None)
            for column, part in zip(values, parts, strict=True):
                column.append(part)
        return [pa.array(column, kind) for column, kind in zip(values, self.key.types, strict=True)]

    def key_table(self, keys: Sequence[int]) -> pa.Table:
        return pa.table(self.keys(keys), names=list(self.key.names))

    def rows(self, pairs: Sequence[tuple[int | None, int]]) -> pa.Table:
        """Make rows of R of pairs of a key and a serial number."""
        columns = [*self.keys(k for k, _ in pairs), pa.array([row for _, row in pairs], pa.int64())]
        if self.longest:
            columns.append(pa.array([text_of(row, self.longest) for _, row in pairs], pa.string()))
        return pa.table(columns, schema=self.schema)

    def batch(self, keys: Sequence[int | None], position: int) -> pa.RecordBatch:
        """Make stream tuples with these keys, numbered from ``position`` on."""
        numbers = range(position, position + len(keys))
        columns = [pa.array(numbers, pa.int64()), *self.keys(keys)]
        if self.longest_note:
            columns.append(pa.array([text_of(number, self.longest_note) for number in numbers], pa.string()))
        return pa.record_batch(columns, schema=self.stream_schema)

    def listed(self, contents: Contents) -> pa.Table:
        """Return all rows of R."""
        return self.rows([(k, row) for k, rows in contents.items() for row in rows])


def changed(contents: Contents, changes: Contents) -> Contents:
    """Return what an update leaves; a key without rows in it is deleted."""
    return {k: rows for k, rows in (contents | changes).items() if rows}


def draw_shape(rng: Random) -> Shape:
    longest = rng.choice([0, 30, 380, 380, 800, 3000])
    return Shape(rng.choice(["integer", "integer", "small", "text", "two"]), longest, rng.choice([0, 0, 40, 300, 5000]))


def least_page(shape: Shape) -> int:
    """Return the smallest size of pages that all of its rows fit into."""
    size = 512
    while size < shape.longest + 130:
        size *= 2
    return size
