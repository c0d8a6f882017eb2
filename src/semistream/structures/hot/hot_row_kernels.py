"""The compiled passes of `hot_rows.HotRows` that add keys and rows: numbering, pinning, attaching rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.core.compiled import Int, kernel
from semistream.structures.directory import entry_for, find, home, mix, position_at
from semistream.structures.hot.admission import MOST, recall

__all__ = [
    "ABSENT",
    "AHEAD",
    "FREE",
    "HELD",
    "IN_USE",
    "KNOWN",
    "PINNED",
    "PRESENT",
    "SOON",
    "UNKNOWN",
    "HotTable",
    "attach",
    "look_ahead",
    "number",
    "pin",
    "settle",
]


# What is known of a key. Flags are added: `HELD` while a tuple has its number, `PINNED` while its rows must also stay,
# and `SOON` while a tuple without a number is going to request it.
FREE, UNKNOWN, PRESENT, ABSENT = 0, 1, 2, 3
PINNED, HELD, SOON = 8, 16, 32
KNOWN = 7
IN_USE = PINNED | HELD

# Places in `HotTable.state`.
FREE_KEY, FREE_ROW, KEYS, ROWS, HAND, READY, SEEN, GONE, WHOLE = range(9)
STATE_WORDS = 9

AHEAD = 64  # keys whose table entries are prefetched together


class HotTable(NamedTuple):
    """The arrays, as kernels see them."""

    key: Ints
    first: Slots  # the first row of a key; links free keys too
    known: Bytes
    often: Bytes  # number of windows that requested the key, aged
    entries: NDArray[np.uint64]  # 32 bits of the hash, key's place + 1
    after: Slots  # the next row of the same key; links free rows too
    state: Ints


@kernel
def number(
    t: HotTable, keys: Ints, valid: NDArray[np.bool_], whole: bool, sketch: Bytes, numbers: Slots
) -> tuple[Int, Int]:
    """Write the place of each key in the table, -1 for NULLs; new keys are inserted.

    All become pinned. Returns how many keys got a number before all places were used, and for how many of them the
    answer was known. ``whole`` means that a key that is not in the table is not in R either.
    """
    table, known, count, entries, first, state = t.key, t.known, t.often, t.entries, t.first, t.state
    size = entries.size
    n = keys.size
    hits = 0
    near = np.uint64(0)
    for begin in range(0, n, AHEAD):
        end = min(begin + AHEAD, n)
        # These reads are independent: they prefetch what the next loop needs.
        for i in range(begin, end):
            near += entries[home(mix(keys[i]), size)]
        for i in range(begin, end):
            if not valid[i]:
                numbers[i] = -1
                continue
            at = find(entries, table, keys[i])
            if at >= 0:
                place = position_at(entries, at)
                what = known[place]
                if (what & KNOWN) != UNKNOWN:
                    hits += 1
                if (what & PINNED) == 0:
                    known[place] = (what | IN_USE) & ~SOON
                    if count[place] < MOST:
                        count[place] += 1
                numbers[i] = place
                continue
            if whole:
                numbers[i] = -1
                hits += 1
                continue
            place = state[FREE_KEY]
            if place < 0:
                if near == np.uint64(1):  # the value does not matter: this keeps the compiler from removing the reads
                    state[SEEN] += 0
                return i, hits
            state[FREE_KEY] = first[place]
            state[KEYS] += 1
            table[place] = keys[i]
            first[place] = -1
            known[place] = UNKNOWN | IN_USE
            count[place] = 1 + recall(sketch, keys[i])
            entries[-1 - at] = entry_for(keys[i], place)
            numbers[i] = place
    if near == np.uint64(1):
        state[SEEN] += 0
    return n, hits


@kernel
def look_ahead(t: HotTable, keys: Ints, valid: NDArray[np.bool_], seen: Slots) -> Int:
    """Mark the keys that are already in the table, so that they are not evicted before they are numbered.

    Returns an estimate of the number of distinct keys that are not in the table; it is never too high. ``seen`` is a
    buffer with one number per key.
    """
    entries, known = t.entries, t.known
    bits = 32 * seen.size
    seen[:] = 0
    absent = 0
    near = np.uint64(0)
    for begin in range(0, keys.size, AHEAD):
        end = min(begin + AHEAD, keys.size)
        for i in range(begin, end):  # independent reads: prefetch
            near += entries[home(mix(keys[i]), entries.size)]
        for i in range(begin, end):
            if not valid[i]:
                continue
            at = find(entries, t.key, keys[i])
            if at >= 0:
                place = position_at(entries, at)
                if (known[place] & PINNED) == 0:
                    known[place] |= SOON
                continue
            bit = home(mix(keys[i]), bits)
            if (seen[bit >> 5] >> (bit & 31)) & 1 == 0:
                seen[bit >> 5] |= np.int32(1) << np.int32(bit & 31)
                absent += 1
    if near == np.uint64(1):  # the value does not matter: this keeps the compiler from removing the reads
        t.state[SEEN] += 0
    return absent


@kernel
def pin(t: HotTable, numbers: Slots) -> None:
    """Pin the keys of these numbers."""
    for i in range(numbers.size):
        if numbers[i] >= 0:
            t.known[numbers[i]] |= IN_USE


@kernel
def attach(t: HotTable, places: Slots, rows: Slots) -> int:
    """Append a free row to the key at each of ``places``; return how many rows were appended.

    Equal places must be adjacent.
    """
    first, known, after, state = t.first, t.known, t.after, t.state
    last: Int = -1
    for i in range(places.size):
        row = np.int64(state[FREE_ROW])
        if row < 0:
            return i
        place = places[i]
        state[FREE_ROW] = after[row]
        state[ROWS] += 1
        after[row] = -1
        rows[i] = row
        if first[place] < 0:
            first[place] = row
        else:
            if i == 0 or places[i - 1] != place:
                last = np.int64(first[place])
                while after[last] >= 0:
                    last = np.int64(after[last])
            after[last] = row
        known[place] = (known[place] & IN_USE) | PRESENT
        last = row
    return places.size


@kernel
def settle(t: HotTable, places: Slots) -> None:
    """Record that all pages of these keys have been searched: keys without a row are not in R."""
    for i in range(places.size):
        if (t.known[places[i]] & KNOWN) == UNKNOWN:
            t.known[places[i]] = (t.known[places[i]] & IN_USE) | ABSENT
