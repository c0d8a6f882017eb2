"""Key columns: how keys are read, compared and hashed. This module has the common base, and keys of byte strings.

There is one class per family of types whose values can be compared. An instance represents R's type, and reads arrays
of any type that it `accepts` as that type. A value that R's type cannot hold is read as not valid: no row of R has it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.compiled import frozen, kernel
from semistream.relation.keys.xxhash import hash_bytes
from semistream.relation.rows.row_cells import null_mask, numbers
from semistream.relation.rows.row_columns import BytesColumn

__all__ = [
    "BytesKey",
    "KeyColumn",
    "KeyValues",
    "both",
    "is_binary",
    "is_number",
    "is_text",
    "plain_type",
    "valid_mask",
]


@dataclass(frozen=True, slots=True)
class KeyValues:
    """The values of a key column, as R's type.

    ``valid`` marks the rows that have a value (None: all rows). ``numbers`` holds exact values. A byte string is
    ``lengths[i]`` bytes from ``numbers[i]`` of ``data``. Long decimals are rows of ``wide``, as sign-extended
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
            # There is nothing to point to: a dictionary without values, in which all rows are NULL.
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

    ``sql_type`` is the Spark type that gives the same hash; ``exact`` says whether a value fits into an int64.
    """

    exact = True
    sql_type: str

    def __init__(self, type_: pa.DataType) -> None:
        self.type = type_
        self.widest_type = type_
        """Holds all values of comparable types that R's type can hold."""

    def accepts(self, type_: pa.DataType) -> bool:
        """Return whether values of ``type_`` can be compared with this column."""
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
        """Update each row's running hash with its value, as Spark does."""
        self.hash_numbers(values.numbers, values.valid, running)

    def equal(self, left: KeyValues, right: KeyValues) -> NDArray[np.bool_]:
        """Compare row by row. A value that is not valid equals nothing."""
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
        """Return an array of R's type from exact values."""

    @abstractmethod
    def _comparable(self, type_: pa.DataType) -> bool: ...

    @abstractmethod
    def _read(self, array: pa.Array) -> KeyValues: ...


class BytesKey(KeyColumn):
    """Strings, or binary values: compared byte by byte, as Spark does with its default collation."""

    exact = False

    def __init__(self, type_: pa.DataType) -> None:
        super().__init__(type_)
        self._text = is_text(type_)
        self.widest_type = pa.large_string() if self._text else pa.large_binary()
        self.sql_type = "string" if self._text else "binary"

    def _comparable(self, type_: pa.DataType) -> bool:
        return is_text(type_) if self._text else is_binary(type_)

    def _read(self, array: pa.Array) -> KeyValues:
        if pa.types.is_fixed_size_binary(array.type):
            width = array.type.byte_width
            data = numbers(array.buffers()[1], "<u1", array.offset * width, len(array) * width)
            begins = np.arange(len(array), dtype=np.int64) * width
            return KeyValues(valid_mask(array), begins, np.full(len(array), width, dtype=np.int64), data)
        (cells,) = BytesColumn(array.type).split(array)
        return KeyValues(valid_mask(array), cells.begins, cells.lengths, cells.values)

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
        raise NotImplementedError("a hash cannot be decoded into byte strings")


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


def valid_mask(array: pa.Array) -> NDArray[np.bool_] | None:
    """Return where ``array`` is not NULL, or None if it has no NULL."""
    nulls = null_mask(array)
    return None if nulls is None else ~nulls


def both(valid: NDArray[np.bool_] | None, condition: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return ``valid`` and ``condition`` combined. A ``valid`` of None means all rows."""
    return condition if valid is None else valid & condition


def is_number(kind: pa.DataType) -> bool:
    """Return whether ``kind`` is a type of integers, floats or decimals."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def is_text(type_: pa.DataType) -> bool:
    """Return whether ``type_`` is a string type."""
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def is_binary(type_: pa.DataType) -> bool:
    """Return whether ``type_`` is a type of byte strings."""
    plain = pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_)
    return bool(plain or pa.types.is_fixed_size_binary(type_))


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of the values, without dictionaries, extensions and run-end encoding."""
    while True:
        if isinstance(type_, pa.BaseExtensionType):
            type_ = type_.storage_type
        elif pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
            type_ = type_.value_type
        else:
            return type_
