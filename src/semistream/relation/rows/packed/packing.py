"""How the columns of a relation are packed: chosen from its data when it is built, stored in its manifest.

================  =====================================================================================
kind              field in a row
================  =====================================================================================
`DICTIONARY`      the number of a value in a table, 1 or 2 bytes
`OFFSET`          (value - base) / divisor, 1 to 6 bytes
`SYMBOLS`         the length of the cell, 1 or 2 bytes; the cell consists of codes of a symbol table
`BYTES`           the length of the cell, 1 or 2 bytes; the cell is the value
`CONSTANT`        none; the null bit is set in rows that have another value
================  =====================================================================================

If all bits of a field are set, the value is *escaped*: it is stored at the end of the row (see `packed_rows`). So a
packing can represent every value of its type, and updates never change it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["BYTES", "CONSTANT", "DICTIONARY", "OFFSET", "SYMBOLS", "ColumnPacking", "Packing", "family"]

DICTIONARY, OFFSET, SYMBOLS, BYTES, CONSTANT = "dictionary", "offset", "symbols", "bytes", "constant"
_WIDTHS = {DICTIONARY: range(1, 3), OFFSET: range(1, 7), SYMBOLS: range(1, 3), BYTES: range(1, 3), CONSTANT: range(1)}
_SYMBOLS_BYTES = 12 << 10  # symbols twice, and the tables to find them
_LIMIT = (1 << 16) - 1  # highest column number that an escape can name


def family(type_: pa.DataType) -> str:
    """Return the family of a type, whose types have the same packed bytes; empty if the type is never packed.

    >>> family(pa.int32()), family(pa.large_string()), family(pa.timestamp("us", "UTC")), family(pa.float64())
    ('integer', 'bytes', 'timestamp[us]', '')
    """
    is_ = pa.types
    if is_.is_dictionary(type_):
        return family(type_.value_type)
    if is_.is_integer(type_):
        return "integer"
    if is_.is_decimal128(type_):
        return f"decimal128 with scale {type_.scale}"
    if is_.is_timestamp(type_):
        return f"timestamp[{type_.unit}]"
    if is_.is_date(type_) or is_.is_time(type_) or is_.is_duration(type_):
        return str(type_)
    if any(test(type_) for test in (is_.is_string, is_.is_large_string, is_.is_string_view,
                                    is_.is_binary, is_.is_large_binary, is_.is_binary_view)):  # fmt: skip
        return "bytes"
    return ""


@dataclass(frozen=True)
class ColumnPacking:
    """How one column is packed."""

    number: int
    """The column's number (`storage.row_layouts`). Escapes name their column by it."""
    kind: str
    family: str
    """The types that it can pack; see `family`. A column that was widened to another family is stored unpacked."""
    width: int
    """Bytes of the field in each row."""
    base: int = 0
    """The least value that a field of `OFFSET` can hold."""
    divisor: int = 1
    """The step between values of `OFFSET`."""
    table: bytes = field(default=b"", repr=False)
    """The values of `DICTIONARY`, one after another; the symbols, 8 bytes each; the value of `CONSTANT`."""
    lengths: bytes | None = field(default=None, repr=False)
    """The length of each value (u32) or symbol (u8). None for other kinds, and for a `CONSTANT` that is NULL."""

    def __post_init__(self) -> None:
        if self.kind not in _WIDTHS or self.width not in _WIDTHS[self.kind] or not 0 <= self.number <= _LIMIT:
            raise ValueError(f"column {self.number} has no packing {self.kind!r} with fields of {self.width} bytes")
        if self.divisor < 1 or not -(1 << 63) <= self.base < 1 << 63 or not self.family:
            raise ValueError(f"column {self.number} is packed from {self.base} in steps of {self.divisor}")
        sizes = np.frombuffer(self.lengths or b"", "<u4" if self.kind == DICTIONARY else "u1").astype(np.int64)
        words = self.kind == DICTIONARY
        if words and (int(sizes.sum()) != len(self.table) or not 0 < sizes.size < (1 << 8 * self.width) - 1):
            raise ValueError(f"column {self.number} has {sizes.size} words in {len(self.table)} bytes; it is damaged")
        if self.kind == SYMBOLS and (8 * sizes.size != len(self.table) or sizes.size > 255 or not _fit(sizes)):
            raise ValueError(f"column {self.number} has {sizes.size} symbols in {len(self.table)} bytes; it is damaged")

    def fits(self, type_: pa.DataType) -> bool:
        """Whether values of a type can be packed this way."""
        return family(type_) == self.family

    @property
    def stored_bytes(self) -> int:
        """Bytes of its table before compression."""
        return len(self.table) + len(self.lengths or b"")

    @property
    def nbytes(self) -> int:
        """Bytes of memory that encoding and decoding need for its tables."""
        if self.kind == SYMBOLS:
            return _SYMBOLS_BYTES
        return 2 * len(self.table) + 5 * len(self.lengths or b"")

    def to_json(self) -> dict[str, Any]:
        """Return what the manifest stores."""
        stored: dict[str, Any] = {
            "column": self.number, "kind": self.kind, "family": self.family, "width": self.width,
        }  # fmt: skip
        if self.kind == OFFSET:
            stored |= {"base": self.base, "divisor": self.divisor}
        if self.table:
            stored["table"] = _text(self.table)
        if self.lengths is not None:
            stored["lengths"] = _text(self.lengths)
        return stored

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> ColumnPacking:
        """Read what `to_json` returned; raise ValueError if it is not plausible."""
        try:
            lengths = stored.get("lengths")
            return cls(
                int(stored["column"]), str(stored["kind"]), str(stored["family"]), int(stored["width"]),
                int(stored.get("base", 0)), int(stored.get("divisor", 1)),
                _bytes(stored.get("table", "")), None if lengths is None else _bytes(lengths),
            )  # fmt: skip
        except (KeyError, TypeError, zlib.error) as error:
            raise ValueError(f"a packing is damaged: {error!r}") from error


