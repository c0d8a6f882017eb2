"""What the machine puts into relations and streams: rows that can be told apart, and what keys look like.

A key is a small number ``k``, written as the columns of one of several kinds. A row of R has a serial number of its
own, and its text follows from that number, so a result names the row that it claims to show and proves that it does.
The same holds for stream tuples and their positions.

If R is a history, a row begins at four times its number. Most rows are valid until the next one of their key begins.
Updates with ``at=`` make rows that begin and end at other times: these are `Dated`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa

__all__ = [
    "KINDS", "Contents", "Dated", "Shape", "begin_of", "changed", "changed_at", "draw_shape", "end_of", "least_page",
    "text_of", "valid_at",
]  # fmt: skip

Contents = dict[int, tuple[int, ...]]
"""Key → serial numbers of its rows."""


class Dated(int):
    """Serial number of a row of a history that has other times than its number says."""

    begin: int
    end: int | None

    @classmethod
    def of(cls, row: int, begin: int, end: int | None) -> Dated:
        dated = cls(row)
        dated.begin, dated.end = begin, end
        return dated

    def __repr__(self) -> str:
        return f"{int(self)} from {self.begin} to {self.end}"


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


def begin_of(row: int) -> int:
    return row.begin if isinstance(row, Dated) else 4 * row


def end_of(row: int) -> int | None:
    """Return when a row of a history ends; None if that is left to the next row of its key."""
    if isinstance(row, Dated):
        return row.end
    return 4 * row + 2 if row % 7 == 3 else None


def valid_at(rows: tuple[int, ...], at: int | None) -> tuple[int, ...]:
    """Return the row of a history that is valid at a time, if there is one."""
    latest = max((row for row in rows if at is not None and begin_of(row) <= at), key=begin_of, default=None)
    if latest is None or at is None:
        return ()
    end = end_of(latest)
    return (latest,) if end is None or at < end else ()


def changed_at(rows: tuple[int, ...], at: int, row: int | None) -> tuple[int, ...] | None:
    """Return the rows of a key after an update at a time, with a new row or none; None if it is to be refused."""
    if any(begin_of(one) > at for one in rows):
        return None
    kept = sorted((one for one in rows if begin_of(one) < at), key=begin_of)
    if kept:
        end = end_of(kept[-1])
        if end is None or end > at:
            kept[-1] = Dated.of(kept[-1], begin_of(kept[-1]), at)
    return tuple(kept) if row is None else (*kept, Dated.of(row, at, None))


@dataclass(frozen=True)
class Shape:
    """Columns of R and of the stream, of which rows and batches are made."""

    kind: str
    longest: int
    """Letters of the longest text of R; 0 for rows of one length."""
    longest_note: int
    """Letters of the longest note of a stream tuple; 0 for tuples of one length."""
    history: bool = False
    """Whether rows of R have times, and tuples too."""

    @property
    def key(self) -> Kind:
        return KINDS[self.kind]

    @property
    def schema(self) -> pa.Schema:
        """R's."""
        text = [pa.field("text", pa.string())] if self.longest else []
        times = [pa.field("since", pa.int64()), pa.field("until", pa.int64())] if self.history else []
        keys = map(pa.field, self.key.names, self.key.types)
        return pa.schema([*keys, pa.field("row", pa.int64()), *times, *text])

    @property
    def stream_schema(self) -> pa.Schema:
        note = [pa.field("note", pa.string())] if self.longest_note else []
        keys = map(pa.field, self.key.names, self.key.types)
        time = [pa.field("at", pa.int64())] if self.history else []
        return pa.schema([pa.field("position", pa.int64()), *keys, *time, *note])

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
        if self.history:
            columns += [pa.array([time(row) for _, row in pairs], pa.int64()) for time in (begin_of, end_of)]
        if self.longest:
            columns.append(pa.array([text_of(row, self.longest) for _, row in pairs], pa.string()))
        return pa.table(columns, schema=self.schema)

    def time_of(self, position: int, rows: tuple[int, ...]) -> int | None:
        """Return the time of a tuple: NULL, or near a border of one of the rows of its key."""
        if position % 29 == 7:
            return None
        return begin_of(rows[position * 31 % len(rows)] if rows else position) + position % 7 - 2

    def batch(self, keys: Sequence[int | None], position: int, times: Sequence[int | None] = ()) -> pa.RecordBatch:
        """Make stream tuples with these keys, numbered from ``position`` on."""
        numbers = range(position, position + len(keys))
        columns = [pa.array(numbers, pa.int64()), *self.keys(keys)]
        if self.history:
            columns.append(pa.array(times or [0] * len(keys), pa.int64()))
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
    kind, note = rng.choice(["integer", "integer", "small", "text", "two"]), rng.choice([0, 0, 40, 300, 5000])
    peek = Random()  # traces that were found before there were histories stay what they are
    peek.setstate(rng.getstate())
    return Shape(kind, longest, note, [peek.random() for _ in range(9)][-1] < 0.3)


def least_page(shape: Shape) -> int:
    """Return the smallest size of pages that all of its rows fit into."""
    size = 512
    while size < shape.longest + (160 if shape.history else 130):
        size *= 2
    return size
