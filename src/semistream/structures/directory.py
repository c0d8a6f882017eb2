"""An open-addressed hash table of positions in an array of keys that the caller owns.

An entry of 64 bits holds 32 bits of the key's hash and the position plus one; zero is free. The hash bits reject almost
all absent keys without reading the key itself, which is in another cache line. Probing is linear, and deletion shifts
displaced entries back, so there are no tombstones and the table does not slow down with use. It is at most two thirds
full: find, insert and erase take constant time on average, nearly always within one cache line. A table takes
`ENTRY_BYTES` per key.

All functions are compiled and take the table as two arrays, so that a structure can keep them among its own.

Example
-------
>>> import numpy as np
>>> keys = np.array([30, 10, 20])
>>> entries = np.zeros(entries_for(3), np.uint64)
>>> for position in range(3):
...     put(entries, keys, position)
>>> position_at(entries, find(entries, keys, 20)), find(entries, keys, 99) < 0
(2, True)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Ints
from semistream.core.compiled import Int, kernel

__all__ = [
    "ENTRY_BYTES",
    "entries_for",
    "entry_for",
    "entry_of",
    "erase",
    "find",
    "home",
    "mix",
    "position_at",
    "put",
    "repoint",
    "warm",
]

Entries = NDArray[np.uint64]

ENTRY_BYTES = 12
"""Bytes of table for each key it can hold."""

_LOW = np.uint64(0xFFFFFFFF)
_NONE = np.uint64(0)
_HALF = np.uint64(32)


def entries_for(keys: int) -> int:
    """Return the size of a table for ``keys`` keys."""
    return keys + keys // 2 + 1


@kernel
def mix(key: Int) -> np.uint64:
    """Mix the bits of a key (a 64-bit finaliser: two rounds of shift, xor and odd multiply)."""
    x = np.uint64(key)
    x = (x ^ (x >> _HALF)) * np.uint64(0xD6E8FEB86659FD93)
    x = (x ^ (x >> _HALF)) * np.uint64(0xD6E8FEB86659FD93)
    return x ^ (x >> _HALF)


@kernel
def home(hashed: np.uint64, size: int) -> Int:
    """Return the preferred entry of a hash, or of the part of it that the table stores."""
    return np.int64(((hashed >> _HALF) * np.uint64(size)) >> _HALF)


@kernel
def position_at(entries: Entries, at: Int) -> Int:
    """Return the position that an entry in use holds."""
    return np.int64(entries[at] & _LOW) - 1


@kernel
def find(entries: Entries, keys: Ints, key: Int) -> Int:
    """Return the entry of a key.

    If the key is absent, return the free entry for it as ``-1 - entry``.
    """
    hashed = mix(key)
    size = entries.size
    at = home(hashed, size)
    tag = hashed & ~_LOW
    while entries[at] != _NONE:
        entry = entries[at]
        if (entry & ~_LOW) == tag and keys[np.int64(entry & _LOW) - 1] == key:
            return at
        at += 1
        if at == size:
            at = 0
    return -1 - at


@kernel
def entry_of(entries: Entries, key: Int, position: Int) -> Int:
    """Return the entry of a position that is in the table with this key; other positions may have the same key."""
    at = home(mix(key), entries.size)
    while np.int64(entries[at] & _LOW) != position + 1:
        at += 1
        if at == entries.size:
            at = 0
    return at


@kernel
def warm(entries: Entries, keys: Ints, near: Entries) -> None:
    """Read the home entry of each key into ``near``: zero there means that the key is absent.

    The reads are independent of each other, so this pass before many calls of `find` hides most of the memory latency.
    A zero stays valid until the next `put`.
    """
    for i in range(keys.size):
        near[i] = entries[home(mix(keys[i]), entries.size)]


@kernel
def entry_for(key: Int, position: Int) -> np.uint64:
    """Return the entry of a key at a position: the upper half of its hash, and the position plus one."""
    return (mix(key) & ~_LOW) | np.uint64(position + 1)


@kernel
def put(entries: Entries, keys: Ints, position: Int) -> None:
    """Insert ``keys[position]``, which is not in the table yet."""
    at = find(entries, keys, keys[position])
    entries[-1 - at] = entry_for(keys[position], position)


@kernel
def repoint(entries: Entries, at: Int, position: Int) -> None:
    """Point an entry to another position of the same key."""
    entries[at] = (entries[at] & ~_LOW) | np.uint64(position + 1)


@kernel
def erase(entries: Entries, at: Int) -> None:
    """Empty an entry and shift back the entries that it displaced."""
    size = entries.size
    hole = at
    probe = at
    while True:
        probe += 1
        if probe == size:
            probe = 0
        entry = entries[probe]
        if entry == _NONE:
            break
        wish = home(np.uint64(entry), size)
        # the entry may fill the hole unless its home is after the hole, cyclically, up to the probe
        past, gap = probe - wish, probe - hole
        if past < 0:
            past += size
        if gap < 0:
            gap += size
        if past >= gap:
            entries[hole] = entry
            hole = probe
    entries[hole] = _NONE
