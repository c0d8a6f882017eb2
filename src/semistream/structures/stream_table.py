"""``H_S`` with its queue: the stream tuples that wait, found by key and ordered by arrival.

A hash table leads from a key to the chain of its tuples; a doubly linked queue through all tuples allows the
random deletion that HYBRIDJOIN needs and the first-in-first-out expiry of MESHJOIN. One slot costs, beside its
row, 8 (key) + 4·4 (chain and queue links) + 1 (matched) + 12 (its share of the hash table) bytes.

The hash table is open-addressed with linear probing and backward-shift deletion, two thirds full at most; an
entry holds 32 bits of the hash beside the slot, so a probe for a key that is absent rarely looks further.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.compiled import Int, kernel
from semistream.relation.pages import HEADER, WHOLE, row_start
from semistream.relation.rows import RowCodec
from semistream.structures.row_store import RowStore

__all__ = ["StreamTable"]

Ints = NDArray[np.int64]
Slots = NDArray[np.int32]
Bytes = NDArray[np.uint8]

_FREE, _COUNT, _OLDEST, _NEWEST = 0, 1, 2, 3


class _Table(NamedTuple):
    key: Ints
    chain: Slots  # the next tuple of the same key; links free slots too
    tail: Slots  # of the first tuple of a key: the last one of it
    before: Slots  # queue, towards the oldest
    after: Slots  # queue, towards the newest
    matched: Bytes
    entries: NDArray[np.uint64]  # tag in the upper 32 bits, slot + 1 in the lower
    state: Ints


@kernel
def mix(key: Int) -> np.uint64:
    """Scatter the bits of a key (a 64-bit finaliser: two rounds of shift, xor and odd multiply)."""
    x = np.uint64(key)
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return x ^ (x >> np.uint64(32))


@kernel
def _home(hashed: np.uint64, size: int) -> Int:
    return np.int64(((hashed >> np.uint64(32)) * np.uint64(size)) >> np.uint64(32))


@kernel
def _find(t: _Table, key: Int) -> Int:
    """Return the entry of a key, or the free entry where it would go as ``-1 - entry``."""
    hashed = mix(key)
    size = t.entries.size
    at = _home(hashed, size)
    tag = hashed << np.uint64(32)
    low = np.uint64(0xFFFFFFFF)
    while t.entries[at] != np.uint64(0):
        entry = t.entries[at]
        if (entry & ~low) == tag and t.key[np.int64(entry & low) - 1] == key:
            return at
        at += 1
        if at == size:
            at = 0
    return -1 - at


@kernel
def _erase(t: _Table, at: Int) -> None:
    """Empty an entry and move up those that had to go past it."""
    size = t.entries.size
    low = np.uint64(0xFFFFFFFF)
    hole = at
    probe = at
    while True:
        probe += 1
        if probe == size:
            probe = 0
        entry = t.entries[probe]
        if entry == np.uint64(0):
            break
        home = _home(mix(t.key[np.int64(entry & low) - 1]), size)
        # the entry may fill the hole unless its home lies after the hole, cyclically up to the probe
        if (probe - home) % size >= (probe - hole) % size:
            t.entries[hole] = entry
            hole = probe
    t.entries[hole] = np.uint64(0)


@kernel
def _insert(t: _Table, keys: Ints, slots: Slots) -> None:
    for i in range(keys.size):
        slot = np.int32(t.state[_FREE])
        t.state[_FREE] = t.chain[slot]
        slots[i] = slot
        key = keys[i]
        t.key[slot] = key
        t.chain[slot] = -1
        t.matched[slot] = 0
        at = _find(t, key)
        if at < 0:
            t.entries[-1 - at] = (mix(key) << np.uint64(32)) | np.uint64(slot + 1)
            t.tail[slot] = slot
        else:
            head = np.int64(t.entries[at] & np.uint64(0xFFFFFFFF)) - 1
            t.chain[t.tail[head]] = slot
            t.tail[head] = slot
        newest = np.int32(t.state[_NEWEST])
        t.before[slot] = newest
        t.after[slot] = -1
        if newest >= 0:
            t.after[newest] = slot
        else:
            t.state[_OLDEST] = slot
        t.state[_NEWEST] = slot
        t.state[_COUNT] += 1


@kernel
def _unlink(t: _Table, slot: Int) -> None:
    before, after = t.before[slot], t.after[slot]
    if before >= 0:
        t.after[before] = after
    else:
        t.state[_OLDEST] = after
    if after >= 0:
        t.before[after] = before
    else:
        t.state[_NEWEST] = before
    t.state[_COUNT] -= 1


@kernel
def _take_oldest(t: _Table, count: int) -> Slots:
    """Unhook the oldest tuples from hash table and queue; their slots are not yet free."""
    taken = np.empty(count, np.int32)
    for i in range(count):
        slot = np.int32(t.state[_OLDEST])
        taken[i] = slot
        # the oldest tuple is the first of its key, because chains are in order of arrival
        at = _find(t, t.key[slot])
        follower = t.chain[slot]
        if follower < 0:
            _erase(t, at)
        else:
            t.tail[follower] = t.tail[slot]
            tag = t.entries[at] & ~np.uint64(0xFFFFFFFF)
            t.entries[at] = tag | np.uint64(follower + 1)
        _unlink(t, slot)
    return taken


@kernel
def _take_keys(t: _Table, keys: Ints) -> Slots:
    """Unhook all tuples of the keys; their slots are not yet free."""
    taken = np.empty(t.state[_COUNT], np.int32)
    count = 0
    for i in range(keys.size):
        at = _find(t, keys[i])
        if at < 0:
            continue
        slot = np.int32(np.int64(t.entries[at] & np.uint64(0xFFFFFFFF)) - 1)
        _erase(t, at)
        while slot >= 0:
            taken[count] = slot
            count += 1
            _unlink(t, slot)
            slot = t.chain[slot]
    return taken[:count].copy()


@kernel
def _release(t: _Table, slots: Slots) -> None:
    for i in range(slots.size):
        t.chain[slots[i]] = t.state[_FREE]
        t.state[_FREE] = slots[i]


@kernel
def _oldest_keys(t: _Table, count: int, newest: bool) -> Ints:
    """Return up to ``count`` distinct keys from the old (or new) end of the queue."""
    keys = np.empty(count, np.int64)
    found = 0
    slot = np.int32(t.state[_NEWEST] if newest else t.state[_OLDEST])
    while slot >= 0 and found < count:
        at = _find(t, t.key[slot])
        head = np.int64(t.entries[at] & np.uint64(0xFFFFFFFF)) - 1
        # a key counts once: at its first tuple seen from the old end, at its last seen from the new one
        if (t.tail[head] if newest else head) == slot:
            keys[found] = t.key[slot]
            found += 1
        slot = t.before[slot] if newest else t.after[slot]
    return keys[:found]


@kernel
def _probe(
    t: _Table, frames: Bytes, stride: int, wanted: Ints, whole_only: bool, cursor: Ints, cap: int
) -> tuple[Slots, Ints, Bytes, int]:
    """Probe rows of pages in the table from ``cursor`` on, until ``cap`` pairs or the end of the pages.

    ``cursor`` is frame, row and slot to go on with, and is moved. With ``whole_only``, rows of keys that have
    rows in other pages too are left out, unless the key is among the sorted ``wanted``.
    """
    slots = np.empty(cap, np.int32)
    starts = np.empty(cap, np.int64)
    flags = np.empty(cap, np.uint8)
    flat = frames.reshape(-1)
    pairs, probed = 0, 0
    frame, row, slot = cursor[0], cursor[1], cursor[2]
    low = np.uint64(0xFFFFFFFF)
    while frame < frames.shape[0]:
        n = np.int64(frames[frame, 12:16].view(np.uint32)[0])
        keys = frames[frame, HEADER : HEADER + 8 * n].view(np.int64)
        while row < n:
            flag = frames[frame, HEADER + 8 * n + row]
            if slot < 0:
                probed += 1
                at = _find(t, keys[row])
                if at >= 0:
                    slot = np.int64(t.entries[at] & low) - 1
                    if whole_only and (flag & WHOLE) == 0:
                        place = np.searchsorted(wanted, keys[row])
                        if place == wanted.size or wanted[place] != keys[row]:
                            slot = -1
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
                    slot = np.int64(t.chain[slot])
            row += 1
        row = 0
        frame += 1
    cursor[0], cursor[1], cursor[2] = frame, row, slot
    return slots[:pairs], starts[:pairs], flags[:pairs], probed


class StreamTable:
    """Stream tuples that wait for their page of R.

    Parameters
    ----------
    codec
        Codec of the stream's rows.
    capacity
        Tuples at most (``h_S``).
    row_bytes
        Expected bytes of a row that varies in length.
    """

    def __init__(self, codec: RowCodec, capacity: int, row_bytes: float = 0.0) -> None:
        self.capacity = capacity
        self._rows = RowStore(codec, capacity, row_bytes)
        self._t = _Table(
            key=np.empty(capacity, np.int64),
            chain=np.append(np.arange(1, capacity, dtype=np.int32), np.int32(-1)),
            tail=np.empty(capacity, np.int32),
            before=np.empty(capacity, np.int32),
            after=np.empty(capacity, np.int32),
            matched=np.zeros(capacity, np.uint8),
            entries=np.zeros(_entries(capacity), np.uint64),
            state=np.array([0, 0, -1, -1], np.int64),
        )

    @staticmethod
    def bytes_per_tuple(codec: RowCodec, row_bytes: float = 0.0) -> int:
        """Return what one more tuple of capacity costs."""
        return 25 + 12 + RowStore.bytes_per_slot(codec, row_bytes)

    @staticmethod
    def fixed_bytes() -> int:
        """Return what a table costs beside its tuples."""
        return 128

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self._t) + self._rows.nbytes

    @property
    def largest_row(self) -> int:
        """The longest row the table can take when empty."""
        return self._rows.largest_row

    def __len__(self) -> int:
        return int(self._t.state[_COUNT])

    @property
    def free(self) -> int:
        """Tuples that can still be taken."""
        return self.capacity - len(self)

    def insert(self, keys: Ints, batch: pa.RecordBatch) -> int:
        """Take tuples while there is room; return how many, counted from the first."""
        count = min(batch.num_rows, self.free)
        if count == 0:
            return 0
        rows = self._rows.codec.encode(batch.slice(0, count))
        count = self._rows.fitting(rows.lengths)
        slots = np.empty(count, np.int32)
        _insert(self._t, keys[:count], slots)
        self._rows.put(slots, rows.head(count))
        return count

    def oldest_keys(self, count: int) -> Ints:
        """Return up to ``count`` distinct keys, those that have waited longest."""
        return _oldest_keys(self._t, min(count, len(self)), False)

    def newest_keys(self, count: int) -> Ints:
        """Return up to ``count`` distinct keys from the rear of the queue."""
        return _oldest_keys(self._t, min(count, len(self)), True)

    def probe(
        self, frames: Bytes, stride: int, cursor: Ints, cap: int, *, wanted: Ints | None = None
    ) -> tuple[Slots, Ints, Bytes, int]:
        """Probe the rows of pages against the waiting tuples.

        Parameters
        ----------
        frames, stride
            The pages and their layout's stride.
        cursor
            ``[0, 0, -1]`` to begin with; moved on. Finished when ``cursor[0] == len(frames)``.
        cap
            Pairs at most in one call.
        wanted
            If given: match only rows whose key is wholly within its page, or is among these sorted keys.

        Returns
        -------
        Slot of the stream tuple, start of R's row in the flattened frames and its flags, for each pair; and the
        number of look-ups made.
        """
        none = np.empty(0, np.int64)
        return _probe(self._t, frames, stride, none if wanted is None else wanted, wanted is not None, cursor, cap)

    def take_oldest(self, count: int) -> tuple[Slots, NDArray[np.bool_]]:
        """Remove the oldest tuples; return their slots, to be given to `release`, and which were matched."""
        taken = _take_oldest(self._t, min(count, len(self)))
        return taken, self._t.matched[taken].astype(bool)

    def take_keys(self, keys: Ints) -> tuple[Slots, NDArray[np.bool_]]:
        """Remove all tuples of these keys; return their slots, to be given to `release`, and which were matched."""
        taken = _take_keys(self._t, keys)
        return taken, self._t.matched[taken].astype(bool)

    def release(self, slots: Slots) -> None:
        """Free the slots of removed tuples, whose rows are not needed any more."""
        self._rows.free(slots)
        _release(self._t, slots)

    def keys_of(self, slots: Slots) -> Ints:
        """Return the keys of slots."""
        return self._t.key[slots]

    def rows(self, slots: Slots) -> pa.RecordBatch:
        """Return the stream tuples of slots, any of them repeatedly."""
        data, starts = self._rows.locate(slots)
        return self._rows.codec.decode(data, starts)

    def check(self) -> None:
        """Assert every invariant: queue, chains, hash table and free list agree."""
        t = self._t
        queue: list[int] = []
        slot, before = int(t.state[_OLDEST]), -1
        while slot >= 0:
            assert t.before[slot] == before, f"queue link back from {slot} is {t.before[slot]}, not {before}"
            queue.append(slot)
            before, slot = slot, int(t.after[slot])
        assert before == t.state[_NEWEST], "the queue does not end at its newest tuple"
        assert len(queue) == len(set(queue)) == len(self), f"{len(queue)} queued, {len(self)} counted"
        position = {slot: place for place, slot in enumerate(queue)}
        chained: list[int] = []
        for at in np.flatnonzero(t.entries):
            head = int(t.entries[at] & np.uint64(0xFFFFFFFF)) - 1
            assert _find(t, int(t.key[head])) == at, f"key {t.key[head]} is not found where it is"
            slot, last = head, -1
            while slot >= 0:
                assert t.key[slot] == t.key[head], "a chain holds two keys"
                assert position[slot] > last, "a chain is not in order of arrival"
                last = position[slot]
                chained.append(slot)
                assert t.chain[slot] >= 0 or t.tail[head] == slot, "the tail is not the end of the chain"
                slot = int(t.chain[slot])
        assert sorted(chained) == sorted(queue), "hash table and queue hold different tuples"
        free, slot = set(), int(t.state[_FREE])
        while slot >= 0:
            assert slot not in free, "the free list is a loop"
            free.add(slot)
            slot = int(t.chain[slot])
        assert free.isdisjoint(queue), "a queued slot is free"
        assert len(free) + len(queue) == self.capacity, f"{len(free)} free + {len(queue)} of {self.capacity}"
        self._rows.check(np.array(queue, np.int32))


def _entries(capacity: int) -> int:
    return capacity + capacity // 2 + 1
