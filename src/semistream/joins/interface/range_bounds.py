"""Converts the bounds of a range, of any type in the stream, to values of R's key.

A low bound is rounded up to the next value that R's key can have, and a high bound is rounded down. A bound outside of
all values of the key's type has a *side*: -1 if it is below them, 1 if it is above. NaN is above all numbers, as in
Spark, PostgreSQL and DuckDB. Comparisons use the exact values: an integer is never rounded to a float.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from semistream.core.arrays import Bools, Ints
from semistream.core.compiled import frozen, kernel
from semistream.relation.keys.decimals import decimal_of
from semistream.relation.keys.key_columns import plain_type
from semistream.relation.keys.key_kinds import tick_kind, tick_nanoseconds

__all__ = ["Bounds", "are_ordered", "read_bounds"]

_WIDEST = 76
"""Maximum digits of Arrow decimals."""


class Bounds(NamedTuple):
    """Bounds of tuples as values of R's key."""

    values: pa.Array
    """Values of the key's type; undefined where there is a side, or no bound."""
    side: NDArray[np.int8]
    """-1 or 1 where a bound is below or above all values of the key's type, else 0."""
    present: Bools
    """Where a bound is not NULL."""


def are_ordered(theirs: pa.DataType, ours: pa.DataType) -> bool:
    """Return whether values of a bound's plain type can be compared with values of the key's type.

    >>> are_ordered(pa.float64(), pa.int32()), are_ordered(pa.float64(), pa.decimal128(9, 2))
    (True, False)
    """
    if theirs == ours or pa.types.is_null(theirs):
        return True
    if pa.types.is_integer(ours) or pa.types.is_decimal(ours):
        # Arrow supports few computations on decimals of a negative scale.
        numbers = pa.types.is_integer(theirs) or (pa.types.is_decimal(theirs) and min(theirs.scale, _scale(ours)) >= 0)
        return bool(numbers or (pa.types.is_floating(theirs) and pa.types.is_integer(ours)))
    kinds = {tick_kind(theirs), tick_kind(ours)}
    # A time with a zone cannot be compared with a local time, nor with a day, whose begin depends on the zone.
    zones = bool(getattr(theirs, "tz", None)) == bool(getattr(ours, "tz", None))
    return "" not in kinds and zones and (len(kinds) == 1 or kinds == {"date", "timestamp"})


def read_bounds(array: pa.Array, ours: pa.DataType, *, low: bool) -> Bounds:
    """Read bounds of any type that `are_ordered` with the key's; ``low`` bounds are rounded up, others down."""
    array, theirs = _plain(array), plain_type(array.type)
    present: Bools = array.is_valid().to_numpy(zero_copy_only=False)
    if theirs == ours or pa.types.is_null(theirs):
        values = array if theirs == ours else pa.nulls(len(array), ours)
        return Bounds(values, np.zeros(len(array), np.int8), present)
    if pa.types.is_floating(theirs):
        values, side = _of_floats(array, ours, low)
    elif tick_kind(theirs):
        values, side = _of_ticks(array, ours, low)
    elif pa.types.is_integer(theirs) and pa.types.is_integer(ours):
        values, side = _of_integers(array, ours)
    else:
        values, side = _of_decimals(array, ours, low)
    side[~present] = 0
    return Bounds(values, side, present)


def _of_integers(array: pa.Array, ours: pa.DataType) -> tuple[pa.Array, NDArray[np.int8]]:
    values, limits = _words(array), np.iinfo(ours.to_pandas_dtype())
    theirs = np.iinfo(values.dtype)
    side = np.zeros(values.size, np.int8)
    # Skip a limit that their type cannot represent: none of its values exceeds it.
    if theirs.max > limits.max:
        side[values > limits.max] = 1
    if theirs.min < limits.min:
        side[values < limits.min] = -1
    return pa.array(np.where(side == 0, values, 0).astype(limits.dtype), ours), side


def _of_floats(array: pa.Array, ours: pa.DataType, low: bool) -> tuple[pa.Array, NDArray[np.int8]]:
    values = array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    values, limits = np.ceil(values) if low else np.floor(values), np.iinfo(ours.to_pandas_dtype())
    # These limits are powers of two, which floats represent exactly for every width.
    above, below = ~(values < float(int(limits.max) + 1)), values < float(limits.min)
    side = np.where(above, 1, np.where(below, -1, 0)).astype(np.int8)
    return pa.array(np.where(side == 0, values, 0.0).astype(limits.dtype), ours), side


