"""Segments: sets of up to 1,024 ascending keys, in 1 to 9 bits a key, and the compiled code that reads and writes them.

A segment is stored in one of three ways, whichever is smallest. All distances are from its first key:

* *Bits*: the distances are less than twice the number of keys. One bit for each distance. No key is mistaken.
* *Distances*: each distance is cut into a high part and up to six low bits. The high parts are Elias-Fano coded, in
  two to three bits a key: key i sets bit ``high + i``. No key is mistaken.
* *Hashes*: the keys are far apart. Like distances, but with a hash of each key instead of its distance. A hash has 104
  possible values per key, so one in 104 absent keys is mistaken for a present one.

Low bits are stored plane by plane, the most significant first. A reader may leave out the last planes: that makes the
set smaller, and more absent keys are mistaken. A present key is found in every case.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Bools, Ints
from semistream.core.compiled import Int, inner_kernel, kernel

__all__ = [
    "MOST_LOWER",
    "MOST_UPPER",
    "PLANES",
    "SEGMENT_KEYS",
    "Segments",
    "Words",
    "find_keys",
    "keep_planes",
    "pack_segments",
]

Words = NDArray[np.uint64]

SEGMENT_KEYS = 1024
PLANES = 6
"""Maximum low bits of a key."""
_CELLS, _CELLS_OF = 13, 8
"""Possible high parts of hashes per key, as a fraction. With 6 low bits, a hash has 13/8 * 2**6 = 104 values per key,
so 0.96 % of absent keys are mistaken."""
BITS, DISTANCES, HASHES = 0, 1, 2
"""How a segment is stored."""
MOST_UPPER = SEGMENT_KEYS * 3 // 64 + 1
"""Maximum words of a segment's high parts, or of its bits."""
MOST_LOWER = SEGMENT_KEYS * PLANES // 64
"""Maximum words of a segment's low bits."""
_ONE, _ZERO = np.uint64(1), np.uint64(0)
_WORD, _IN_WORD = np.uint64(6), np.uint64(63)
_M1, _M2, _M4 = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333), np.uint64(0x0F0F0F0F0F0F0F0F)
_MANY = np.uint64(0x0101010101010101)
_P1, _P2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)


class Segments(NamedTuple):
    """Segments in memory."""

    first: Ints
    """The first key of each, ascending."""
    kind: NDArray[np.uint8]
    """How it is stored, and from bit 2 on the number of its low bits."""
    upper_at: NDArray[np.uint32]
    """Where its words begin in ``upper``; one more item for the end."""
    lower_at: NDArray[np.uint32]
    """Where its words begin in ``lower``."""
    upper: Words
    lower: Words

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self)


@inner_kernel
def _ones(word: np.uint64) -> np.uint64:
    """Return the number of bits that are set."""
    word = word - ((word >> _ONE) & _M1)
    word = (word & _M2) + ((word >> np.uint64(2)) & _M2)
    word = (word + (word >> np.uint64(4))) & _M4
    return (word * _MANY) >> np.uint64(56)


