"""Type changes of a column that lose nothing, and how the bytes of a cell change.

================================================  ===============================================
from                                              to
================================================  ===============================================
int8, int16, int32; uint8, uint16, uint32         a wider integer that holds all of its values
int8, int16, int32; uint8, uint16, uint32         double
float                                             double
decimal128(p, s)                                  decimal128 with more digits and the same scale
date32                                            date64, timestamp[s] or timestamp[ms]
string, binary                                    large or view types of the same kind
dictionary of T                                   T, and what T becomes
================================================  ===============================================

If A becomes B and B becomes C, then A becomes C: rows in the layout of A are shown as C.
`date32` does not become `timestamp[us]`: dates after the year 294246 have no such timestamp.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

__all__ = ["COPY", "DAYS", "FLOAT", "INTEGER", "REAL", "Conversion", "conversion", "is_widening"]

COPY = 0
"""The bytes stay the same."""
INTEGER = 1
"""Integers of another width. Bit 1 of `Conversion.detail`: the source is unsigned; bit 2: the target is unsigned."""
FLOAT = 2
"""Between float and double."""
REAL = 3
"""Between an integer and double. Bit 1 of `Conversion.detail`: the integer is unsigned."""
DAYS = 4
"""`Conversion.detail` units of time per day: multiply, or divide if the target is narrower."""

_DAY_UNITS = {"s": 86_400, "ms": 86_400_000}
_DATE64 = pa.date64()


class Conversion(NamedTuple):
    """How one kind of cell becomes another."""

    kind: int
    detail: int = 0
    exact: bool = True
    """False if some values of the source do not fit the target. They must be found and refused."""


def is_widening(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether ``target`` is another type that holds every value of ``source``, and rows need not be decoded for it.

    >>> is_widening(pa.int32(), pa.int64()), is_widening(pa.int64(), pa.int32())
    (True, False)
    """
    found = conversion(source, target)
    return source != target and found is not None and found.exact


def conversion(source: pa.DataType, target: pa.DataType) -> Conversion | None:
    """Return how cells of ``source`` become cells of ``target``, or None if they cannot.

    The reverse of a widening is possible while values fit: a running query may have been planned with the narrow type.
    """
    if source == target:
        return Conversion(COPY)
    widened = _widened(source, target)
    if widened is not None:
        return widened
    back = _widened(target, source)
    if back is None:
        return None
    if back.kind == COPY:  # fewer digits cannot be checked cheaply; larger strings have the same bytes
        return None if pa.types.is_decimal(source) else Conversion(COPY, 0, False)
    return Conversion(
        back.kind, (back.detail & 1) << 1 | back.detail >> 1 if back.kind == INTEGER else back.detail, False
    )


def _widened(source: pa.DataType, target: pa.DataType) -> Conversion | None:
    is_ = pa.types
    if is_.is_integer(source) and is_.is_integer(target):
        return _wider_integer(source, target)
    if is_.is_integer(source) and source.bit_width < 64 and is_.is_float64(target):
        return Conversion(REAL, int(is_.is_unsigned_integer(source)))
    if is_.is_float32(source) and is_.is_float64(target):
        return Conversion(FLOAT)
    if is_.is_decimal128(source) and is_.is_decimal128(target):
        return Conversion(COPY) if source.scale == target.scale and source.precision < target.precision else None
    if is_.is_date32(source):
        if target == _DATE64:
            return Conversion(DAYS, _DAY_UNITS["ms"])
        if is_.is_timestamp(target) and target.tz is None and target.unit in _DAY_UNITS:
            return Conversion(DAYS, _DAY_UNITS[target.unit])
        return None
    if is_.is_dictionary(source) and not is_.is_nested(source.value_type):
        return Conversion(COPY) if source.value_type == target else _widened(source.value_type, target)
    text = (is_.is_large_string(target) or is_.is_string_view(target)) and is_.is_string(source)
    blob = (is_.is_large_binary(target) or is_.is_binary_view(target)) and is_.is_binary(source)
    return Conversion(COPY) if text or blob else None


def _wider_integer(source: pa.DataType, target: pa.DataType) -> Conversion | None:
    before, after = pa.types.is_unsigned_integer(source), pa.types.is_unsigned_integer(target)
    if source.bit_width >= target.bit_width or (after and not before):
        return None
    return Conversion(INTEGER, before | after << 1)
