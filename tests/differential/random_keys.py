"""Random key columns: each value has one canonical form, so that keys of two types can be compared without the library.

Numbers of all sorts are Python's integers (of the finest unit), texts and bytes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["KeyColumnKind", "random_key_kind"]

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1, "day": 86_400 * 10**9}


@dataclass(frozen=True)
class KeyColumnKind:
    """A type of R's key column, one of the stream's for it, and the values both draw from."""

    ours: pa.DataType
    theirs: pa.DataType
    pool: tuple[Any, ...]
    """Canonical values that R's type can hold."""
    foreign: tuple[Any, ...]
    """Canonical values of the stream alone."""

    def fits(self, value: Any, kind: pa.DataType) -> bool:
        """Say whether a type can hold a canonical value."""
        if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            return self.fits(value, kind.value_type)
        if isinstance(kind, pa.BaseExtensionType):
            return self.fits(value, kind.storage_type)
        if pa.types.is_integer(kind):
            info = np.iinfo(kind.to_pandas_dtype())
            return bool(info.min <= value <= info.max)
        if pa.types.is_decimal(kind):
            return abs(value) < 10**kind.precision
        if pa.types.is_temporal(kind):
            grain = _NANOSECONDS["day" if pa.types.is_date(kind) else _unit(kind)]
            unit, bits = _NANOSECONDS[_unit(kind)], kind.bit_width - 1
            return value % grain == 0 and -(1 << bits) <= value // unit < 1 << bits
        return True

    def array(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        """Write canonical values, or None, as a type that holds them."""
        if pa.types.is_dictionary(kind):
            words = sorted({value for value in values if value is not None})
            words = words or [value for value in self.pool if self.fits(value, kind.value_type)][:1]
            place = {word: at for at, word in enumerate(words)}
            indices = pa.array([None if value is None else place[value] for value in values], kind.index_type)
            return pa.DictionaryArray.from_arrays(indices, self.array(words, kind.value_type))
        if pa.types.is_run_end_encoded(kind):
            ends = pa.array(range(1, len(values) + 1), kind.run_end_type)
            return pa.RunEndEncodedArray.from_arrays(ends, self.array(values, kind.value_type))
        if isinstance(kind, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(kind, self.array(values, kind.storage_type))
        if pa.types.is_decimal(kind):
            return _unscaled(values, kind)
        if pa.types.is_temporal(kind):
            unit = _NANOSECONDS[_unit(kind)]
            ticks = [None if value is None else value // unit for value in values]
            return pa.array(ticks, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return pa.array([None if value is None else value.decode() for value in values], kind)
        if pa.types.is_boolean(kind):
            return pa.array([None if value is None else bool(value) for value in values], kind)
        return pa.array(values, kind)


def _unit(kind: pa.DataType) -> str:
    if pa.types.is_date32(kind):
        return "day"
    return "ms" if pa.types.is_date64(kind) else str(kind.unit)


def _unscaled(values: list[Any], kind: pa.DataType) -> pa.Array:
    width = kind.bit_width // 8
    data = b"".join((value or 0).to_bytes(width, "little", signed=True) for value in values)
    valid = pa.py_buffer(
        np.packbits(np.array([value is not None for value in values], bool), bitorder="little").tobytes()
    )
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(data)])


def random_key_kind(rng: Random, size: int) -> KeyColumnKind:
    """Draw a kind with about ``size`` different values."""
    kind = rng.choice([_integers, _integers, _booleans, _texts, _texts, _bytes, _times, _times, _decimals])(rng, size)
    ours, theirs = (_encoded(side, rng) for side in (kind.ours, kind.theirs))
    return KeyColumnKind(ours, theirs, kind.pool, kind.foreign)


def _encoded(kind: pa.DataType, rng: Random) -> pa.DataType:
    draw = rng.random()
    if draw < 0.08:
        return pa.dictionary(pa.int32(), kind)
    if draw < 0.12:
        return pa.run_end_encoded(pa.int32(), kind)
    return kind


def _integers(rng: Random, size: int) -> KeyColumnKind:
    kinds = [
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.int64(),
        pa.uint8(),
        pa.uint16(),
        pa.uint32(),
        pa.uint64(),
    ]
    ours, theirs = rng.choice(kinds), rng.choice(kinds)
    theirs = ours if rng.random() < 0.6 else theirs
    mine, other = (np.iinfo(kind.to_pandas_dtype()) for kind in (ours, theirs))
    low, high = int(mine.min), int(mine.max)
    some = {low, high, 0, 1, *(min(high, max(low, n * 7 - size)) for n in range(size))}
    some |= {rng.randint(low, high) for _ in range(min(size, 20))}
    least, most = int(other.min), int(other.max)
    return KeyColumnKind(
        ours,
        theirs,
        tuple(some),
        (least, most, *(rng.randint(max(least, -(10**4)), min(most, 10**4)) for _ in range(9))),
    )


def _booleans(rng: Random, size: int) -> KeyColumnKind:
    return KeyColumnKind(pa.bool_(), pa.bool_(), (0, 1), (1,))


def _texts(rng: Random, size: int) -> KeyColumnKind:
    kinds = [pa.string(), pa.large_string(), pa.string_view()]
    pool = {"", "\0", "ä€😀", *(f"key {n}" * rng.choice([1, 1, 1, 9]) for n in range(size))}
    return KeyColumnKind(
        rng.choice(kinds),
        rng.choice(kinds),
        tuple(text.encode() for text in sorted(pool)),
        (b"absent", b"key", b"key 1 "),
    )


def _bytes(rng: Random, size: int) -> KeyColumnKind:
    if rng.random() < 0.3:
        width = rng.choice([1, 3, 16])
        pool = {bytes(rng.randrange(256) for _ in range(width)) for _ in range(size)}
        kind = pa.uuid() if width == 16 and rng.random() < 0.3 else pa.binary(width)
        return KeyColumnKind(kind, kind, tuple(sorted(pool)), (b"\0" * width,))
    kinds = [pa.binary(), pa.large_binary(), pa.binary_view()]
    pool = {b"", b"\0", b"\0\0", *(bytes([n % 251, n // 251]) * rng.choice([1, 4, 20]) for n in range(size))}
    return KeyColumnKind(rng.choice(kinds), rng.choice(kinds), tuple(sorted(pool)), (b"\xff\xfe", b"\0" * 40))


def _times(rng: Random, size: int) -> KeyColumnKind:
    sort = rng.choice(["timestamp", "timestamp", "date", "duration", "time"])
    zone = rng.choice([None, "UTC", "Europe/Berlin"])
    made = {
        "timestamp": lambda unit: pa.timestamp(unit, zone and rng.choice([zone, "UTC"])),
        "date": lambda unit: pa.date32() if unit in ("s", "ms") else pa.date64(),
        "duration": pa.duration,
        "time": lambda unit: pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit),
    }[sort]
    ours = made(rng.choice(["s", "ms", "us", "ns"]))
    theirs = ours if rng.random() < 0.5 else made(rng.choice(["s", "ms", "us", "ns"]))
    sides = []
    for kind in (ours, theirs):
        unit = _NANOSECONDS[_unit(kind)]
        day = _NANOSECONDS["day"]
        ticks = np.iinfo(np.int32 if kind.bit_width == 32 else np.int64)
        low, high = int(ticks.min) * unit, int(ticks.max) * unit
        if sort == "time":
            low, high = 0, day - unit
        grain = day if sort == "date" else max(unit, 10**9) if rng.random() < 0.7 else unit
        some = {n * grain for n in range(-size // 2, size // 2)} | {low // grain * grain + grain, high // grain * grain}
        some |= {low, high} if sort not in ("date", "time") or pa.types.is_date32(kind) else set()
        sides.append(tuple(sorted(n for n in some if low <= n <= high and n % unit == 0)))
    return KeyColumnKind(ours, theirs, sides[0], sides[1])


def _decimals(rng: Random, size: int) -> KeyColumnKind:
    scale = rng.choice([0, 2, 5])

    def made(digits: int) -> pa.DataType:
        wide = [pa.decimal128, pa.decimal256] if digits <= 38 else [pa.decimal256]
        if digits <= 9:
            wide.append(pa.decimal32)
        if digits <= 18:
            wide.append(pa.decimal64)
        return rng.choice(wide)(digits, scale)

    digits = rng.choice([6, 9, 18, 19, 30, 38, 60])
    ours = made(digits)
    theirs = ours if rng.random() < 0.6 else made(rng.choice([9, 18, 38, 60]))
    most, others = 10**digits - 1, 10**theirs.precision - 1
    pool = {0, 1, -1, most, -most, *(n * 13 - size for n in range(size)), *(rng.randint(-most, most) for _ in range(9))}
    foreign = (others, -others, *(rng.randint(-others, others) for _ in range(5)))
    return KeyColumnKind(ours, theirs, tuple(sorted(n for n in pool if abs(n) <= most)), foreign)
