"""A read-only table from a key and a time to the place of the row that was valid then, in arrays that can be files.

It has all rows of a history, in the order of key and begin. A binary search finds the last row of a key that begins at
or before a time. That row is valid at the time if it has not ended. So a key needs no chain, and a table costs 28 bytes
per row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from semistream.core.arrays import Bools, Ints, Slots
from semistream.core.compiled import frozen, kernel

__all__ = ["ROW_BYTES", "VersionTable", "find_versions"]

ROW_BYTES = 28
"""Bytes of the table per row."""


class VersionTable(NamedTuple):
    """The arrays of a table; rows are in the order of key and begin."""

    keys: Ints
    begins: Ints
    """The first moment of each row."""
    lasts: Ints
    """The last moment of each row."""
    places: Slots
    """Where each row starts."""


@kernel
def _find(
    keys: Ints, begins: Ints, lasts: Ints, places: Slots, asked: Ints, moments: Ints, valid: Bools, found: Slots
) -> np.int64:
    """Write the place of each key's row at its moment, -1 if there is none; return the number of rows found."""
    hits = np.int64(0)
    for i in range(asked.size):
        place = np.int32(-1)
        if valid[i]:
            low, high = np.int64(0), np.int64(keys.size)
            while low < high:
                middle = (low + high) >> np.int64(1)
                if keys[middle] < asked[i] or (keys[middle] == asked[i] and begins[middle] <= moments[i]):
                    low = middle + np.int64(1)
                else:
                    high = middle
            at = low - np.int64(1)
            if at >= 0 and keys[at] == asked[i] and lasts[at] >= moments[i]:
                place = places[at]
        found[i] = place
        if place >= 0:
            hits += np.int64(1)
    return hits


def find_versions(table: VersionTable, keys: Ints, moments: Ints, valid: Bools) -> tuple[Slots, int]:
    """Return the place of the row of each key that was valid at its moment, or -1, and the number of rows found."""
    found = np.empty(keys.size, np.int32)
    return found, int(_find(*table, frozen(keys), frozen(moments), frozen(valid), found))
