"""The compiled passes over `stream_table.StreamTable`: insert, probe, unhook.

Each tuple has a slot. ``entries`` maps a key to its first tuple, and ``chain`` links the later tuples of the same key,
in order of arrival. ``before`` and ``after`` link all tuples in order of arrival. An unhooked tuple is neither found
nor queued, but keeps its slot, and so its row, until the slot is released.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.core.compiled import Int, kernel
from semistream.relation.pages.page_layout import HEADER, LAST, WHOLE, row_start
from semistream.structures.directory import erase, find, position_at, put, repoint, warm

FREE, COUNT, OLDEST, NEWEST, HELD, KEYS = 0, 1, 2, 3, 4, 5
"""Places in ``state``: first free slot, tuples queued, ends of the queue, slots not free, distinct keys queued."""

ENDS = WHOLE | LAST
"""Flags of the last row of a key whose rows are all in one page."""


class Table(NamedTuple):
    """The arrays of a stream table."""

    key: Ints
    chain: Slots  # the next tuple of the same key; links free slots too
    tail: Slots  # of the first tuple of a key: the last one of it
    before: Slots  # queue, towards the oldest
    after: Slots  # queue, towards the newest
    matched: Bytes
    entries: NDArray[np.uint64]
    state: Ints


@kernel
def insert(t: Table, keys: Ints, slots: Slots) -> None:
    """Queue tuples in free slots, which are written to ``slots``; the caller ensures that enough are free."""
    for i in range(keys.size):
        slot = np.int32(t.state[FREE])
        t.state[FREE] = t.chain[slot]
        slots[i] = slot
        key = keys[i]
        t.key[slot] = key
        t.chain[slot] = -1
        t.matched[slot] = 0
        at = find(t.entries, t.key, key)
        if at < 0:
            put(t.entries, t.key, slot)
            t.tail[slot] = slot
            t.state[KEYS] += 1
        else:
            head = position_at(t.entries, at)
            t.chain[t.tail[head]] = slot
            t.tail[head] = slot
        newest = np.int32(t.state[NEWEST])
        t.before[slot] = newest
        t.after[slot] = -1
        if newest >= 0:
            t.after[newest] = slot
        else:
            t.state[OLDEST] = slot
        t.state[NEWEST] = slot
    t.state[COUNT] += keys.size
    t.state[HELD] += keys.size


@kernel
def _unlink(t: Table, slot: Int) -> None:
    """Take a tuple out of the queue."""
    before, after = t.before[slot], t.after[slot]
    if before >= 0:
        t.after[before] = after
    else:
        t.state[OLDEST] = after
    if after >= 0:
        t.before[after] = before
    else:
        t.state[NEWEST] = before
    t.state[COUNT] -= 1


@kernel
def take_oldest(t: Table, count: int) -> Slots:
    """Unhook the oldest tuples."""
    taken = np.empty(count, np.int32)
    for i in range(count):
        slot = np.int32(t.state[OLDEST])
        taken[i] = slot
        # the oldest tuple is the first of its key, because chains are in order of arrival
        at = find(t.entries, t.key, t.key[slot])
        follower = t.chain[slot]
        if follower < 0:
            erase(t.entries, at)
            t.state[KEYS] -= 1
        else:
            t.tail[follower] = t.tail[slot]
            repoint(t.entries, at, follower)
        _unlink(t, slot)
    return taken


@kernel
def take_keys(t: Table, keys: Ints) -> Slots:
    """Unhook all tuples of the keys."""
    taken = np.empty(keys.size + 64, np.int32)
    count = 0
    for i in range(keys.size):
        at = find(t.entries, t.key, keys[i])
        if at < 0:
            continue
        slot = np.int32(position_at(t.entries, at))
        erase(t.entries, at)
        t.state[KEYS] -= 1
        while slot >= 0:
            if count == taken.size:
                taken = np.append(taken, np.empty(count, np.int32))
            taken[count] = slot
            count += 1
            _unlink(t, slot)
            slot = t.chain[slot]
    return taken[:count]


@kernel
def release(t: Table, slots: Slots) -> None:
    """Free the slots of unhooked tuples."""
    for i in range(slots.size):
        t.chain[slots[i]] = t.state[FREE]
        t.state[FREE] = slots[i]
    t.state[HELD] -= slots.size


@kernel
def oldest_keys(t: Table, count: int, newest: bool) -> Ints:
    """Return up to ``count`` distinct keys from the old (or new) end of the queue."""
    keys = np.empty(count, np.int64)
    found = 0
    slot = np.int32(t.state[NEWEST] if newest else t.state[OLDEST])
    while slot >= 0 and found < count:
        head = position_at(t.entries, find(t.entries, t.key, t.key[slot]))
        # Count a key once: from the old end at its first tuple, from the new end at its last.
        if (t.tail[head] if newest else head) == slot:
            keys[found] = t.key[slot]
            found += 1
        slot = t.before[slot] if newest else t.after[slot]
    return keys[:found]


@kernel
def in_order(t: Table) -> Slots:
    """Return the slots of all queued tuples, oldest first."""
    slots = np.empty(t.state[COUNT], np.int32)
    slot = np.int32(t.state[OLDEST])
    for i in range(slots.size):
        slots[i] = slot
        slot = t.after[slot]
    return slots


@kernel
def _among(ordered: Ints, key: Int) -> bool:
    place = np.searchsorted(ordered, key)
    return bool(place < ordered.size and ordered[place] == key)


@kernel
def probe(
    t: Table, frames: Bytes, stride: int, wanted: Ints, whole_only: bool, leave: bool, cursor: Ints, cap: int
) -> tuple[Slots, Ints, Bytes, int]:
    """Probe the table with rows of pages, starting at ``cursor``, until ``cap`` pairs or the end of the pages.

    ``cursor`` is the frame, row and slot to continue with, and is updated. With ``whole_only``, rows of keys that also
    have rows in other pages are skipped, unless the key is in the sorted ``wanted``. With ``leave``, the tuples of a
    key are unhooked when they match its last row, if all its rows are in this page.
    """
    slots = np.empty(cap, np.int32)
    starts = np.empty(cap, np.int64)
    flags = np.empty(cap, np.uint8)
    near = np.empty(frames.shape[1] // 8, np.uint64)
    flat = frames.reshape(-1)
    pairs, probed = 0, 0
    frame, row, slot = cursor[0], cursor[1], cursor[2]
    while frame < frames.shape[0]:
        n = np.int64(frames[frame, 12:16].view(np.uint32)[0])
        keys = frames[frame, HEADER : HEADER + 8 * n].view(np.int64)
        warm(t.entries, keys[row:], near[row:])
        while row < n:
            flag = frames[frame, HEADER + 8 * n + row]
            leaves = leave and (flag & ENDS) == ENDS
            if slot < 0:
                probed += 1
                at: Int = np.int64(-1)
                if near[row] != np.uint64(0):
                    at = find(t.entries, t.key, keys[row])
                if at >= 0 and whole_only and (flag & WHOLE) == 0 and not _among(wanted, keys[row]):
                    at = np.int64(-1)
                if at >= 0:
                    slot = position_at(t.entries, at)
                    if leaves:
                        erase(t.entries, at)
                        t.state[KEYS] -= 1
            if slot >= 0:
                start = row_start(flat, frame * frames.shape[1], n, row, stride)
                while slot >= 0:
                    if pairs == cap:
                        cursor[0], cursor[1], cursor[2] = frame, row, slot
                        return slots, starts, flags, probed
                    slots[pairs] = slot
                    starts[pairs] = start
                    flags[pairs] = flag
                    t.matched[slot] = 1
                    pairs += 1
                    if leaves:
                        _unlink(t, slot)
                    slot = np.int64(t.chain[slot])
            row += 1
        row = 0
        frame += 1
    cursor[0], cursor[1], cursor[2] = frame, row, slot
    return slots[:pairs], starts[:pairs], flags[:pairs], probed
