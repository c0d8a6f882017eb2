"""When a stream tuple and a row of R match: same key, same key at the time of the tuple, or a key within two bounds.

In all cases a tuple requests an interval of key64, ``[low, high]``; both ends are its key, except for bounds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.arguments import check_text, listed
from semistream.core.arrays import Bools, Bytes, Ints
from semistream.core.errors import KeyColumnError, KeyTypeError, UnknownColumnsError, UnsupportedJoinError
from semistream.joins.interface.range_bounds import are_ordered, read_bounds
from semistream.relation.keys.key_codec import require_columns
from semistream.relation.keys.key_columns import plain_type
from semistream.relation.keys.valid_times import OPEN, ValidTimes
from semistream.relation.relation import Relation
from semistream.relation.rows.fitting import as_type
from semistream.relation.rows.row_gather import RowGather

__all__ = [
    "AsOf",
    "Between",
    "Condition",
    "ConditionName",
    "Equal",
    "check_condition",
    "condition_for",
    "read_moments",
]

ConditionName = Literal["equal", "between", "as_of"]

_SUPPORTED_BY: dict[str, str] = {
    "equal": "any join",
    "between": "'ssij', 'adaptivejoin' or 'oracle'",
    "as_of": "'adaptivejoin', 'inlj' or 'oracle'",
}
"""For messages: the joins of this package that support each condition."""

_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Condition(ABC):
    """How the stream's columns ``on`` are compared with R's key."""

    name: ClassVar[ConditionName]

    def __init__(self, relation: Relation, on: tuple[str, ...]) -> None:
        self.relation = relation
        self.on = on
        self.fields: list[pa.Field] = list(relation.value_schema)
        """R's columns in the result."""

    def select(self, names: Sequence[str]) -> None:
        """Restrict the result to some of R's columns."""
        self.fields = pick_columns(self.fields, names)

    @abstractmethod
    def check(self, schema: pa.Schema) -> None:
        """Raise unless a stream of ``schema`` can be compared with R's key."""

    @abstractmethod
    def lows(self, batch: pa.RecordBatch) -> tuple[Ints, Bools]:
        """Return the low end of each tuple's interval, and which tuples have one; tuples without one match nothing."""

    @abstractmethod
    def highs(self, batch: pa.RecordBatch, lows: Ints) -> Ints:
        """Return the high end of each tuple's interval; all tuples have one."""

    def column(self, name: str, rows: pa.RecordBatch, keys: Ints) -> pa.Array:
        """Return one of `fields` of matched rows of R, whose key64 are ``keys``."""
        return rows.column(name)


class Equal(Condition):
    """``R.key = S.key``; the key has one or several columns."""

    name: ClassVar[ConditionName] = "equal"

    def check(self, schema: pa.Schema) -> None:
        self.relation.key.check_stream(schema, self.on)

    def lows(self, batch: pa.RecordBatch) -> tuple[Ints, Bools]:
        return self.relation.key.encode(batch, self.on)

    def highs(self, batch: pa.RecordBatch, lows: Ints) -> Ints:
        return lows


class AsOf(Equal):
    """``R.key = S.key AND R.valid_from <= S.time AND S.time < R.valid_to``; R is a history.

    A tuple meets at most one row, because versions of a key do not overlap. A NULL time matches nothing, as a NULL key
    does. The time may have any type that can be compared with the relation's: see `range_bounds.are_ordered`. It is
    compared exactly: a time between two values of R's type counts as the earlier one, which matches the same row.
    """

    name = "as_of"

    def __init__(self, relation: Relation, on: tuple[str, ...], as_of: str) -> None:
        super().__init__(relation, on)
        if relation.times is None:
            raise UnsupportedJoinError(
                f"as_of={as_of!r} needs a history, but the relation has no times; build it with valid_from=, the "
                "column that says from when on a row is valid"
            )
        self.as_of = as_of
        self.valid = relation.times

    def check(self, schema: pa.Schema) -> None:
        super().check(schema)
        require_columns(schema, (self.as_of,), "the stream")
        theirs, ours = plain_type(schema.field(self.as_of).type), self.valid.type
        if not are_ordered(theirs, ours):
            raise KeyTypeError(
                f"the stream's column {self.as_of!r}, named by as_of, is {theirs}, but the relation's "
                f"{self.valid.valid_from!r} is {ours}, which cannot be compared; cast the stream's column to {ours}"
            )

    def lows(self, batch: pa.RecordBatch) -> tuple[Ints, Bools]:
        keys, valid = super().lows(batch)
        return keys, valid & self._moments(batch)[1]

    def times(self, batch: pa.RecordBatch) -> Ints:
        """Return the time of each tuple, as R's times are numbered; undefined where `lows` says that it has none."""
        return self._moments(batch)[0]

    def _moments(self, batch: pa.RecordBatch) -> tuple[Ints, Bools]:
        return read_moments(batch.column(self.as_of), self.valid)

    def intervals(self, data: Bytes, starts: Ints) -> tuple[Ints, Ints]:
        """Return when rows of R begin to be valid, and their last moment."""
        names = [name for name in (self.valid.valid_from, self.valid.valid_to) if name is not None]
        rows = pa.RecordBatch.from_arrays(RowGather(self.relation.codec, names)(data, starts), names=names)
        return self.valid.begins(rows), self.valid.lasts(rows)


def read_moments(array: pa.Array, valid: ValidTimes) -> tuple[Ints, Bools]:
    """Return times of the stream, as R's times are numbered, and which of them can have a row."""
    bounds = read_bounds(array, valid.type, low=False)
    numbers, _ = valid.numbers(bounds.values)
    if bounds.side.any():
        numbers = np.where(bounds.side > 0, OPEN, numbers)
    return numbers, bounds.present & (bounds.side >= 0)  # before all times that R's type can hold nothing is valid


