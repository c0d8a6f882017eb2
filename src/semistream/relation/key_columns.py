"""Key columns: how the values of each type that can be a key are read, compared and hashed.

One class a family of types whose values compare with each other; an instance stands for R's type and reads
arrays of any type it `accepts` as that type. A value that R's type cannot hold is read as not valid: no row
of R has it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.compiled import frozen, kernel
from semistream.relation.row_columns import BooleanColumn, BytesColumn, null_mask, numbers
from semistream.relation.xxhash import hash_bytes, hash_ints, hash_longs, hash_unscaled

__all__ = ["KeyColumn", "KeyValues", "key_column", "plain_type"]

_DIGITS_OF_LONG = 18
_TOP_BIT = np.uint64(1 << 63)
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class KeyValues:
    """The values of a key column as R's type.

    ``valid`` marks the rows that have one (None: all). ``numbers`` are exact values; byte strings are
    ``lengths[i]`` bytes from ``numbers[i]`` of ``data``; long decimals are rows of ``wide``, sign-extended
    little-endian words.
    """

    valid: NDArray[np.bool_] | None
    numbers: NDArray[np.int64]
    lengths: NDArray[np.int64] | None = None
    data: NDArray[np.uint8] | None = None
    wide: NDArray[np.int64] | None = None

    def take(self, positions: NDArray[np.int64], missing: NDArray[np.bool_] | None) -> KeyValues:
        """Return the values at ``positions``, not valid where ``missing``."""
        if missing is not None:
            positions = np.where(missing, 0, positions)
        if self.numbers.size == 0 and positions.size:
            # Nothing to point to: a dictionary without values, all of whose rows are NULL.
            return _nothing(self, positions.size)
        valid = None if self.valid is None else self.valid[positions]
        if missing is not None:
            valid = ~missing if valid is None else valid & ~missing
        return KeyValues(
            valid,
            self.numbers[positions],
            None if self.lengths is None else self.lengths[positions],
            self.data,
            None if self.wide is None else self.wide[positions],
        )


def _nothing(like: KeyValues, rows: int) -> KeyValues:
    zeros = np.zeros(rows, dtype=np.int64)
    return KeyValues(
        np.zeros(rows, dtype=np.bool_),
        zeros,
        None if like.lengths is None else zeros,
        like.data,
        None if like.wide is None else np.zeros((rows, like.wide.shape[1]), dtype=np.int64),
    )


class KeyColumn(ABC):
    """One key column of R.

    ``sql_type`` is the Spark type whose hash this column's is; ``exact`` says whether a value fits an int64.
    """

    exact = True
    sql_type: str

    def __init__(self, type_: pa.DataType) -> None:
        self.type = type_

    def accepts(self, type_: pa.DataType) -> bool:
        """Say whether values of ``type_`` can be compared with ours."""
        return bool(pa.types.is_null(type_)) or self._comparable(type_)

    def read(self, array: pa.Array) -> KeyValues:
        """Read an array of any accepted type."""
        if isinstance(array, pa.ExtensionArray):
            return self.read(array.storage)
        if isinstance(array, pa.DictionaryArray):
            missing = null_mask(array.indices)
            width = array.indices.type.bit_width // 8
            sign = "i" if pa.types.is_signed_integer(array.indices.type) else "u"
            positions = numbers(array.buffers()[1], f"<{sign}{width}", array.offset, len(array))
            return self.read(array.dictionary).take(positions.astype(np.int64), missing)
        if isinstance(array, pa.RunEndEncodedArray):
            rows = np.arange(array.offset, array.offset + len(array))
            runs = np.searchsorted(array.run_ends.to_numpy(), rows, side="right")
            return self.read(array.values).take(runs, None)
        if pa.types.is_null(array.type):
            return _nothing(self._read(pa.nulls(0, self.type)), len(array))
        return self._read(array)

    def hash(self, values: KeyValues, running: NDArray[np.uint64]) -> None:
        """Update each row's running hash with its value, as Spark would."""
        self.hash_numbers(values.numbers, values.valid, running)

    def equal(self, left: KeyValues, right: KeyValues) -> NDArray[np.bool_]:
        """Compare row by row; what is not valid equals nothing."""
        equal = self._equal(left, right)
        for valid in (left.valid, right.valid):
            if valid is not None:
                equal &= valid
        return equal

    def _equal(self, left: KeyValues, right: KeyValues) -> NDArray[np.bool_]:
        return np.equal(left.numbers, right.numbers)

    @abstractmethod
    def hash_numbers(
        self, values: NDArray[np.int64], valid: NDArray[np.bool_] | None, running: NDArray[np.uint64]
    ) -> None:
        """Update each row's running hash with an exact value."""

    @abstractmethod
    def write(self, values: NDArray[np.int64]) -> pa.Array:
        """Make an array of R's type from exact values."""

    @abstractmethod
    def _comparable(self, type_: pa.DataType) -> bool: ...

    @abstractmethod
    def _read(self, array: pa.Array) -> KeyValues: ...


