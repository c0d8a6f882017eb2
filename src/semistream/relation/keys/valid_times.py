"""The times from which and until which rows of a history are valid, as one int64 each, and the rules that they keep.

A row is valid from its ``valid_from`` on, and before its ``valid_to``. NULL in ``valid_to`` means until further notice,
at most until the key's next row begins. Without a column ``valid_to`` a row always ends where the next one begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from semistream.core.arguments import nearest
from semistream.core.arrays import Bools, Ints
from semistream.core.errors import RelationBuildError
from semistream.core.value_texts import short, value_texts
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.rows.row_codec import RowCodec

__all__ = ["END", "OPEN", "START", "TimeFields", "ValidTimes", "is_time"]

START, END = "__START_AT", "__END_AT"
"""Names of these columns in tables that Spark's AUTO CDC writes. A build recognises them."""
OPEN = int(np.iinfo(np.int64).max)
"""The last moment of a row that is valid until further notice."""
_EXAMPLES = 3
_UNSIGNED, _SIGNED, _FLIPPED = 0, 1, 2
"""How the bytes of a time become a number: as they are, with their sign, or as ``uint64`` with its top bit flipped."""


class TimeFields(NamedTuple):
    """Where rows store the two times: byte and bit numbers are relative to the start of a row."""

    begin: int
    width: int
    """Bytes of a time, of both columns."""
    sign: int
    end: int
    """Place of ``valid_to``; -1 if R does not have it."""
    null_byte: int
    null_bit: int
    """The bit that is set if ``valid_to`` is NULL."""

    def array(self) -> Ints:
        """Return the numbers as an array, for kernels."""
        return np.array(self, np.int64)


def is_time(kind: pa.DataType) -> bool:
    """Return whether a column of this type can say when a row is valid.

    >>> is_time(pa.timestamp("us", "UTC")), is_time(pa.date32()), is_time(pa.string())
    (True, True, False)
    """
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_integer(kind))