def _of_ticks(array: pa.Array, ours: pa.DataType, low: bool) -> tuple[pa.Array, NDArray[np.int8]]:
    values = _words(array).astype(np.int64)
    width = np.dtype(f"<i{ours.bit_width // 8}")
    limits = np.iinfo(width)
    theirs, tick = tick_nanoseconds(array.type), tick_nanoseconds(ours)
    if theirs >= tick:
        factor = theirs // tick
        side = np.where(values > limits.max // factor, 1, np.where(values < -(-limits.min // factor), -1, 0))
        values = np.where(side == 0, values, 0) * factor
    else:
        values, rest = np.divmod(values, tick // theirs)
        values += low & (rest != 0)
        side = np.where(values > limits.max, 1, np.where(values < limits.min, -1, 0))
    words = np.where(side == 0, values, 0).astype(width)
    return pa.Array.from_buffers(ours, words.size, [None, pa.py_buffer(words)], 0), side.astype(np.int8)


def _of_decimals(array: pa.Array, ours: pa.DataType, low: bool) -> tuple[pa.Array, NDArray[np.int8]]:
    """Read numbers if the bound, the key or both are decimals."""
    scale = _scale(array.type)
    if pa.types.is_decimal(ours):
        most, own = 10**ours.precision - 1, ours.scale
        least = -most
    else:
        limits, own = np.iinfo(ours.to_pandas_dtype()), 0
        most, least = int(limits.max), int(limits.min)
    kind = pa.decimal256(_WIDEST, scale)
    values = array.cast(kind).fill_null(decimal_of(0, kind))
    side = np.zeros(len(values), np.int8)
    side[_differs(pc.greater, values, kind, _rescaled(most, own, scale))] = 1
    side[_differs(pc.less, values, kind, -_rescaled(-least, own, scale))] = -1
    limbs = _words(pc.if_else(pa.array(side == 0), values, decimal_of(0, kind))).view("<u4").reshape(-1, 8)
    words = np.empty(side.size, np.int64)
    _rescale(frozen(limbs), max(scale - own, 0), 10 ** max(own - scale, 0), low, words)
    if pa.types.is_integer(ours):
        return pa.array(words.view(np.uint64) if limits.min == 0 else words).cast(ours), side
    return pa.Array.from_buffers(pa.decimal128(18, own), words.size, [None, _wide(words)]).cast(ours), side


@kernel
def _rescale(limbs: NDArray[np.uint32], digits: int, factor: int, low: bool, out: Ints) -> None:
    """Write 256-bit numbers without their last ``digits``, rounded up if ``low``, or multiplied by ``factor``.

    The results fit into 64 bits. Arrow's own division of such decimals gives wrong results for some (seen in release
    26.0).
    """
    part = np.empty(8, np.uint64)
    for i in range(out.size):
        negative = limbs[i, 7] >> np.uint32(31) != 0
        carry = np.uint64(1)
        for at in range(8):
            part[at] = np.uint64(limbs[i, at])
            if negative:
                part[at] = (part[at] ^ np.uint64(0xFFFFFFFF)) + carry
                carry = part[at] >> np.uint64(32)
                part[at] &= np.uint64(0xFFFFFFFF)
        left, inexact = digits, False
        while left > 0:
            step = min(left, 9)
            left -= step
            divisor = np.uint64(1)
            for _ in range(step):
                divisor *= np.uint64(10)
            rest = np.uint64(0)
            for at in range(7, -1, -1):
                value = (rest << np.uint64(32)) | part[at]
                part[at] = value // divisor
                rest = value % divisor
            inexact = inexact or rest != 0
        magnitude = (part[0] | (part[1] << np.uint64(32))) * np.uint64(factor)
        if inexact and low != negative:
            magnitude += np.uint64(1)
        out[i] = -np.int64(magnitude) if negative else np.int64(magnitude)


def _wide(words: Ints) -> pa.Buffer:
    """Return numbers extended to 128 bits."""
    return pa.py_buffer(np.stack([words, words >> 63], axis=1).reshape(-1))


def _scale(kind: pa.DataType) -> int:
    return int(kind.scale) if pa.types.is_decimal(kind) else 0


def _rescaled(unscaled: int, own: int, scale: int) -> int:
    """Convert a non-negative number from scale ``own`` to ``scale``, rounded down."""
    factor: int = 10 ** abs(scale - own)
    return unscaled * factor if scale >= own else unscaled // factor


def _differs(compare: Any, values: pa.Array, kind: pa.DataType, unscaled: int) -> Bools:
    """Compare with a limit; no value exceeds a limit with more digits than decimals can have."""
    if abs(unscaled) >= 10**_WIDEST:
        return np.zeros(len(values), np.bool_)
    found: Bools = compare(values, decimal_of(unscaled, kind)).to_numpy(zero_copy_only=False)
    return found


def _words(array: pa.Array) -> NDArray[Any]:
    """Return the numbers of an array of integers or ticks, or the words of decimals; undefined where it is NULL."""
    width = array.type.bit_width // 8
    kind = array.type.to_pandas_dtype() if pa.types.is_integer(array.type) else f"<i{min(width, 8)}"
    per_row = width // np.dtype(kind).itemsize
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array) * per_row, kind)
    return np.frombuffer(buffer, kind, (array.offset + len(array)) * per_row)[array.offset * per_row :]


def _plain(array: pa.Array) -> pa.Array:
    """Remove dictionary encoding, extension types and run-end encoding."""
    while True:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif isinstance(array, pa.DictionaryArray):
            array = array.dictionary_decode()
        elif isinstance(array, pa.RunEndEncodedArray):
            array = pc.run_end_decode(array)
        else:
            return array
