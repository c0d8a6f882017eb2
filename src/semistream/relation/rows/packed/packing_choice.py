"""Chooses how columns are packed, from the rows of a build.

The cost of each packing is estimated from a sample of rows. Dictionaries also need distinct values. These are collected
from the first rows and from every eighth row after them, while there are few. Other values are escaped: they take more
bytes, but are not lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa

from semistream.relation.rows.packed.column_choices import Choice, choices
from semistream.relation.rows.packed.distinct_values import DistinctValues
from semistream.relation.rows.packed.packing import ColumnPacking, Packing, family
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.rows.selection import take_rows

__all__ = ["PackingChoice"]

_SAMPLE_ROWS = 8192
_SAMPLE_BYTES = 4 << 20
_FEWEST_ROWS = 64  # a sample of up to this many rows may exceed _SAMPLE_BYTES
_FIRST_ROWS, _EACH = 1 << 17, 8
"""For dictionaries, the strings of all the first rows are examined, and then those of every eighth row."""
_TABLE_BYTES = 256 << 10
"""Maximum bytes of dictionaries and symbols. Every task that reads the relation holds them in memory."""
_PAGE_BYTES = 13, 9
"""Bytes of a page per row, in addition to the row: for variable rows, and for fixed rows (`pages.page_layout`)."""
_WORTH = 0.95
"""Rows are packed only if they take less than this share of their plain bytes, because decoding them costs time."""


class PackingChoice:
    """Statistics of the columns of a build.

    Parameters
    ----------
    schema
        R's columns.
    never
        Names of columns that are not packed.

    Example
    -------
    >>> batch = pa.record_batch({"id": range(1000), "colour": ["red", "green"] * 500})
    >>> choice = PackingChoice(batch.schema, never=["id"])
    >>> choice.add(batch)
    >>> [(column.number, column.kind, column.width) for column in choice.choose([0, 1]).columns]
    [(1, 'dictionary', 1)]
    """

    def __init__(self, schema: pa.Schema, never: Collection[str] = ()) -> None:
        self._schema = schema
        unique = [name for name in schema.names if schema.names.count(name) == 1]
        self._names = [name for name in unique if name not in never and family(schema.field(name).type)]
        self._distinct = {
            name: DistinctValues() for name in self._names if family(schema.field(name).type) == "bytes"
        }  # fmt: skip
        self._rows = 0
        self._step = 1
        self._sample: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the rows of a batch of R into account."""
        if not self._names:
            return
        self._add_distinct(batch)
        # Every row whose number is a multiple of the step belongs to the sample.
        wanted = np.arange(-self._rows % self._step, batch.num_rows, self._step)
        if wanted.size:
            self._sample.append(take_rows(batch, wanted))
        self._rows += batch.num_rows
        while self._too_large():
            self._halve()

    def choose(self, numbers: Sequence[int], more: bool = False, growth: int | None = None) -> Packing | None:
        """Return how to pack the columns with these numbers, in the schema's order; None if it saves too little.

        ``more`` means that R will get more rows of the same kind. Some of them will have values that were not added.
        ``growth`` is the most bytes by which packing may make a row longer, by default any number.
        """
        rows = sum(part.num_rows for part in self._sample)
        if not rows:
            return None
        self._sample = [_joined(self._sample, self._schema)]
        (sample,) = self._sample
        found: list[tuple[Choice, ...]] = []
        for number, name in zip(numbers, self._schema.names, strict=True):
            if name in self._names:
                distinct = self._distinct.get(name)
                values = None if distinct is None else distinct.values
                found.append(choices(number, sample.column(name), values, more))
        types = dict(zip(numbers, self._schema.types, strict=True))
        packing = Packing(tuple(_within(found, types, 0 if more else self._rows, growth)))
        chosen = {
            name: packing.by_number[number]
            for number, name in zip(numbers, self._schema.names, strict=True)
            if number in packing.by_number
        }
        return packing if _mean_bytes(sample, chosen) < _WORTH * _mean_bytes(sample, {}) else None

    def _add_distinct(self, batch: pa.RecordBatch) -> None:
        """Collect the distinct values of the first rows, and of some rows after them."""
        batch = batch.select([name for name, distinct in self._distinct.items() if distinct.values is not None])
        first = max(0, min(batch.num_rows, _FIRST_ROWS - self._rows))
        others = take_rows(batch, np.arange(first, batch.num_rows, _EACH)) if first < batch.num_rows else None
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if first:
                self._distinct[name].add(column.slice(0, first))
            if others is not None:
                self._distinct[name].add(others.column(name))

    def _too_large(self) -> bool:
        rows = sum(part.num_rows for part in self._sample)
        size = sum(int(part.nbytes) for part in self._sample)
        return rows > _SAMPLE_ROWS or (rows > _FEWEST_ROWS and size > _SAMPLE_BYTES)

    def _halve(self) -> None:
        whole = _joined(self._sample, self._schema)
        self._step *= 2
        self._sample = [take_rows(whole, np.arange(0, whole.num_rows, 2))]


def _joined(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Return several batches as one, combined as encoded rows, which works for all types."""
    if len(parts) == 1:
        return parts[0]
    codec = RowCodec(schema)
    rows = [codec.encode(part) for part in parts]
    ends = np.cumsum([part.data.size for part in rows])
    starts = [part.starts + (end - part.data.size) for part, end in zip(rows, ends, strict=True)]
    return codec.decode(np.concatenate([part.data for part in rows]), np.concatenate(starts))


def _mean_bytes(sample: pa.RecordBatch, packings: dict[str, ColumnPacking]) -> float:
    codec = RowCodec(sample.schema, packings)
    return float(codec.lengths(sample).mean()) + _PAGE_BYTES[0 if codec.variable else 1]


def _within(
    found: Sequence[tuple[Choice, ...]], types: Mapping[int, pa.DataType], rows: int, growth: int | None
) -> list[ColumnPacking]:
    """Return the best choice for each column; the columns that save most come first.

    All tables together take at most `_TABLE_BYTES`. A table must be smaller than what it saves in ``rows`` rows, unless
    their number is unknown (0). All columns together make a row longer by at most ``growth`` bytes.
    """
    ranked = []
    for alternatives in found:
        saved = [one.saved - (one.packing.stored_bytes / rows if rows else 0.0) for one in alternatives]
        ranked.append(sorted(zip(saved, alternatives, strict=True), key=lambda one: -one[0]))
    left, room, packed = _TABLE_BYTES, growth or 0, []
    for best in sorted(ranked, key=lambda some: -some[0][0]):
        for gain, choice in best:
            grows = choice.growth(types[choice.packing.number]) if growth is not None else 0
            if gain > 0 and choice.packing.nbytes <= left and grows <= room:
                left, room = left - choice.packing.nbytes, room - grows
                packed.append(choice.packing)
                break
    return packed