class ValidTimes:
    """Reads the times of rows of a history, and checks them.

    Examples
    --------
    >>> times = ValidTimes.of(pa.schema({"id": pa.int64(), "since": pa.date32(), "until": pa.date32()}), "since")
    >>> times.valid_to is None, str(times.type)
    (True, 'date32[day]')
    """

    def __init__(self, schema: pa.Schema, valid_from: str, valid_to: str | None) -> None:
        self.valid_from, self.valid_to = valid_from, valid_to
        self.type: pa.DataType = schema.field(valid_from).type
        """Type of both columns."""
        self._codec = KeyCodec.for_schema(pa.schema([pa.field("time", self.type)]), "time")

    @classmethod
    def of(cls, schema: pa.Schema, valid_from: str, valid_to: str | None = None, key: Sequence[str] = ()) -> ValidTimes:
        """Check the columns that a user named."""
        for option, name in (("valid_from", valid_from), ("valid_to", valid_to)):
            if name is None:
                continue
            if schema.names.count(name) != 1:
                raise RelationBuildError(
                    f"{option}={name!r} must name one column of the relation; "
                    f"{nearest(name, schema.names, f'it has {schema.names}')}"
                )
            if name in key:
                raise RelationBuildError(
                    f"{option}={name!r} is part of the key {list(key)}; the key of a history is what all versions of a "
                    "thing have in common: leave the column out of key="
                )
            if not is_time(kind := schema.field(name).type):
                raise RelationBuildError(
                    f"{option}={name!r} is {kind}, but a time must be a timestamp, a date or an integer; cast it"
                )
        if valid_to is not None and schema.field(valid_to).type != (kind := schema.field(valid_from).type):
            raise RelationBuildError(
                f"valid_from={valid_from!r} is {kind}, but valid_to={valid_to!r} is {schema.field(valid_to).type}; "
                f"cast one of them, so that both have the same type"
            )
        if valid_to == valid_from:
            raise RelationBuildError(
                f"valid_from and valid_to are both {valid_to!r}; leave valid_to out if the next version ends a row"
            )
        return cls(schema, valid_from, valid_to)

    @classmethod
    def recognised(
        cls,
        schema: pa.Schema,
        key: Sequence[str],
        valid_from: str | None,
        valid_to: str | None,
        *,
        clustered: bool = True,
    ) -> ValidTimes | None:
        """Return the times of a relation to build: columns that the user named, or that Spark's AUTO CDC has named."""
        if valid_from is None and valid_to is not None:
            raise RelationBuildError(f"valid_to={valid_to!r} needs valid_from=, the column that says when a row begins")
        if valid_from is None:
            if not (clustered and START in schema.names and END in schema.names) or START in key:
                return None
            valid_from, valid_to = START, END
        if not clustered:
            raise RelationBuildError(
                f"valid_from={valid_from!r} needs rows in the order of their key and time; build with clustered=True"
            )
        return cls.of(schema, valid_from, valid_to, key)

    @property
    def is_number(self) -> bool:
        """Whether times are integers, not dates or timestamps."""
        return bool(pa.types.is_integer(self.type))

    def fields(self, codec: RowCodec) -> TimeFields:
        """Return where rows of a codec store the times."""
        kind, width = self.type, self.type.bit_width // 8
        signed = not pa.types.is_unsigned_integer(kind)
        sign = _SIGNED if signed else _FLIPPED if width == 8 else _UNSIGNED
        begin = codec.place_of(self.valid_from)
        if self.valid_to is None:
            return TimeFields(begin.at, width, sign, -1, 0, 0)
        end = codec.place_of(self.valid_to)
        return TimeFields(begin.at, width, sign, end.at, end.null_byte, end.null_bit)

    def numbers(self, array: pa.Array) -> tuple[Ints, Bools]:
        """Return times of R's type as numbers, and which are not NULL."""
        return self._codec.encode(pa.record_batch([array], names=["time"]))

    def values(self, numbers: Ints) -> pa.Array:
        """Return numbers as times of R's type."""
        return self._codec.decode(numbers)

    def begins(self, batch: pa.RecordBatch) -> Ints:
        """Return when each row begins; raise if a time is NULL."""
        numbers, valid = self.numbers(batch.column(self.valid_from))
        if not valid.all():
            raise RelationBuildError(
                f"{int((~valid).sum()):,} rows have no {self.valid_from!r}{self._such(batch, np.flatnonzero(~valid))}; "
                "a row of a history needs a time from which it is valid: fill the column, with an early time if the "
                "row has always been valid"
            )
        return numbers

    def lasts(self, batch: pa.RecordBatch) -> Ints:
        """Return the last moment of each row: one before its end, or `OPEN`."""
        if self.valid_to is None:
            return np.full(batch.num_rows, OPEN)
        numbers, valid = self.numbers(batch.column(self.valid_to))
        closed = valid & (numbers > np.iinfo(np.int64).min)
        # An end at the least of all numbers is before every begin, and is refused as such.
        return np.where(valid, np.where(closed, numbers - closed, numbers), OPEN)

    def check(self, keys: Ints, begins: Ints, lasts: Ints, batch: pa.RecordBatch) -> None:
        """Raise unless rows in the order of key and time are versions that follow each other."""
        inverted = np.zeros(begins.size, bool)
        if self.valid_to is not None:
            ends, closed = self.numbers(batch.column(self.valid_to))
            inverted = closed & (ends <= begins)
        if inverted.any():
            raise RelationBuildError(
                f"{int(inverted.sum()):,} rows end at or before their begin"
                f"{self._such(batch, np.flatnonzero(inverted))}; {self.valid_to!r} must be "
                f"later than {self.valid_from!r}: remove these rows, or correct their times"
            )
        last = np.flatnonzero(begins == OPEN)
        if last.size:
            raise RelationBuildError(
                f"{last.size:,} rows begin at the greatest number of {self.type}{self._such(batch, last)}, which "
                "stands for no end; give earlier times"
            )
        follows = keys[1:] == keys[:-1]
        again = np.flatnonzero(follows & (begins[1:] == begins[:-1]))
        if again.size:
            raise RelationBuildError(
                f"{again.size:,} rows begin when another row of their key begins{self._such(batch, again + 1)}; "
                "only one of them can be valid: keep one row for each key and begin"
            )
        over = np.flatnonzero(follows & (lasts[:-1] >= begins[1:]) & (lasts[:-1] != OPEN))
        if over.size:
            raise RelationBuildError(
                f"{over.size:,} rows begin before the row before them has ended{self._such(batch, over + 1)}; "
                f"two versions of a key are never valid at the same time: correct {self.valid_to!r}, or leave valid_to "
                "out, so that the next version ends a row"
            )

    def _such(self, batch: pa.RecordBatch, rows: Ints) -> str:
        """Return examples of rows, for a message."""
        times = [self.valid_from] if self.valid_to is None else [self.valid_from, self.valid_to]
        names = [name for name in batch.schema.names if name not in times][:2] + times
        some = batch.take(pa.array(rows[:_EXAMPLES]))
        texts = [value_texts(some.column(name)) for name in names]
        shown = (
            ", ".join(f"{name} {short(str(text[row]))}" for name, text in zip(names, texts, strict=True))
            for row in range(some.num_rows)
        )
        return f", such as ({'), ('.join(shown)})"
