"""A read-only table from key64 to the place of a row, in arrays that can be memory-mapped files.

Two layouts. *Direct*: the place of key ``k`` is at ``k - low``; used if the keys are integers of a narrow range.
*Hashed*: open addressing with linear probing, two thirds full.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from semistream.core.arrays import Bools, Ints, Slots
from semistream.core.compiled import kernel

__all__ = ["KeyTable", "TableLayout", "fill_table", "find_places", "layout_for"]

_ABSENT = -1
_FULL = 1.5
"""Slots per key of a hashed table; with fewer, probes become long."""
_DIRECT = 4
"""A direct table is used if it has at most this many slots per key: then it is no larger than a hashed one."""
_GOLDEN = 0x9E3779B97F4A7C15


class TableLayout(NamedTuple):
    """Layout, number of slots, and first key of a table."""

    direct: bool
    slots: int
    low: int
    """The lowest key; only for a direct table."""

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self.slots * (4 if self.direct else 12)


class KeyTable(NamedTuple):
    """The arrays of a table."""

    layout: TableLayout
    keys: Ints
    """Key of each slot; empty if the table is direct."""
    places: Slots
    """Place of each slot's row, -1 where there is none."""


def layout_for(count: int, low: int, high: int, *, exact: bool) -> TableLayout:
    """Return the layout for ``count`` keys from ``low`` to ``high``; ``exact`` if key64 is the key itself.

    >>> layout_for(1000, 5, 1004, exact=True)
    TableLayout(direct=True, slots=1000, low=5)
    >>> layout_for(1000, 0, 10**12, exact=True)
    TableLayout(direct=False, slots=1501, low=0)
    """
    span = high - low + 1
    if exact and count > 0 and span <= _DIRECT * count:
        return TableLayout(True, span, low)
    return TableLayout(False, int(count * _FULL) + 1, 0)


@kernel
def _fill(direct: bool, low: int, keys: Ints, places: Slots, new: Ints, at: Ints) -> None:
    slots = np.uint64(places.size)
    for i in range(new.size):
        if direct:
            places[new[i] - low] = at[i]
            continue
        mixed = np.uint64(new[i]) * np.uint64(_GOLDEN)
        slot = np.int64(((mixed >> np.uint64(32)) * slots) >> np.uint64(32))
        while places[slot] >= 0:
            slot = np.int64(0) if slot + 1 == places.size else slot + np.int64(1)
        keys[slot], places[slot] = new[i], at[i]


@kernel
def _find(direct: bool, low: int, keys: Ints, places: Slots, asked: Ints, valid: Bools, found: Slots) -> np.int64:
    """Write the place of each key, -1 if the key is absent or not valid; return the number of keys found."""
    slots, hits = np.uint64(places.size), np.int64(0)
    for i in range(asked.size):
        place = np.int32(-1)
        if valid[i]:
            key = asked[i]
            if direct:
                if key >= low and np.uint64(key) - np.uint64(low) < slots:
                    place = places[key - low]
            else:
                mixed = np.uint64(key) * np.uint64(_GOLDEN)
                slot = np.int64(((mixed >> np.uint64(32)) * slots) >> np.uint64(32))
                while places[slot] >= 0:
                    if keys[slot] == key:
                        place = places[slot]
                        break
                    slot = np.int64(0) if slot + 1 == places.size else slot + np.int64(1)
        found[i] = place
        if place >= 0:
            hits += np.int64(1)
    return hits


def fill_table(table: KeyTable, keys: Ints, places: Ints) -> None:
    """Add distinct keys and the places of their rows; all places of a new table are -1."""
    _fill(table.layout.direct, table.layout.low, table.keys, table.places, keys, places)


def find_places(table: KeyTable, keys: Ints, valid: Bools) -> tuple[Slots, int]:
    """Return the place of each key's row, -1 if there is none, and the number of keys found."""
    found = np.empty(keys.size, np.int32)
    hits = _find(table.layout.direct, table.layout.low, table.keys, table.places, keys, valid, found)
    return found, int(hits)
