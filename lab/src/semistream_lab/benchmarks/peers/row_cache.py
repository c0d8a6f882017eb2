"""An LRU cache of rows in flat arrays.

All stores use it, so that none is slowed down by Python objects.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Ints
from semistream.core.compiled import frozen, kernel

__all__ = ["RowCache"]

OVERHEAD = 8 + 8 + 4 * 4
"""Bytes per entry besides its row: key, time of last use, and up to four slots of the hash table."""


class RowCache:
    """The rows of the most recently requested keys.

    A batch is one call of `find` and one of `keep`. Within a batch, the age of a key is that of its last tuple.

    >>> rows = np.array([b"ab", b"cd", b"ef"], "V2")
    >>> cache = RowCache(2 * (2 + OVERHEAD), "V2")
    >>> cache.keep(np.array([1, 2]), rows[:2], np.array([0, 1]))
    >>> cache.find(np.array([1]), np.array([2])).tolist()
    [0]
    >>> cache.keep(np.array([3]), rows[2:], np.array([2]))
    >>> (cache.find(np.array([1, 2, 3]), np.array([3, 4, 5])) >= 0).tolist()
    [True, False, True]
    """

    def __init__(self, nbytes: int, dtype: Any) -> None:
        self.capacity = max(1, nbytes // (np.dtype(dtype).itemsize + OVERHEAD))
        bits = max(3, int(2 * self.capacity - 1).bit_length())
        self._table = np.zeros(1 << bits, np.int32)
        self._keys = np.zeros(self.capacity, np.int64)
        self._used = np.zeros(self.capacity, np.int64)
        self.rows: NDArray[Any] = np.zeros(self.capacity, dtype)
        self.count = 0

    def find(self, keys: Ints, now: Ints) -> Ints:
        """Return the position of each key's row, or -1; set the last use of found keys to ``now``."""
        places: Ints = _find(self._table, self._keys, self._used, frozen(keys), frozen(now))
        return places

    def keep(self, keys: Ints, rows: NDArray[Any], now: Ints) -> None:
        """Add rows of missing keys; evict the least recently used rows for them."""
        if keys.size > self.capacity:
            newest = np.argpartition(now, keys.size - self.capacity)[-self.capacity :]
            keys, rows, now = keys[newest], rows[newest], now[newest]
        free = self.capacity - self.count
        places = np.arange(self.count, self.count + min(free, keys.size))
        self.count += places.size
        short = keys.size - places.size
        if short > 0:
            # rows just added count as used now, so that their own batch does not evict them
            self._used[places] = np.iinfo(np.int64).max
            oldest = np.argpartition(self._used, short - 1)[:short]
            _remove(self._table, self._keys, oldest)
            places = np.concatenate([places, oldest])
        self._keys[places] = keys
        self._used[places] = now
        self.rows[places] = rows
        _insert(self._table, self._keys, places)


@kernel
def _find(table, keys, used, wanted, now):  # type: ignore[no-untyped-def]
    mask = table.size - 1
    places = np.empty(wanted.size, np.int64)
    for i in range(wanted.size):
        at = _home(wanted[i], mask)
        places[i] = -1
        while table[at] != 0:
            place = table[at] - 1
            if keys[place] == wanted[i]:
                places[i] = place
                used[place] = now[i]
                break
            at = (at + 1) & mask
    return places


@kernel
def _home(key, mask):  # type: ignore[no-untyped-def]
    return np.int64((np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)) & mask


@kernel
def _insert(table, keys, places):  # type: ignore[no-untyped-def]
    mask = table.size - 1
    for place in places:
        at = _home(keys[place], mask)
        while table[at] != 0:
            at = (at + 1) & mask
        table[at] = place + 1


@kernel
def _remove(table, keys, places):  # type: ignore[no-untyped-def]
    """Remove entries, and move later entries of the chain forward so that it has no gap."""
    mask = table.size - 1
    for place in places:
        at = _home(keys[place], mask)
        while table[at] != place + 1:
            at = (at + 1) & mask
        gap, at = at, (at + 1) & mask
        while table[at] != 0:
            home = _home(keys[table[at] - 1], mask)
            if ((at - home) & mask) >= ((at - gap) & mask):
                table[gap] = table[at]
                gap = at
            at = (at + 1) & mask
        table[gap] = 0