class Between(Condition):
    """``R.key BETWEEN S.low AND S.high``: both ends included; a NULL end matches nothing.

    R's key must be a single column whose order key64 preserves, and R must be stored in this order. A bound may have
    any type that can be compared with the key's: numbers of any width and scale (floats only with integer keys), dates,
    times and timestamps of any unit. A bound outside of the key's type leaves its end of the range open, or matches
    nothing: a low bound above all keys, or a high bound below them. See `semistream.joins.interface.range_bounds`. The
    result contains R's key, because the stream does not have it.
    """

    name = "between"

    def __init__(self, relation: Relation, on: tuple[str, ...]) -> None:
        super().__init__(relation, on)
        self.fields = list(relation.schema)
        if len(on) != 2:
            raise KeyColumnError(
                f"condition 'between' needs two columns of the stream, the low and the high bound, not {list(on)}; "
                "write on=('low', 'high')"
            )
        key = relation.key
        if not key.exact:
            raise UnsupportedJoinError(
                f"the relation's key {list(key.names)} of type {[str(kind) for kind in key.types]} is hashed, so it "
                "has no order; a range join needs a relation whose key is one number, date or time column"
            )
        if not relation.clustered:
            raise UnsupportedJoinError(
                "a range join needs R stored in the order of its key; build the relation with clustered=True"
            )

    def check(self, schema: pa.Schema) -> None:
        key = self.relation.key
        require_columns(schema, self.on, "the stream")
        for name in self.on:
            theirs, ours = plain_type(schema.field(name).type), key.types[0]
            if not are_ordered(theirs, ours):
                raise KeyTypeError(
                    f"the bound {name!r} of the stream is {theirs}, but the relation's key {key.names[0]!r} is {ours}, "
                    f"which cannot be compared; cast the stream's column to {ours} first, a low bound rounded up "
                    "and a high bound rounded down"
                )

    def lows(self, batch: pa.RecordBatch) -> tuple[Ints, Bools]:
        low, _, valid = self._intervals(batch)
        return low, valid

    def highs(self, batch: pa.RecordBatch, lows: Ints) -> Ints:
        return self._intervals(batch)[1]

    def column(self, name: str, rows: pa.RecordBatch, keys: Ints) -> pa.Array:
        if name not in self.relation.key.names:
            return rows.column(name)
        return as_type(self.relation.key.decode(keys), self.relation.schema.field(name).type)

    def _intervals(self, batch: pa.RecordBatch) -> tuple[Ints, Ints, Bools]:
        """Return both ends as key64, and for which tuples neither is NULL."""
        low, low_side, has_low = self._bound(batch, self.on[0], low=True)
        high, high_side, has_high = self._bound(batch, self.on[1], low=False)
        if low_side.any() or high_side.any():
            # Outside of the key's type: the range is open at this end, or it is empty.
            none = (low_side > 0) | (high_side < 0)
            low = np.where(none, _MOST, np.where(low_side < 0, _LEAST, low))
            high = np.where(none, _LEAST, np.where(high_side > 0, _MOST, high))
        return low, high, has_low & has_high

    def _bound(self, batch: pa.RecordBatch, name: str, *, low: bool) -> tuple[Ints, NDArray[np.int8], Bools]:
        """Return a bound as key64, -1 or 1 where it is below or above all possible keys, and where it is not NULL."""
        key = self.relation.key
        bounds = read_bounds(batch.column(name), key.types[0], low=low)
        keys, _ = key.encode(pa.record_batch([bounds.values], names=list(key.names)))
        return keys, bounds.side, bounds.present


def pick_columns(fields: Sequence[pa.Field], names: Sequence[str]) -> list[pa.Field]:
    """Return the fields of these names, in their order."""
    ours = {field.name: field for field in fields}
    asked = listed(names)
    wrong = [name for number, name in enumerate(asked) if name not in ours or name in asked[:number]]
    if isinstance(names, str) or wrong:
        given = names if isinstance(names, str) else list(asked)
        raise UnknownColumnsError(
            f"columns={given!r} must name columns of R, each once: {', '.join(ours) or 'it has none but its key'}",
            wrong,
            ours,
        )
    return [ours[name] for name in asked]


def check_condition(name: str, algorithm: str = "", supported: Collection[str] | None = None) -> None:
    """Raise unless this is a condition and, if ``supported`` is given, one that ``algorithm`` supports."""
    if not isinstance(name, str) or name not in _SUPPORTED_BY:
        raise UnsupportedJoinError(f"condition must be one of {', '.join(map(repr, _SUPPORTED_BY))}, not {name!r}")
    if supported is not None and name not in supported:
        raise UnsupportedJoinError(f"{algorithm} does not support condition {name!r}; use {_SUPPORTED_BY[name]}")


def condition_for(
    name: ConditionName,
    relation: Relation,
    on: tuple[str, ...],
    columns: Sequence[str] | None = None,
    as_of: str | None = None,
) -> Condition:
    """Return the condition with this name; the result has the ``columns`` of R, in this order, or all."""
    condition: Condition
    check_text("the name of one column of the stream", as_of=as_of)
    check_condition(name)
    if (as_of is None) == (name == "as_of"):
        raise UnsupportedJoinError(
            f"as_of={as_of!r} does not fit condition {name!r}; to join with a history, name the stream's column of "
            "times with as_of= and leave condition out"
        )
    if as_of is not None:
        condition = AsOf(relation, on, as_of)
    else:
        condition = Between(relation, on) if name == "between" else Equal(relation, on)
    if columns is not None:
        condition.select(columns)
    return condition
