"""Stream tuples that wait, one list per partition of R: the wait buffer of the partition-based join.

::

    partition   0    1    2    3  ...  P-1  | nowhere  beyond
    waiting     2    0    1    0        5   |    1        0     tuples
    head        |         |             |        |
                v         v             v        v
              slot 7    slot 3         ...     slot 9           key, came, row; next -> slot 4 -> ...

Two more places are for tuples whose key is not in R, and for tuples that need a page past the last partition, which R
may have after updates. In addition to its row, one slot costs 8 (key) + 4 (link) + 4 (arrival) + 1 (matched) bytes; a
partition costs 8.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.arrays import Ints, Slots
from semistream.core.compiled import frozen
from semistream.relation.rows.row_codec import RowCodec
from semistream.structures.row_store import RowStore
from semistream.structures.wait_kernels import (
    CLOCK,
    COUNT,
    FREE,
    HELD,
    RIPE,
    WaitArrays,
    everyone,
    fullest,
    insert_waiting,
    longest_wait,
    next_in_order,
    put_off,
    release_slots,
    take_waiting,
)

__all__ = ["WaitBuffer"]

_COPIED = 1 << 14  # tuples that `WaitBuffer.resized` copies per step


class WaitBuffer:
    """Stream tuples by the partition that they wait for.

    A tuple is inserted, taken, put off or released in constant time plus a copy of its row. Only results allocate
    memory. Choosing partitions scans the counts of all partitions.

    Parameters
    ----------
    codec
        Codec of the stream's rows.
    capacity
        Maximum number of tuples.
    partitions
        Places; there are two more, `nowhere` and `beyond`.
    ripe
        Number of waiting tuples from which a partition is worth reading.
    row_bytes
        Expected bytes of a variable-length row.
    """

    PARTITION_BYTES = 8

    def __init__(self, codec: RowCodec, capacity: int, partitions: int, ripe: int, row_bytes: float = 0.0) -> None:
        self.capacity = capacity
        self.nowhere = partitions
        self.beyond = partitions + 1
        self.ripe = ripe
        self._row_bytes = row_bytes
        self._rows = RowStore(codec, capacity, row_bytes)
        self._t = WaitArrays(
            key=np.empty(capacity, np.int64),
            next=np.append(np.arange(1, capacity, dtype=np.int32), np.int32(-1)),
            came=np.empty(capacity, np.uint32),
            matched=np.empty(capacity, np.uint8),
            head=np.full(partitions + 2, -1, np.int32),
            waiting=np.zeros(partitions + 2, np.int32),
            state=np.zeros(5, np.int64),
        )
        self._longest_wait = 0

    bytes_beside_row = 17
    """Bytes of a waiting tuple in addition to its row."""

    @classmethod
    def bytes_per_tuple(cls, codec: RowCodec, row_bytes: float = 0.0) -> int:
        """Return the bytes of one more tuple of capacity."""
        return cls.bytes_beside_row + RowStore.bytes_per_slot(codec, row_bytes)

    @classmethod
    def fixed_bytes(cls, partitions: int) -> int:
        """Return the bytes of a buffer without its tuples."""
        return 64 + cls.PARTITION_BYTES * (partitions + 2)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self._t) + self._rows.nbytes

    @property
    def largest_row(self) -> int:
        """Bytes of the longest row that fits into the empty buffer."""
        return self._rows.largest_row

    def __len__(self) -> int:
        return int(self._t.state[COUNT])

    @property
    def free(self) -> int:
        """Number of tuples that can still be inserted."""
        return self.capacity - int(self._t.state[HELD])

    @property
    def ripe_partitions(self) -> int:
        """Partitions with at least ``ripe`` tuples waiting."""
        return int(self._t.state[RIPE])

    @property
    def longest_wait(self) -> int:
        """Longest wait of any tuple, in tuples that arrived after it; scans all waiting tuples."""
        return max(self._longest_wait, int(longest_wait(self._t)))

    def insert(self, keys: Ints, places: Ints, batch: pa.RecordBatch) -> int:
        """Insert tuples while there is room; return how many, counted from the first."""
        count = min(batch.num_rows, self.free)
        if count == 0:
            return 0
        rows = self._rows.codec.encode(batch.slice(0, count))
        count = self._rows.fitting(rows.lengths)
        slots = insert_waiting(self._t, frozen(keys[:count]), frozen(places[:count]), self.ripe)
        self._rows.put(slots, rows.head(count))
        return count

    def fullest(self, most: int, least: int = 1) -> Ints:
        """Return up to ``most`` partitions with the most waiting tuples, at least ``least`` each; ascending."""
        return fullest(self._t.waiting[:-2], most, least)

    def next_in_order(self, begin: int, most: int) -> Ints:
        """Return up to ``most`` partitions with waiting tuples from ``begin`` on; from the first if there are none."""
        return next_in_order(self._t.waiting[:-2], begin, most)

    def take_all(self) -> Slots:
        """Remove all tuples; return their slots, as `take` does."""
        return self.take(np.arange(self.beyond + 1))[0]

    def resized(self, capacity: int) -> WaitBuffer | None:
        """Return a buffer of another capacity with the same tuples, or None if they do not fit; this one is unchanged.

        Copies every row. Both buffers are in memory until this one is released.
        """
        other = WaitBuffer(self._rows.codec, capacity, self.nowhere, self.ripe, self._row_bytes)
        slots, places = everyone(self._t)
        for begin in range(0, slots.size, _COPIED):
            some = slots[begin : begin + _COPIED]
            if other.insert(self.keys_of(some), places[begin : begin + _COPIED], self.rows(some)) < some.size:
                return None
        copies, _ = everyone(other._t)
        other._t.came[copies], other._t.matched[copies] = self._t.came[slots], self._t.matched[slots]
        other._t.state[CLOCK] = self._t.state[CLOCK]
        other._longest_wait = self._longest_wait
        return other

    def take(self, places: Ints) -> tuple[Slots, Ints]:
        """Remove the tuples of some places; return their slots, and for each its place as an index into ``places``.

        Pass the slots to `release` or `put_off`.
        """
        return take_waiting(self._t, frozen(places), self.ripe)

    def put_off(self, slots: Slots, places: Ints) -> None:
        """Let tuples that were taken wait for another partition."""
        put_off(self._t, slots, places, self.ripe)

    def release(self, slots: Slots) -> None:
        """Free the slots of tuples that were taken and whose rows are no longer needed."""
        self._rows.free(slots)
        self._longest_wait = max(self._longest_wait, int(release_slots(self._t, slots)))

    def pass_by(self, tuples: int) -> None:
        """Count tuples that arrived and did not have to wait."""
        self._t.state[CLOCK] += tuples

    def mark(self, slots: Slots) -> None:
        """Mark these tuples as matched."""
        self._t.matched[slots] = 1

    def matched(self, slots: Slots) -> NDArray[np.bool_]:
        """Return which tuples were matched."""
        return self._t.matched[slots].astype(bool)

    def keys_of(self, slots: Slots) -> Ints:
        """Return the keys of slots."""
        return self._t.key[slots]

    def sizes(self, slots: Slots) -> Ints | int:
        """Return the bytes of the row in each slot; one number if all rows have the same size."""
        return self._rows.sizes(slots)

    def rows(self, slots: Slots) -> pa.RecordBatch:
        """Return the stream tuples of slots; slots may repeat."""
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
        free, slot = set(), int(t.state[FREE])
        while slot >= 0:
            assert slot not in free, "the free list is a loop"
            free.add(slot)
            slot = int(t.next[slot])
        assert free.isdisjoint(queued), "a waiting tuple's slot is free"
        assert len(free) == self.free, f"{len(free)} slots free, {self.free} counted"
        assert len(free) + len(queued) == self.capacity, f"{len(free)} free + {len(queued)} of {self.capacity}"
        self._rows.check(np.array(queued, np.int32))
