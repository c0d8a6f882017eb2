"""XXH64 as Spark computes it, compiled.

Spark's SQL function ``xxhash64`` hashes one value after another. Each hash is the seed of the next; the first seed is
42. A NULL leaves the hash unchanged. This module computes the same number to the bit. So Spark itself can compute a
row's shard and key, natively and before Python sees the row.

The value is hashed as Spark holds it: four bytes for ``boolean`` (0 or 1), ``tinyint``, ``smallint``, ``int`` and
``date``; eight bytes for ``bigint``, ``timestamp`` (microseconds) and decimals of up to 18 digits (the unscaled value);
the bytes of a string or binary value. For longer decimals it is the unscaled value as the shortest big-endian two's
complement, as written by Java's ``BigInteger.toByteArray``.

Every function here takes a running hash per row and updates it in place. To hash several columns, call one function
after another. ``valid`` is a mask of the rows that are not NULL, or None for all rows.

Example
-------
>>> import numpy as np
>>> running = start(2)
>>> hash_longs(np.array([1, 2], dtype=np.int64), None, running)
>>> running.view(np.int64).tolist()
[-7001672635703045582, -3341702809300393011]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.core.compiled import frozen, kernel

__all__ = ["SPARK_SEED", "hash_bytes", "hash_ints", "hash_longs", "hash_unscaled", "start"]

SPARK_SEED = 42

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_LOW32 = np.uint64(0xFFFFFFFF)
# An empty mask means "all valid": Numba needs one type for the argument.
_ALL = frozen(np.zeros(0, dtype=np.bool_))


@kernel
def _rotate(value: np.uint64, bits: int) -> np.uint64:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@kernel
def _avalanche(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> np.uint64(33))) * _P2
    value = (value ^ (value >> np.uint64(29))) * _P3
    return value ^ (value >> np.uint64(32))


@kernel
def _round(lane: np.uint64, word: np.uint64) -> np.uint64:
    return _rotate(lane + word * _P2, 31) * _P1


@kernel
def _mix_word(running: np.uint64, word: np.uint64) -> np.uint64:
    return _rotate(running ^ _round(np.uint64(0), word), 27) * _P1 + _P4


@kernel
def _mix_half(running: np.uint64, half: np.uint64) -> np.uint64:
    return _rotate(running ^ (half * _P1), 23) * _P2 + _P3


@kernel
def _half_at(data: NDArray[np.uint8], at: int) -> np.uint64:
    half = np.uint64(data[at])
    half |= np.uint64(data[at + 1]) << np.uint64(8)
    half |= np.uint64(data[at + 2]) << np.uint64(16)
    half |= np.uint64(data[at + 3]) << np.uint64(24)
    return half


@kernel
def _word_at(data: NDArray[np.uint8], at: int) -> np.uint64:
    return _half_at(data, at) | (_half_at(data, at + 4) << np.uint64(32))


@kernel
def _of_int(value: np.uint64, seed: np.uint64) -> np.uint64:
    return _avalanche(_mix_half(seed + _P5 + np.uint64(4), value & _LOW32))


@kernel
def _of_long(value: np.uint64, seed: np.uint64) -> np.uint64:
    return _avalanche(_mix_word(seed + _P5 + np.uint64(8), value))


@kernel
def _of_bytes(data: NDArray[np.uint8], begin: int, end: int, seed: np.uint64) -> np.uint64:
    at = begin
    if end - begin >= 32:
        lane1 = seed + _P1 + _P2
        lane2 = seed + _P2
        lane3 = seed
        lane4 = seed - _P1
        while at <= end - 32:
            lane1 = _round(lane1, _word_at(data, at))
            lane2 = _round(lane2, _word_at(data, at + 8))
            lane3 = _round(lane3, _word_at(data, at + 16))
            lane4 = _round(lane4, _word_at(data, at + 24))
            at += 32
        running = _rotate(lane1, 1) + _rotate(lane2, 7) + _rotate(lane3, 12) + _rotate(lane4, 18)
        running = (running ^ _round(np.uint64(0), lane1)) * _P1 + _P4
        running = (running ^ _round(np.uint64(0), lane2)) * _P1 + _P4
        running = (running ^ _round(np.uint64(0), lane3)) * _P1 + _P4
        running = (running ^ _round(np.uint64(0), lane4)) * _P1 + _P4
    else:
        running = seed + _P5
    running += np.uint64(end - begin)
    while at <= end - 8:
        running = _mix_word(running, _word_at(data, at))
        at += 8
    if at <= end - 4:
        running = _mix_half(running, _half_at(data, at))
        at += 4
    while at < end:
        running = _rotate(running ^ (np.uint64(data[at]) * _P5), 11) * _P1
        at += 1
    return _avalanche(running)


@kernel
def _ints(values: NDArray[np.int64], valid: NDArray[np.bool_], running: NDArray[np.uint64]) -> None:
    for i in range(values.size):
        if valid.size == 0 or valid[i]:
            running[i] = _of_int(np.uint64(values[i]), running[i])


@kernel
def _longs(values: NDArray[np.int64], valid: NDArray[np.bool_], running: NDArray[np.uint64]) -> None:
    for i in range(values.size):
        if valid.size == 0 or valid[i]:
            running[i] = _of_long(np.uint64(values[i]), running[i])


@kernel
def _strings(
    data: NDArray[np.uint8],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    valid: NDArray[np.bool_],
    running: NDArray[np.uint64],
) -> None:
    for i in range(running.size):
        if valid.size == 0 or valid[i]:
            running[i] = _of_bytes(data, begins[i], begins[i] + lengths[i], running[i])


@kernel
def _unscaled(data: NDArray[np.uint8], valid: NDArray[np.bool_], running: NDArray[np.uint64]) -> None:
    width = data.shape[1]
    reversed_bytes = np.empty(width, dtype=np.uint8)
    for i in range(running.size):
        if valid.size != 0 and not valid[i]:
            continue
        filler = np.uint8(0xFF) if data[i, width - 1] & 0x80 else np.uint8(0)
        top = width - 1
        # A leading byte is dropped if it only repeats the sign that the next byte's top bit already shows.
        while top > 0 and data[i, top] == filler and (data[i, top - 1] & 0x80) == (filler & 0x80):
            top -= 1
        for j in range(top + 1):
            reversed_bytes[j] = data[i, top - j]
        running[i] = _of_bytes(reversed_bytes, 0, top + 1, running[i])


def start(rows: int) -> NDArray[np.uint64]:
    """Return the running hashes of ``rows`` rows before their first column, which is Spark's seed."""
    return np.full(rows, SPARK_SEED, dtype=np.uint64)