@inner_kernel
def _hashed(key: np.uint64, count: Int) -> np.uint64:
    """Return a hash of a key, below the number of values of a segment of ``count`` keys."""
    mixed = (key ^ (key >> np.uint64(32))) * _P1
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _P2
    mixed ^= mixed >> np.uint64(32)
    values = np.uint64(count * _CELLS // _CELLS_OF) << np.uint64(PLANES)
    return ((mixed >> np.uint64(32)) * values) >> np.uint64(32)


@inner_kernel
def _words_up_to(last: np.uint64) -> Int:
    """Return the number of words that have the bit ``last``."""
    return np.int64(last >> _WORD) + 1


@kernel
def pack_segments(keys: Ints, shapes: Words, upper: Words, lower: Words) -> tuple[Int, Int]:
    """Pack ascending distinct keys into segments; return the words used of ``upper`` and ``lower``, which are zeros.

    ``shapes`` gets, for each segment: its keys, from bit 16 its kind, from bit 24 its low bits, from bit 32 its words
    in ``upper``.
    """
    upper_end, lower_end = 0, 0
    values = np.empty(SEGMENT_KEYS, np.uint64)
    for segment in range(shapes.size):
        begin = segment * SEGMENT_KEYS
        count = min(SEGMENT_KEYS, keys.size - begin)
        base = np.uint64(keys[begin])
        span = np.uint64(keys[begin + count - 1]) - base
        kind, low = HASHES, PLANES
        if span < np.uint64(2 * count):
            kind, low = BITS, 0
        elif span < np.uint64(count * _CELLS // _CELLS_OF) << np.uint64(PLANES):
            kind, low = DISTANCES, 0
            while span >> np.uint64(low) >= np.uint64(2 * count):
                low += 1
        for i in range(count):
            key = np.uint64(keys[begin + i])
            values[i] = _hashed(key, count) if kind == HASHES else key - base
        if kind == HASHES:
            values[:count].sort()
        last = values[count - 1] >> np.uint64(low)
        words = _words_up_to(last + (_ZERO if kind == BITS else np.uint64(count - 1)))
        each = (count + 63) // 64
        for i in range(count):
            at = values[i] >> np.uint64(low)
            if kind != BITS:
                at += np.uint64(i)
            upper[upper_end + np.int64(at >> _WORD)] |= _ONE << (at & _IN_WORD)
            for plane in range(low):
                bit = (values[i] >> np.uint64(low - 1 - plane)) & _ONE
                lower[lower_end + plane * each + (i >> 6)] |= bit << np.uint64(i & 63)
        shapes[segment] = np.uint64(count | kind << 16 | low << 24 | words << 32)
        upper_end += words
        lower_end += each * low
    return upper_end, lower_end


@kernel
def keep_planes(source: Words, shapes: Words, planes: int, target: Words, ends: NDArray[np.uint32]) -> Int:
    """Copy the first planes of each segment's low bits, and write where they end; return the words copied."""
    read, written = np.int64(0), np.int64(0)
    for segment in range(shapes.size):
        count = np.int64(shapes[segment] & np.uint64(0xFFFF))
        low = np.int64((shapes[segment] >> np.uint64(24)) & np.uint64(0xFF))
        each = (count + 63) // 64
        kept = (low if low < planes else np.int64(planes)) * each
        target[written : written + kept] = source[read : read + kept]
        read += low * each
        written += kept
        ends[segment] = written
    return written


@inner_kernel
def _after_zeros(words: Words, begin: Int, end: Int, zeros: np.uint64) -> Int:
    """Return the position of the bit after ``zeros`` zeros, counted from word ``begin``; -1 if there are fewer."""
    if zeros == _ZERO:
        return 0
    for at in range(begin, end):
        rest = ~words[at]
        here = _ones(rest)
        if zeros <= here:
            for _ in range(np.int64(zeros) - 1):
                rest &= rest - _ONE
            return (at - begin) * 64 + np.int64(_ones((rest & (~rest + _ONE)) - _ONE)) + 1
        zeros -= here
    return -1


@kernel
def find_keys(s: Segments, last_count: int, planes: int, keys: Ints, found: Bools) -> None:
    """Write for each key whether it may be in the set; False means that it is not.

    ``last_count``: keys in the last segment. ``planes``: the planes of low bits that were kept.
    """
    segments = s.first.size
    for i in range(keys.size):
        found[i] = False
        low_at, high_at = 0, segments  # the last segment whose first key is not above the key
        while low_at < high_at:
            middle = (low_at + high_at) >> 1
            if s.first[middle] <= keys[i]:
                low_at = middle + 1
            else:
                high_at = middle
        at = low_at - 1
        if at < 0:
            continue
        count = last_count if at == segments - 1 else SEGMENT_KEYS
        kind, low = np.int64(s.kind[at]) & 3, np.int64(s.kind[at]) >> 2
        begin, end = np.int64(s.upper_at[at]), np.int64(s.upper_at[at + 1])
        key = np.uint64(keys[i])
        value = _hashed(key, count) if kind == HASHES else key - np.uint64(s.first[at])
        high = value >> np.uint64(low)
        if high >= np.uint64((end - begin) * 64):
            continue
        if kind == BITS:
            found[i] = (s.upper[begin + np.int64(high >> _WORD)] >> (high & _IN_WORD)) & _ONE != _ZERO
            continue
        place = _after_zeros(s.upper, begin, end, high)
        if place < 0:
            continue
        kept, each = low if low < planes else np.int64(planes), (count + 63) // 64
        wanted = (value & ((_ONE << np.uint64(low)) - _ONE)) >> np.uint64(low - kept)
        while place < (end - begin) * 64 and (s.upper[begin + (place >> 6)] >> np.uint64(place & 63)) & _ONE != _ZERO:
            number = place - np.int64(high)
            bits = _ZERO
            for plane in range(kept):
                word = s.lower[np.int64(s.lower_at[at]) + plane * each + (number >> 6)]
                bits = bits << _ONE | (word >> np.uint64(number & 63)) & _ONE
            if bits == wanted:
                found[i] = True
                break
            place += 1
