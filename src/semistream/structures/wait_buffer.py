"""Stream tuples that wait in one place for each partition of R: the wait buffer of the partition-based join.

::

    partition   0    1    2    3  ...  P-1  | nowhere  beyond
    waiting     2    0    1    0        5   |    1        0     tuples
    head        |         |             |        |
                v         v             v        v
              slot 7    slot 3         ...     slot 9           key, came, row; next -> slot 4 -> ...

Two more places are for tuples whose key R does not have, and for those who need a page past the last partition, which
R may have after updates. One slot costs, beside its row, 8 (key) + 4 (link) + 4 (when it
came) + 1 (matched) bytes; a partition costs 8.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.core.compiled import Int, frozen, kernel
from semistream.relation.rows.row_codec import RowCodec
from semistream.structures.row_store import RowStore

__all__ = ["WaitBuffer"]


_FREE, _COUNT, _HELD, _RIPE, _CLOCK = 0, 1, 2, 3, 4
_COPIED = 1 << 14


class _Buffer(NamedTuple):
    key: Ints
    next: Slots  # in the same place; links free slots too
    came: NDArray[np.uint32]  # tuples that had come before it, modulo 2^32
    matched: Bytes
    head: Slots  # of each place
    waiting: Slots  # tuples in each place
    state: Ints


@kernel
def _hook(t: _Buffer, slot: Int, place: Int, ripe: int) -> None:
    t.next[slot] = t.head[place]
    t.head[place] = slot
    t.waiting[place] += 1
    if t.waiting[place] == ripe and place < t.head.size - 2:
        t.state[_RIPE] += 1


@kernel
def _insert(t: _Buffer, keys: Ints, places: Ints, ripe: int) -> Slots:
    slots = np.empty(keys.size, np.int32)
    for i in range(keys.size):
        slot = np.int32(t.state[_FREE])
        t.state[_FREE] = t.next[slot]
        slots[i] = slot
        t.key[slot] = keys[i]
        t.came[slot] = np.uint32(t.state[_CLOCK] + i)
        t.matched[slot] = 0
        _hook(t, slot, places[i], ripe)
    t.state[_COUNT] += keys.size
    t.state[_HELD] += keys.size
    t.state[_CLOCK] += keys.size
    return slots


@kernel
def _put_off(t: _Buffer, slots: Slots, places: Ints, ripe: int) -> None:
    for i in range(slots.size):
        _hook(t, slots[i], places[i], ripe)
    t.state[_COUNT] += slots.size


@kernel
def _take(t: _Buffer, places: Ints, ripe: int) -> tuple[Slots, Ints]:
    """Unhook all tuples of some places; return their slots, and which of ``places`` each comes from."""
    total = 0
    for i in range(places.size):
        total += t.waiting[places[i]]
    slots = np.empty(total, np.int32)
    owner = np.empty(total, np.int64)
    at = 0
    for i in range(places.size):
        place = places[i]
        if t.waiting[place] >= ripe and place < t.head.size - 2:
            t.state[_RIPE] -= 1
        slot = t.head[place]
        while slot >= 0:
            slots[at] = slot
            owner[at] = i
            at += 1
            slot = t.next[slot]
        t.head[place] = -1
        t.waiting[place] = 0
    t.state[_COUNT] -= total
    return slots, owner


@kernel
def _everyone(t: _Buffer) -> tuple[Slots, Ints]:
    """Return the slots of all tuples, those of a place in the order in which they came, and their places."""
    slots = np.empty(t.state[_COUNT], np.int32)
    places = np.empty(slots.size, np.int64)
    end = 0
    for place in range(t.head.size):
        end += t.waiting[place]
        slot, at = t.head[place], end
        while slot >= 0:
            at -= 1
            slots[at] = slot
            places[at] = place
            slot = t.next[slot]
    return slots, places


@kernel
def _release(t: _Buffer, slots: Slots) -> Int:
    """Free slots; return the longest time any of these tuples has waited."""
    longest = np.int64(0)
    for i in range(slots.size):
        waited = np.int64(np.uint32(t.state[_CLOCK] - 1 - np.int64(t.came[slots[i]])))
        longest = max(longest, waited)
        t.next[slots[i]] = t.state[_FREE]
        t.state[_FREE] = slots[i]
    t.state[_HELD] -= slots.size
    return longest


@kernel
def _longest_wait(t: _Buffer) -> Int:
    longest = np.int64(0)
    for place in range(t.head.size):
        slot = t.head[place]
        while slot >= 0:
            longest = max(longest, np.int64(np.uint32(t.state[_CLOCK] - 1 - np.int64(t.came[slot]))))
            slot = t.next[slot]
    return longest


@kernel
def _fullest(count: Slots, most: int, least: int) -> Ints:
    """Return up to ``most`` places with the highest counts of at least ``least``, ascending by place."""
    levels = np.zeros(1025, np.int64)
    for place in range(count.size):
        levels[min(count[place], 1024)] += 1
    # the level that ``most`` places reach; places on it are taken while there is room
    level, above = 1024, 0
    while level > least and above + levels[level] <= most:
        above += levels[level]
        level -= 1
    chosen = np.empty(most, np.int64)
    room = most - above
    found = 0
    for place in range(count.size):
        here = min(count[place], 1024)
        if here > level or (here == level and here >= least and room > 0):
            if here == level:
                room -= 1
            chosen[found] = place
            found += 1
    return chosen[:found]


@kernel
def _next_in_order(count: Slots, begin: int, most: int) -> Ints:
    """Return up to ``most`` places from ``begin`` on where somebody waits, ascending; from 0 on if there are none."""
    chosen = np.empty(most, np.int64)
    found = 0
    for turn in range(2):
        for place in range(begin if turn == 0 else 0, count.size):
            if count[place] > 0:
                chosen[found] = place
                found += 1
                if found == most:
                    return chosen
        if found > 0:
            break
    return chosen[:found]


class WaitBuffer:
    """Room for stream tuples by the partition they wait for.

    Parameters
    ----------
    codec
        Codec of the stream's rows.
    capacity
        Tuples at most.
    partitions
        Places; there are two more, `nowhere` and `beyond`.
    ripe
        Tuples in a place that call for its partition.
    row_bytes
        Expected bytes of a row that varies in length.
    """

    PARTITION_BYTES = 8

    def __init__(self, codec: RowCodec, capacity: int, partitions: int, ripe: int, row_bytes: float = 0.0) -> None:
        self.capacity = capacity
        self.nowhere = partitions
        self.beyond = partitions + 1
        self.ripe = ripe
        self._row_bytes = row_bytes
        self._rows = RowStore(codec, capacity, row_bytes)
        self._t = _Buffer(
            key=np.empty(capacity, np.int64),
            next=np.append(np.arange(1, capacity, dtype=np.int32), np.int32(-1)),
            came=np.empty(capacity, np.uint32),
            matched=np.empty(capacity, np.uint8),
            head=np.full(partitions + 2, -1, np.int32),
            waiting=np.zeros(partitions + 2, np.int32),
            state=np.zeros(5, np.int64),
        )
        self._longest_wait = 0

    @staticmethod
    def bytes_per_tuple(codec: RowCodec, row_bytes: float = 0.0) -> int:
        """Return what one more tuple of capacity costs."""
        return 17 + RowStore.bytes_per_slot(codec, row_bytes)

    @classmethod
    def fixed_bytes(cls, partitions: int) -> int:
        """Return what a buffer costs beside its tuples."""
        return 64 + cls.PARTITION_BYTES * (partitions + 2)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self._t) + self._rows.nbytes

    @property
    def largest_row(self) -> int:
        """The longest row the buffer can take when empty."""
        return self._rows.largest_row

    def __len__(self) -> int:
        return int(self._t.state[_COUNT])

    @property
    def free(self) -> int:
        """Tuples that can still be taken."""
        return self.capacity - int(self._t.state[_HELD])

    @property
    def ripe_partitions(self) -> int:
        """Partitions with at least ``ripe`` tuples waiting."""
        return int(self._t.state[_RIPE])

    @property
    def longest_wait(self) -> int:
        """Most tuples that any tuple has seen come in after it, those that still wait included."""
        return max(self._longest_wait, int(_longest_wait(self._t)))

    def insert(self, keys: Ints, places: Ints, batch: pa.RecordBatch) -> int:
        """Take tuples while there is room; return how many, counted from the first."""
        count = min(batch.num_rows, self.free)
        if count == 0:
            return 0
        rows = self._rows.codec.encode(batch.slice(0, count))
        count = self._rows.fitting(rows.lengths)
        slots = _insert(self._t, frozen(keys[:count]), frozen(places[:count]), self.ripe)
        self._rows.put(slots, rows.head(count))
        return count

    def fullest(self, most: int, least: int = 1) -> Ints:
        """Return the partitions, ``most`` at most, that most tuples wait for, and at least ``least``; ascending."""
        return _fullest(self._t.waiting[:-2], most, least)

    def next_in_order(self, begin: int, most: int) -> Ints:
        """Return the next partitions from ``begin`` on that are waited for; after the last comes the first."""
        return _next_in_order(self._t.waiting[:-2], begin, most)

    def take_all(self) -> Slots:
        """Remove all tuples; return their slots, as `take`."""
        return self.take(np.arange(self.beyond + 1))[0]

    def resized(self, capacity: int) -> WaitBuffer | None:
        """Return a buffer of another capacity with the same tuples, or None if they do not fit; this one stays."""
        other = WaitBuffer(self._rows.codec, capacity, self.nowhere, self.ripe, self._row_bytes)
        slots, places = _everyone(self._t)
        for begin in range(0, slots.size, _COPIED):
            some = slots[begin : begin + _COPIED]
            if other.insert(self.keys_of(some), places[begin : begin + _COPIED], self.rows(some)) < some.size:
                return None
        copies, _ = _everyone(other._t)
        other._t.came[copies], other._t.matched[copies] = self._t.came[slots], self._t.matched[slots]
        other._t.state[_CLOCK] = self._t.state[_CLOCK]
        other._longest_wait = self._longest_wait
        return other

    def take(self, places: Ints) -> tuple[Slots, Ints]:
        """Remove the tuples of some places; return their slots, and which of ``places`` each was in.

        The slots are to be given to `release` or `put_off`.
        """
        return _take(self._t, frozen(places), self.ripe)

    def put_off(self, slots: Slots, places: Ints) -> None:
        """Let tuples that were taken go on waiting, for another partition."""
        _put_off(self._t, slots, places, self.ripe)

    def release(self, slots: Slots) -> None:
        """Free the slots of tuples that were taken, whose rows are not needed any more."""
        self._rows.free(slots)
        self._longest_wait = max(self._longest_wait, int(_release(self._t, slots)))

    def pass_by(self, tuples: int) -> None:
        """Tell that tuples have come that did not have to wait."""
        self._t.state[_CLOCK] += tuples

    def mark(self, slots: Slots) -> None:
        """Note that these tuples have found a partner."""
        self._t.matched[slots] = 1

    def matched(self, slots: Slots) -> NDArray[np.bool_]:
        """Return which tuples have found a partner."""
        return self._t.matched[slots].astype(bool)

    def keys_of(self, slots: Slots) -> Ints:
        """Return the keys of slots."""
        return self._t.key[slots]

    def sizes(self, slots: Slots) -> Ints | int:
        """Return the bytes of the rows of slots; one number if all take the same."""
        return self._rows.sizes(slots)

    def rows(self, slots: Slots) -> pa.RecordBatch:
        """Return the stream tuples of slots, any of them repeatedly."""
        data, starts = self._rows.locate(slots)
        return self._rows.codec.decode(data, starts)

    def check(self) -> None:
        """Assert that places, counts and free list agree."""
        t = self._t
        queued: list[int] = []
        for place in range(t.head.size):
            slot, here = int(t.head[place]), 0
            while slot >= 0:
                queued.append(slot)
                here += 1
                slot = int(t.next[slot])
            assert here == t.waiting[place], f"{here} tuples in place {place}, {t.waiting[place]} counted"
        assert len(queued) == len(set(queued)) == len(self), f"{len(queued)} tuples wait, {len(self)} counted"
        assert np.count_nonzero(t.waiting[:-2] >= self.ripe) == self.ripe_partitions, "ripe partitions are miscounted"
        free, slot = set(), int(t.state[_FREE])
        while slot >= 0:
            assert slot not in free, "the free list is a loop"
            free.add(slot)
            slot = int(t.next[slot])
        assert free.isdisjoint(queued), "a waiting tuple's slot is free"
        assert len(free) == self.free, f"{len(free)} slots free, {self.free} counted"
        assert len(free) + len(queued) == self.capacity, f"{len(free)} free + {len(queued)} of {self.capacity}"
        self._rows.check(np.array(queued, np.int32))