def _mask(valid: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    return _ALL if valid is None or valid.size == 0 else frozen(valid)


def hash_ints(values: NDArray[np.int64], valid: NDArray[np.bool_] | None, running: NDArray[np.uint64]) -> None:
    """Hash the low four bytes of each value, as Spark does for ``int`` and smaller, ``date`` and ``boolean``."""
    _ints(frozen(values), _mask(valid), running)


def hash_longs(values: NDArray[np.int64], valid: NDArray[np.bool_] | None, running: NDArray[np.uint64]) -> None:
    """Hash eight bytes per value, as Spark does for ``bigint``, ``timestamp`` and decimals of up to 18 digits."""
    _longs(frozen(values), _mask(valid), running)


def hash_bytes(
    data: NDArray[np.uint8],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    valid: NDArray[np.bool_] | None,
    running: NDArray[np.uint64],
) -> None:
    """Hash ``lengths[i]`` bytes from ``begins[i]`` of ``data``, as Spark does for ``string`` and ``binary``."""
    _strings(frozen(data), frozen(begins), frozen(lengths), _mask(valid), running)


def hash_unscaled(data: NDArray[np.uint8], valid: NDArray[np.bool_] | None, running: NDArray[np.uint64]) -> None:
    """Hash little-endian two's complement numbers, one per row of ``data``: decimals of more than 18 digits."""
    _unscaled(frozen(data), _mask(valid), running)