class IntegerKey(KeyColumn):
    """Integers of any width, signed or not; they compare as numbers."""

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
        valid = _valid(array)
        if dtype != self._dtype:
            limits, theirs = np.iinfo(self._dtype), np.iinfo(dtype)
            if theirs.min < limits.min:
                valid = _and(valid, values >= limits.min)
            if theirs.max > limits.max:
                valid = _and(valid, values <= limits.max)
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
        return KeyValues(_valid(array), cells.values.astype(np.int64))

    def hash_numbers(
        self, values: NDArray[np.int64], valid: NDArray[np.bool_] | None, running: NDArray[np.uint64]
    ) -> None:
        hash_ints(values, valid, running)

    def write(self, values: NDArray[np.int64]) -> pa.Array:
        return pa.array(values != 0)


class TickKey(KeyColumn):
    """Dates, timestamps, times and durations: a count of ticks, of which other units are exact multiples."""

    _NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1, "day": 86_400 * 10**9}  # noqa: RUF012
    # What Spark counts in, hence what its hash sees.
    _SPARK_UNIT = {"date": "day", "timestamp": "us", "duration": "us", "time": "ns"}  # noqa: RUF012

    def __init__(self, type_: pa.DataType) -> None:
        super().__init__(type_)
        self._kind = _tick_kind(type_)
        self._tick = self._NANOSECONDS[_tick_unit(type_)]
        self._dtype = np.dtype(f"<i{type_.bit_width // 8}")
        self.sql_type = {
            "date": "date",
            "timestamp": "timestamp" if getattr(type_, "tz", None) else "timestamp_ntz",
            "duration": "interval day to second",
            "time": "time(6)",
        }[self._kind]

    def _comparable(self, type_: pa.DataType) -> bool:
        if _tick_kind(type_) != self._kind:
            return False
        # With a zone it is a moment, without one what a clock on the wall showed: not the same thing.
        return bool(getattr(type_, "tz", None)) == bool(getattr(self.type, "tz", None))

    def _read(self, array: pa.Array) -> KeyValues:
        dtype = np.dtype(f"<i{array.type.bit_width // 8}")
        values = numbers(array.buffers()[1], dtype, array.offset, len(array)).astype(np.int64)
        valid = _valid(array)
        theirs = self._NANOSECONDS[_tick_unit(array.type)]
        if theirs > self._tick:
            factor = theirs // self._tick
            valid = _and(valid, (values <= _INT64.max // factor) & (values >= -(_INT64.max // factor)))
            values = values * factor
        elif theirs < self._tick:
            values, rest = np.divmod(values, self._tick // theirs)
            valid = _and(valid, rest == 0)
        if self._dtype.itemsize == 4 and dtype.itemsize == 8:
            limits = np.iinfo(np.int32)
            valid = _and(valid, (values >= limits.min) & (values <= limits.max))
        return KeyValues(valid, values)

    def hash_numbers(
        self, values: NDArray[np.int64], valid: NDArray[np.bool_] | None, running: NDArray[np.uint64]
    ) -> None:
        spark = self._NANOSECONDS[self._SPARK_UNIT[self._kind]]
        hash_ticks = hash_ints if self._kind == "date" else hash_longs
        if self._tick >= spark:
            hash_ticks(values * (self._tick // spark), valid, running)
            return
        whole, rest = np.divmod(values, spark // self._tick)
        hash_ticks(whole, valid, running)
        if rest.any():
            hash_longs(rest, _and(valid, rest != 0), running)

    def write(self, values: NDArray[np.int64]) -> pa.Array:
        return _from_words(self.type, values.astype(self._dtype))


class DecimalKey(KeyColumn):
    """Decimals of one scale: exact as unscaled numbers up to 18 digits, hashed beyond, as Spark does."""

    def __init__(self, type_: pa.DataType) -> None:
        super().__init__(type_)
        self.exact = type_.precision <= _DIGITS_OF_LONG
        self.sql_type = f"decimal({type_.precision},{type_.scale})"

    def _comparable(self, type_: pa.DataType) -> bool:
        return bool(pa.types.is_decimal(type_)) and type_.scale == self.type.scale

    def _read(self, array: pa.Array) -> KeyValues:
        width = array.type.bit_width // 8
        valid = _valid(array)
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
            valid = _and(valid, (words[:, 1:] == (low >> 63)[:, None]).all(axis=1))
        if array.type.precision > self.type.precision:
            limit = 10**self.type.precision
            valid = _and(valid, (low < limit) & (low > -limit))
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


class BytesKey(KeyColumn):
    """Strings, or binary values: compared byte by byte, as Spark does with its default collation."""

    exact = False

    def __init__(self, type_: pa.DataType) -> None:
        super().__init__(type_)
        self._text = _is_text(type_)
        self.sql_type = "string" if self._text else "binary"

    def _comparable(self, type_: pa.DataType) -> bool:
        return _is_text(type_) if self._text else _is_binary(type_)

    def _read(self, array: pa.Array) -> KeyValues:
        if pa.types.is_fixed_size_binary(array.type):
            width = array.type.byte_width
            data = numbers(array.buffers()[1], "<u1", array.offset * width, len(array) * width)
            begins = np.arange(len(array), dtype=np.int64) * width
            return KeyValues(_valid(array), begins, np.full(len(array), width, dtype=np.int64), data)
        (cells,) = BytesColumn(array.type).split(array)
        return KeyValues(_valid(array), cells.begins, cells.lengths, cells.values)

    def hash(self, values: KeyValues, running: NDArray[np.uint64]) -> None:
        assert values.data is not None
        assert values.lengths is not None
        hash_bytes(values.data, values.numbers, values.lengths, values.valid, running)

    def _equal(self, left: KeyValues, right: KeyValues) -> NDArray[np.bool_]:
        equal = np.empty(left.numbers.size, dtype=np.bool_)
        _equal_bytes(*_byte_strings(left), *_byte_strings(right), equal)
        return equal

    def hash_numbers(
        self, values: NDArray[np.int64], valid: NDArray[np.bool_] | None, running: NDArray[np.uint64]
    ) -> None:
        raise NotImplementedError("byte strings are hashed from their bytes")

    def write(self, values: NDArray[np.int64]) -> pa.Array:
        raise NotImplementedError("a hash cannot be turned back into byte strings")


@kernel
def _equal_bytes(
    left: NDArray[np.uint8],
    left_begins: NDArray[np.int64],
    left_lengths: NDArray[np.int64],
    right: NDArray[np.uint8],
    right_begins: NDArray[np.int64],
    right_lengths: NDArray[np.int64],
    equal: NDArray[np.bool_],
) -> None:
    for i in range(equal.size):
        same = left_lengths[i] == right_lengths[i]
        at = 0
        while same and at < left_lengths[i]:
            same = left[left_begins[i] + at] == right[right_begins[i] + at]
            at += 1
        equal[i] = same


def _byte_strings(values: KeyValues) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    assert values.data is not None
    assert values.lengths is not None
    return frozen(values.data), frozen(values.numbers), frozen(values.lengths)


def _valid(array: pa.Array) -> NDArray[np.bool_] | None:
    nulls = null_mask(array)
    return None if nulls is None else ~nulls


def _and(valid: NDArray[np.bool_] | None, condition: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return condition if valid is None else valid & condition


def _from_words(type_: pa.DataType, words: NDArray[Any]) -> pa.Array:
    rows = words.nbytes * 8 // type_.bit_width
    return pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(words)], 0)


def _is_text(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)
    )


def _is_binary(type_: pa.DataType) -> bool:
    plain = pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_)
    return bool(plain or pa.types.is_fixed_size_binary(type_))


def _tick_kind(type_: pa.DataType) -> str | None:
    for kind in ("date", "timestamp", "time", "duration"):
        if getattr(pa.types, f"is_{kind}")(type_):
            return kind
    return None


def _tick_unit(type_: pa.DataType) -> str:
    if pa.types.is_date32(type_):
        return "day"
    return "ms" if pa.types.is_date64(type_) else str(type_.unit)


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of the values themselves: dictionaries, extensions and run-end encoding taken off."""
    while True:
        if isinstance(type_, pa.BaseExtensionType):
            type_ = type_.storage_type
        elif pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
            type_ = type_.value_type
        else:
            return type_


def key_column(type_: pa.DataType) -> KeyColumn | None:
    """Return the column for a plain type, or None if such values cannot be keys."""
    if pa.types.is_integer(type_):
        return IntegerKey(type_)
    if pa.types.is_boolean(type_):
        return BooleanKey(type_)
    if pa.types.is_decimal(type_):
        return DecimalKey(type_)
    if _tick_kind(type_):
        return TickKey(type_)
    if _is_text(type_) or _is_binary(type_):
        return BytesKey(type_)
    return None
