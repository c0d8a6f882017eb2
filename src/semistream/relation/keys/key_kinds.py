"""Key columns whose values are numbers: integers, booleans, dates and times, decimals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.relation.keys.key_columns import (
    BytesKey,
    KeyColumn,
    KeyValues,
    both,
    is_binary,
    is_text,
    valid_mask,
)
from semistream.relation.keys.xxhash import hash_ints, hash_longs, hash_unscaled
from semistream.relation.rows.row_cells import numbers
from semistream.relation.rows.row_columns import BooleanColumn

__all__ = ["BooleanKey", "DecimalKey", "IntegerKey", "TickKey", "key_column", "tick_kind", "tick_nanoseconds"]

_DIGITS_OF_LONG = 18
_TOP_BIT = np.uint64(1 << 63)
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1, "day": 86_400 * 10**9}
_INT64 = np.iinfo(np.int64)


class IntegerKey(KeyColumn):
    """Integers of any width, signed or unsigned. They compare as numbers."""

    _SQL = {1: "tinyint", 2: "smallint", 4: "int", 8: "bigint"}  # noqa: RUF012
    _SQL_UNSIGNED = {1: "smallint", 2: "int", 4: "bigint", 8: "decimal(20,0)"}  # noqa: RUF012

    def __init__(self, type_: pa.DataType) -> None:
        super().__init__(type_)
        self._dtype: np.dtype[Any] = np.dtype(type_.to_pandas_dtype())
        self._unsigned = self._dtype.kind == "u"
        self.sql_type = (self._SQL_UNSIGNED if self._unsigned else self._SQL)[self._dtype.itemsize]
        self._flipped = self._unsigned and self._dtype.itemsize == 8

    def _comparable(self, type_: pa.DataType) -> bool:
        return bool(pa.types.is_integer(type_))

    def _read(self, array: pa.Array) -> KeyValues:
        dtype = np.dtype(array.type.to_pandas_dtype())
        values = numbers(array.buffers()[1], dtype, array.offset, len(array))
        valid = valid_mask(array)
        if dtype != self._dtype:
            limits, theirs = np.iinfo(self._dtype), np.iinfo(dtype)
            if theirs.min < limits.min:
                valid = both(valid, values >= limits.min)
            if theirs.max > limits.max:
                valid = both(valid, values <= limits.max)
        if self._flipped:
            return KeyValues(valid, (values.astype(np.uint64) ^ _TOP_BIT).view(np.int64))
        return KeyValues(valid, values.astype(np.int64))

    def hash_numbers(
        self, values: NDArray[np.int64], valid: NDArray[np.bool_] | None, running: NDArray[np.uint64]
    ) -> None:
        if self._flipped:
            words = np.zeros((values.size, 2), dtype=np.uint64)
            words[:, 0] = values.view(np.uint64) ^ _TOP_BIT
            hash_unscaled(words.view(np.uint8), valid, running)
        elif self.sql_type == "bigint":
            hash_longs(values, valid, running)
        else:
            hash_ints(values, valid, running)

    def write(self, values: NDArray[np.int64]) -> pa.Array:
        if self._flipped:
            return pa.array(values.view(np.uint64) ^ _TOP_BIT)
        return pa.array(values.astype(self._dtype), self.type)


class BooleanKey(KeyColumn):
    """Booleans: 0 and 1."""

    sql_type = "boolean"

    def _comparable(self, type_: pa.DataType) -> bool:
        return bool(pa.types.is_boolean(type_))

    def _read(self, array: pa.Array) -> KeyValues:
        (cells,) = BooleanColumn(self.type).split(array)
        return KeyValues(valid_mask(array), cells.values.astype(np.int64))

    def hash_numbers(
        self, values: NDArray[np.int64], valid: NDArray[np.bool_] | None, running: NDArray[np.uint64]
    ) -> None:
        hash_ints(values, valid, running)

    def write(self, values: NDArray[np.int64]) -> pa.Array:
        return pa.array(values != 0)


class TickKey(KeyColumn):
    """Dates, timestamps, times and durations, as a count of ticks. Units are exact multiples of one another."""

    # The unit in which Spark holds and hashes each kind.
    _SPARK_UNIT = {"date": "day", "timestamp": "us", "duration": "us", "time": "ns"}  # noqa: RUF012

    def __init__(self, type_: pa.DataType) -> None:
        super().__init__(type_)
        self._kind = tick_kind(type_)
        self._tick = tick_nanoseconds(type_)
        self._dtype = np.dtype(f"<i{type_.bit_width // 8}")
        self.sql_type = {
            "date": "date",
            "timestamp": "timestamp" if getattr(type_, "tz", None) else "timestamp_ntz",
            "duration": "interval day to second",
            "time": "time(6)",
        }[self._kind]

    def _comparable(self, type_: pa.DataType) -> bool:
        if tick_kind(type_) != self._kind:
            return False
        # With a time zone a value is an instant; without one it is a local time. The two cannot be compared.
        return bool(getattr(type_, "tz", None)) == bool(getattr(self.type, "tz", None))

    def _read(self, array: pa.Array) -> KeyValues:
        dtype = np.dtype(f"<i{array.type.bit_width // 8}")
        values = numbers(array.buffers()[1], dtype, array.offset, len(array)).astype(np.int64)
        valid = valid_mask(array)
        theirs = tick_nanoseconds(array.type)
        if theirs > self._tick:
            factor = theirs // self._tick
            valid = both(valid, (values <= _INT64.max // factor) & (values >= -(_INT64.max // factor)))
            values = values * factor
        elif theirs < self._tick:
            values, rest = np.divmod(values, self._tick // theirs)
            valid = both(valid, rest == 0)
        if self._dtype.itemsize == 4 and dtype.itemsize == 8:
            limits = np.iinfo(np.int32)
            valid = both(valid, (values >= limits.min) & (values <= limits.max))
        return KeyValues(valid, values)

    def hash_numbers(
        self, values: NDArray[np.int64], valid: NDArray[np.bool_] | None, running: NDArray[np.uint64]
    ) -> None:
        spark = _NANOSECONDS[self._SPARK_UNIT[self._kind]]
        hash_ticks = hash_ints if self._kind == "date" else hash_longs
        if self._tick >= spark:
            factor = self._tick // spark
            hash_ticks(values * factor, valid, running)
            most = _INT64.max // factor
            beyond = (values > most) | (values < -most)
            rest = values
        else:
            whole, rest = np.divmod(values, spark // self._tick)
            hash_ticks(whole, valid, running)
            beyond = rest != 0
            if self._kind == "date":
                beyond |= whole != whole.astype(np.int32)
                rest = np.where(whole == whole.astype(np.int32), rest, values)
        # The part that Spark's type cannot hold is hashed after it. Values that Spark can hold keep Spark's hash, and
        # all other values differ.
        if beyond.any():
            hash_longs(rest, both(valid, beyond), running)

    def write(self, values: NDArray[np.int64]) -> pa.Array:
        return _from_words(self.type, values.astype(self._dtype))


class DecimalKey(KeyColumn):
    """Decimals of one scale: exact (as unscaled numbers) up to 18 digits, hashed beyond, as in Spark."""

    def __init__(self, type_: pa.DataType) -> None:
        super().__init__(type_)
        self.exact = type_.precision <= _DIGITS_OF_LONG
        self.widest_type = type_ if self.exact else pa.decimal256(76, type_.scale)
        self.sql_type = f"decimal({type_.precision},{type_.scale})"

    def _comparable(self, type_: pa.DataType) -> bool:
        return bool(pa.types.is_decimal(type_)) and type_.scale == self.type.scale

    def _read(self, array: pa.Array) -> KeyValues:
        width = array.type.bit_width // 8
        valid = valid_mask(array)
        if width <= 8:
            low = numbers(array.buffers()[1], f"<i{width}", array.offset, len(array)).astype(np.int64)
            words = low.reshape(-1, 1)
        else:
            per_row = width // 8
            flat = numbers(array.buffers()[1], "<i8", array.offset * per_row, len(array) * per_row)
            words = flat.reshape(-1, per_row)
            low = words[:, 0].copy()
        if not self.exact:
            wide = np.empty((len(array), 4), dtype=np.int64)
            wide[:, : words.shape[1]] = words
            wide[:, words.shape[1] :] = (words[:, -1] >> 63)[:, None]
            return KeyValues(valid, low, wide=wide)
        if words.shape[1] > 1:
            valid = both(valid, (words[:, 1:] == (low >> 63)[:, None]).all(axis=1))
        if array.type.precision > self.type.precision:
            limit = 10**self.type.precision
            valid = both(valid, (low < limit) & (low > -limit))
        return KeyValues(valid, low)

    def hash(self, values: KeyValues, running: NDArray[np.uint64]) -> None:
        if values.wide is None:
            self.hash_numbers(values.numbers, values.valid, running)
        else:
            hash_unscaled(values.wide.view(np.uint8), values.valid, running)

    def hash_numbers(
        self, values: NDArray[np.int64], valid: NDArray[np.bool_] | None, running: NDArray[np.uint64]
    ) -> None:
        hash_longs(values, valid, running)

    def _equal(self, left: KeyValues, right: KeyValues) -> NDArray[np.bool_]:
        if left.wide is None or right.wide is None:
            return super()._equal(left, right)
        equal: NDArray[np.bool_] = (left.wide == right.wide).all(axis=1)
        return equal

    def write(self, values: NDArray[np.int64]) -> pa.Array:
        width = self.type.bit_width // 8
        if width <= 8:
            return _from_words(self.type, values.astype(f"<i{width}"))
        words = np.empty((values.size, width // 8), dtype=np.int64)
        words[:] = (values >> 63)[:, None]
        words[:, 0] = values
        return _from_words(self.type, words.reshape(-1))


def _from_words(type_: pa.DataType, words: NDArray[Any]) -> pa.Array:
    rows = words.nbytes * 8 // type_.bit_width
    return pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(words)], 0)


def tick_kind(type_: pa.DataType) -> str:
    """Return the kind of a tick type (such as "date"), or an empty string for any other type."""
    for kind in ("date", "timestamp", "time", "duration"):
        if getattr(pa.types, f"is_{kind}")(type_):
            return kind
    return ""


def _unit_of(type_: pa.DataType) -> str:
    if pa.types.is_date32(type_):
        return "day"
    return "ms" if pa.types.is_date64(type_) else str(type_.unit)


def tick_nanoseconds(type_: pa.DataType) -> int:
    """Return the nanoseconds of one tick of such a type."""
    return _NANOSECONDS[_unit_of(type_)]


def key_column(type_: pa.DataType) -> KeyColumn | None:
    """Return the key column for a plain type, or None if such values cannot be keys."""
    if pa.types.is_integer(type_):
        return IntegerKey(type_)
    if pa.types.is_boolean(type_):
        return BooleanKey(type_)
    if pa.types.is_decimal(type_):
        return DecimalKey(type_)
    if tick_kind(type_):
        return TickKey(type_)
    if is_text(type_) or is_binary(type_):
        return BytesKey(type_)
    return None
