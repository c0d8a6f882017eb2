"""Finds rows of `hot_rows.HotRows` for keys that are all known, without reading R and without a window.

Numbering a window and lifting its pins scans all places. A look-up of a few cached keys must not cost that much: these
passes touch only the places of the given keys.
"""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Bools, Ints, Slots
from semistream.core.compiled import frozen, kernel
from semistream.structures.directory import find, position_at
from semistream.structures.hot.admission import MOST
from semistream.structures.hot.hot_row_kernels import KNOWN, PINNED, SEEN, UNKNOWN, HotTable
from semistream.structures.hot.hot_rows import HotRows

__all__ = ["known_rows"]


@kernel
def _places(t: HotTable, keys: Ints, valid: Bools, whole: bool, places: Slots) -> bool:
    """Write the place of each key, -1 if it has none; return False as soon as a key must be read from R."""
    for i in range(keys.size):
        places[i] = -1
        if not valid[i]:
            continue
        at = find(t.entries, t.key, keys[i])
        if at < 0:
            if not whole:
                return False
            continue
        place = position_at(t.entries, at)
        if (t.known[place] & KNOWN) == UNKNOWN:
            return False
        places[i] = place
    return True


@kernel
def _use(t: HotTable, places: Slots) -> None:
    """Replace each place by the first row of its key, and count one use of each distinct key."""
    known, often = t.known, t.often
    for i in range(places.size):
        place = places[i]
        if place >= 0 and (known[place] & PINNED) == 0:
            known[place] |= PINNED
            if often[place] < MOST:
                often[place] += 1
    for i in range(places.size):
        place = places[i]
        if place >= 0:
            known[place] &= ~PINNED
            places[i] = t.first[place]


def known_rows(arena: HotRows, keys: Ints, valid: Bools) -> Slots | None:
    """Return the first row of each key, -1 if R does not have the key; None if a key must be read from R.

    No key may be pinned. In the case of None nothing has changed.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from semistream.relation.rows.row_codec import RowCodec
    >>> batch = pa.record_batch({"name": ["fig"]})
    >>> arena = HotRows(RowCodec(batch.schema), keys=8, rows=8, row_bytes=16)
    >>> keys, numbers = np.array([7, 9]), np.empty(2, np.int32)
    >>> arena.number(keys, np.ones(2, np.bool_), numbers)
    (2, 0)
    >>> arena.attach(numbers[:1], RowCodec(batch.schema).encode(batch))
    True
    >>> arena.settle(numbers)
    >>> arena.unpin()
    >>> known_rows(arena, np.array([9, 7, 7]), np.array([True, True, False])).tolist()
    [-1, 0, -1]
    >>> known_rows(arena, np.array([7, 8]), np.array([True, True])) is None
    True
    """
    rows = np.empty(keys.size, np.int32)
    if not _places(arena._t, frozen(keys), frozen(valid), arena.whole, rows):
        return None
    _use(arena._t, rows)
    arena._t.state[SEEN] += keys.size
    if arena._t.state[SEEN] >= arena._aging:
        arena.age()
    return rows