@dataclass(frozen=True)
class Packing:
    """How the columns of a relation are packed.

    Columns without a packing are stored in the format of their type.
    """

    columns: tuple[ColumnPacking, ...]

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.columns, key=lambda column: column.number))
        if len({column.number for column in ordered}) < len(ordered):
            raise ValueError(f"a column has two packings: {[column.number for column in ordered]}")
        object.__setattr__(self, "columns", ordered)

    @cached_property
    def id(self) -> str:
        """A digest: packings with the same id encode rows to the same bytes."""
        text = json.dumps([repr(column) + _digest(column) for column in self.columns])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def nbytes(self) -> int:
        """Bytes of memory that its tables take."""
        return sum(column.nbytes for column in self.columns)

    @property
    def by_number(self) -> Mapping[int, ColumnPacking]:
        """The packing of each column."""
        return MappingProxyType({column.number: column for column in self.columns})

    def by_name(self, names: Sequence[str], numbers: Sequence[int]) -> dict[str, ColumnPacking]:
        """Return the packings of columns, given their numbers."""
        known = self.by_number
        return {name: known[number] for name, number in zip(names, numbers, strict=True) if number in known}

    def to_json(self) -> list[dict[str, Any]]:
        """Return what the manifest stores."""
        return [column.to_json() for column in self.columns]

    @classmethod
    def from_json(cls, stored: Sequence[Mapping[str, Any]]) -> Packing:
        """Read what `to_json` returned; raise ValueError if it is not plausible."""
        return cls(tuple(ColumnPacking.from_json(one) for one in stored))


def _fit(sizes: NDArray[np.int64]) -> bool:
    return bool(((sizes >= 1) & (sizes <= 8)).all())


def _digest(column: ColumnPacking) -> str:
    return hashlib.sha256(column.table + b"|" + (b"-" if column.lengths is None else column.lengths)).hexdigest()


def _text(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()


def _bytes(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text)) if text else b""
