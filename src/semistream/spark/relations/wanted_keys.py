"""Which pages and rows of a relation a query needs: conditions on the key, and the columns that it asks for.

Conditions are only used to skip pages and rows. Spark evaluates every condition again, so one that is not understood
here costs reads and never a row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bytes, Ints
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.open_relation import OpenRelation
from semistream.relation.pages.page_index import ClusteredIndex
from semistream.relation.pages.page_layout import page_keys
from semistream.relation.pages.stored_rows import whole_rows
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.rows.row_gather import RowGather
from semistream.spark.features import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

__all__ = ["RowSelection", "WantedKeys"]

_MOST_KEYS = 1 << 16
"""Combinations of values of a key with several columns, up to which they are looked up one by one."""


@dataclass(frozen=True)
class WantedKeys:
    """The keys that a query wants: a list of them, or those between two of them."""

    keys: Ints | None
    """key64, ascending."""
    low: int
    high: int

    @classmethod
    def of(cls, filters: Sequence[Filter], key: KeyCodec, *, ranges: bool) -> WantedKeys | None:
        """Return what conditions, all of which must hold, say about the key; None if nothing.

        ``ranges`` says whether pages are in the order of the key.
        """
        values: dict[str, list[Any]] = {}
        low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
        bounded = False
        for one in filters:
            place: tuple[str, ...] = getattr(one, "attribute", ())
            name = place[0] if len(place) == 1 else ""
            if name not in key.names:
                continue
            kind = key.types[key.names.index(name)]
            if isinstance(one, EqualTo | EqualNullSafe | In):
                found = _converted(list(one.value) if isinstance(one, In) else [one.value], kind)
                if found is not None and (name not in values or len(found) < len(values[name])):
                    values[name] = found
            elif isinstance(one, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
                found = _converted([one.value], kind)
                if found and key.exact and ranges:
                    bound = int(key.encode(pa.record_batch([pa.array(found, kind)], [name]))[0][0])
                    upper = isinstance(one, LessThan | LessThanOrEqual)
                    low, high, bounded = (low, min(high, bound), True) if upper else (max(low, bound), high, True)
        if set(values) == set(key.names) and math.prod(map(len, values.values())) <= _MOST_KEYS:
            rows = list(itertools.product(*(values[name] for name in key.names)))
            columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(key.types)]
            return cls(np.unique(key.encode(pa.record_batch(columns, list(key.names)))[0]), low, high)
        return cls(None, int(low), int(high)) if bounded else None

    def pages(self, relation: OpenRelation) -> Ints:
        """Return the pages of the open shard that can hold wanted keys."""
        if self.keys is not None:
            return np.unique(relation.locate(self.keys).pages)
        index = relation.indexes[0]
        assert isinstance(index, ClusteredIndex)
        if self.low > self.high:
            return np.empty(0, np.int64)
        begin, count = index.between(np.array([self.low]), np.array([self.high]))
        places = np.arange(int(begin[0]), int(begin[0] + count[0]))
        return places if index.ids is None else index.ids[places]

    def among(self, keys: Ints) -> Any:
        """Return which rows have a wanted key64."""
        if self.keys is not None:
            return np.isin(keys, self.keys)
        return (keys >= self.low) & (keys <= self.high)


def _converted(given: list[Any], kind: pa.DataType) -> list[Any] | None:
    """Return the values that a column of ``kind`` can have; None if they cannot be compared here without doubt."""
    exact = (
        pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind) or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    )  # fmt: skip
    if not exact:
        return None
    values = [value for value in given if value is not None]  # NULL equals nothing
    try:
        pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None
    return values


class RowSelection:
    """Decodes some columns of a relation's rows."""

    def __init__(self, relation: OpenRelation, columns: Sequence[str]) -> None:
        self._relation, self._columns = relation, list(columns)
        stored = [name for name in columns if name in relation.codec.schema.names]
        self._stored = pa.schema([relation.codec.schema.field(name) for name in stored])
        plain = type(relation.codec) is RowCodec
        self._gather = RowGather(relation.codec, stored) if plain else None
        self._schema = pa.schema([relation.schema.field(name) for name in columns])

    def of(self, pages: Ints, frames: Bytes, wanted: WantedKeys | None) -> pa.RecordBatch:
        """Read pages; return the columns of their rows, without rows that have another key than ``wanted``."""
        relation = self._relation
        relation.read(pages, frames)
        keys, _, starts = page_keys(frames, relation.layout.stride)
        if wanted is not None:
            here = wanted.among(keys)
            keys, starts = keys[here], starts[here]
        data = frames.reshape(-1)
        if self._gather is None:
            rows = relation.rows(data, starts).select(self._stored.names)
        else:
            rows = pa.RecordBatch.from_arrays(self._gather(data, starts), schema=self._stored)
        return whole_rows(self._schema, relation.key, keys, rows)
