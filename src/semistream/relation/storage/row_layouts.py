"""The layouts of R's rows: which columns, in which types, the rows of each file have.

A column has a number that never changes, whatever its name and type become. A change of columns adds a layout to the
manifest and writes no page, so files keep the layout in which they were written:

::

    layout 0   1 id int64   2 name string   3 price int32                       shard-0000-….pages
    layout 1   1 id int64   2 title string  3 price int64   4 colour string     shard-0000-….delta

Rows of layout 0 are shown in layout 1 with the same title, a wider price, and the default of the colour.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from semistream.relation.rows.widening import conversion
from semistream.relation.storage.shard_files import ShardFiles

__all__ = ["RowLayout", "RowLayouts"]


@dataclass(frozen=True)
class RowLayout:
    """Columns, and the number of each."""

    schema: pa.Schema
    numbers: tuple[int, ...]

    @classmethod
    def first(cls, schema: pa.Schema) -> RowLayout:
        """Return the layout of a relation whose columns never changed."""
        return cls(schema, tuple(range(len(schema))))

    def position(self, number: int) -> int:
        """Return the position of a column by its number, or -1."""
        return self.numbers.index(number) if number in self.numbers else -1

    def described(self, name: str) -> tuple[int, pa.DataType] | None:
        """Return the number and type of a column; None if there is no such column."""
        at = self.schema.get_field_index(name)
        return None if at < 0 else (self.numbers[at], self.schema.field(at).type)

    def equals(self, other: RowLayout) -> bool:
        """Whether both have the same columns, with the same names, types and order."""
        return self.numbers == other.numbers and self.schema.equals(other.schema)


@dataclass(frozen=True)
class RowLayouts:
    """All layouts that files of a version have, and the one that it shows."""

    lineage: str
    """Random, and the same in all versions whose column numbers mean the same. Empty if columns never changed."""
    layouts: Mapping[int, RowLayout]
    """By number: the first one of the relation, those of its files, and the current one."""
    next_number: int
    """Number of the next column that is added."""
    defaults: Mapping[int, pa.Scalar] = field(default_factory=dict)
    """By column: the value in rows that were written before the column was added. Others are NULL."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "layouts", MappingProxyType(dict(self.layouts)))
        object.__setattr__(self, "defaults", MappingProxyType(dict(self.defaults)))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "layouts": dict(self.layouts), "defaults": dict(self.defaults)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()

    @classmethod
    def unchanged(cls, schema: pa.Schema) -> RowLayouts:
        """Return the layouts of a relation whose columns never changed."""
        return cls("", {0: RowLayout.first(schema)}, len(schema))

    @classmethod
    def apart(cls, schema: pa.Schema, numbers: Sequence[int]) -> RowLayouts:
        """Return the layouts of a relation whose columns have given numbers, unrelated to those of other versions."""
        if tuple(numbers) == tuple(range(len(schema))):
            return cls.unchanged(schema)
        layout = RowLayout(schema, tuple(numbers))
        return cls(os.urandom(8).hex(), {0: layout}, max(numbers) + 1)

    @property
    def number(self) -> int:
        """Number of the current layout."""
        return max(self.layouts)

    @property
    def current(self) -> RowLayout:
        """The layout that the version shows, in which new rows are written."""
        return self.layouts[self.number]

    def changed(self, layout: RowLayout, defaults: Mapping[int, pa.Scalar]) -> RowLayouts:
        """Return the layouts after a change of columns."""
        return RowLayouts(
            self.lineage or os.urandom(8).hex(),
            {**self.layouts, self.number + 1: layout},
            max(self.next_number, *(number + 1 for number in layout.numbers)),
            {number: value for number, value in defaults.items() if number in layout.numbers},
        )

    def used_by(self, shards: Sequence[ShardFiles]) -> RowLayouts:
        """Return only the layouts that must be kept: the first, the current, and those of files."""
        kept = {min(self.layouts), self.number, *(number for shard in shards for number in shard.page_layouts)}
        return replace(self, layouts={number: self.layouts[number] for number in kept})

    def rebuilt(self, schema: pa.Schema) -> RowLayouts:
        """Return the layouts of a version that was built again on top of this one.

        With the same columns, a running query may continue. Other columns are all new: their names mean nothing.
        """
        return self if schema.equals(self.current.schema) else RowLayouts.unchanged(schema)

    def seen_by(self, planned: RowLayouts) -> tuple[RowLayout, Mapping[int, pa.Scalar]]:
        """Return how a query sees this version that was planned with another, and the defaults of its columns.

        The query gets the names, types and order with which it was planned. Columns that were dropped, or whose type
        cannot be converted back, are left out. Columns that this version is too old to have get their defaults.
        """
        wanted = planned.current
        if not self._comparable(planned) or wanted.equals(self.current):
            return self.current, self.defaults
        kept = []
        for place, number in enumerate(wanted.numbers):
            at = self.current.position(number)
            if at < 0 and number < self.next_number:
                continue
            if at < 0 or conversion(self.current.schema.field(at).type, wanted.schema.field(place).type) is not None:
                kept.append(place)
        schema = pa.schema([wanted.schema.field(place) for place in kept], wanted.schema.metadata)
        return RowLayout(schema, tuple(wanted.numbers[place] for place in kept)), {**planned.defaults, **self.defaults}

    def _comparable(self, other: RowLayouts) -> bool:
        """Whether column numbers mean the same in both."""
        if self.lineage == other.lineage:
            return bool(self.lineage)
        named, plain = (self, other) if self.lineage else (other, self)
        base = named.layouts.get(0)
        return not plain.lineage and base is not None and base.equals(plain.current)

    def check(self, shards: Sequence[ShardFiles], schema: pa.Schema) -> None:
        """Raise ValueError unless these are the layouts of these shards, and the schema is that of the current one."""
        for number, shard in enumerate(shards):
            if len(shard.page_layouts) != 1 + len(shard.deltas) or not {*shard.page_layouts} <= self.layouts.keys():
                raise ValueError(f"shard {number} has layouts {shard.page_layouts}, and there are {[*self.layouts]}")
        if not self.current.schema.equals(schema):
            raise ValueError(f"its schema is not that of row layout {self.number}")

    def to_json(self) -> dict[str, Any]:
        """Return what the manifest stores."""
        return {
            "lineage": self.lineage,
            "next_column": self.next_number,
            "layouts": [
                {"number": number, "columns": list(layout.numbers), "arrow_schema": _text(layout.schema)}
                for number, layout in sorted(self.layouts.items())
            ],
            "defaults": {str(number): _value_text(value) for number, value in sorted(self.defaults.items())},
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> RowLayouts:
        """Read what `to_json` returned. Raises ValueError if it is not plausible."""
        layouts = {
            one["number"]: RowLayout(_schema(one["arrow_schema"]), tuple(one["columns"])) for one in stored["layouts"]
        }
        found = cls(
            stored["lineage"], layouts, stored["next_column"],
            {int(number): _value(text) for number, text in stored["defaults"].items()},
        )  # fmt: skip
        for number, layout in layouts.items():
            if len(layout.schema) != len(layout.numbers) or len(set(layout.numbers)) < len(layout.numbers):
                raise ValueError(f"row layout {number} has {len(layout.schema)} columns with numbers {layout.numbers}")
            if any(not 0 <= column < found.next_number for column in layout.numbers):
                raise ValueError(f"row layout {number} has columns {layout.numbers}, the next is {found.next_number}")
        if not found.lineage:
            raise ValueError("its row layouts have no lineage")
        return found


def _text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _value_text(value: pa.Scalar) -> str:
    batch = pa.record_batch({"value": pa.repeat(value, 1)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return base64.b64encode(sink.getvalue().to_pybytes()).decode()


def _value(text: str) -> pa.Scalar:
    with pa.ipc.open_stream(pa.py_buffer(base64.b64decode(text))) as reader:
        return reader.read_next_batch().column(0)[0]
