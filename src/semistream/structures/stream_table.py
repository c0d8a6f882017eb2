"""``H_S`` with its queue: the waiting stream tuples, found by key and ordered by arrival.

A hash table maps a key to the chain of its tuples. A doubly linked queue of all tuples allows the random deletion that
HYBRIDJOIN needs and the first-in-first-out expiry of MESHJOIN. In addition to its row, one slot costs 8 (key) + 4·4
(chain and queue links) + 1 (matched) + 12 (its share of the hash table) bytes.

The hash table is a `directory` of the slots' keys; the compiled passes are in `stream_kernels`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.relation.rows.row_codec import RowCodec
from semistream.structures import stream_kernels as kernels
from semistream.structures.directory import ENTRY_BYTES, entries_for, find, position_at
from semistream.structures.row_store import RowStore
from semistream.structures.stream_kernels import COUNT, ENDS, FREE, HELD, KEYS, NEWEST, OLDEST

__all__ = ["StreamTable"]


_COPIED = 1 << 14  # tuples that `StreamTable.resized` copies per step


class StreamTable:
    """Stream tuples that wait for their page of R.

    All memory is allocated up front. A tuple is inserted, found or removed in constant time plus a copy of its row.
    Only `resized` and `check` scan all tuples.

    Parameters
    ----------
    codec
        Codec of the stream's rows.
    capacity
        Maximum number of tuples (``h_S``).
    row_bytes
        Expected bytes of a variable-length row.
    """

    def __init__(self, codec: RowCodec, capacity: int, row_bytes: float = 0.0) -> None:
        self.capacity = capacity
        self._row_bytes = row_bytes
        self._rows = RowStore(codec, capacity, row_bytes)
        self._t = kernels.Table(
            key=np.empty(capacity, np.int64),
            chain=np.append(np.arange(1, capacity, dtype=np.int32), np.int32(-1)),
            tail=np.empty(capacity, np.int32),
            before=np.empty(capacity, np.int32),
            after=np.empty(capacity, np.int32),
            matched=np.zeros(capacity, np.uint8),
            entries=np.zeros(entries_for(capacity), np.uint64),
            state=np.array([0, 0, -1, -1, 0, 0], np.int64),
        )

    bytes_beside_row = 25 + ENTRY_BYTES
    """Bytes of a waiting tuple in addition to its row."""

    @classmethod
    def bytes_per_tuple(cls, codec: RowCodec, row_bytes: float = 0.0) -> int:
        """Return the bytes of one more tuple of capacity."""
        return cls.bytes_beside_row + RowStore.bytes_per_slot(codec, row_bytes)

    @staticmethod
    def fixed_bytes() -> int:
        """Return the bytes of a table without its tuples."""
        return 128

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self._t) + self._rows.nbytes

    @property
    def largest_row(self) -> int:
        """Bytes of the longest row that fits into the empty table."""
        return self._rows.largest_row

    def __len__(self) -> int:
        return int(self._t.state[COUNT])

    @property
    def free(self) -> int:
        """Number of tuples that can still be inserted."""
        return self.capacity - int(self._t.state[HELD])

    @property
    def distinct_keys(self) -> int:
        """Number of distinct keys of waiting tuples."""
        return int(self._t.state[KEYS])

    def insert(self, keys: Ints, batch: pa.RecordBatch) -> int:
        """Insert tuples while there is room; return how many, counted from the first."""
        count = min(batch.num_rows, self.free)
        if count == 0:
            return 0
        rows = self._rows.codec.encode(batch.slice(0, count))
        count = self._rows.fitting(rows.lengths)
        slots = np.empty(count, np.int32)
        kernels.insert(self._t, keys[:count], slots)
        self._rows.put(slots, rows.head(count))
        return count

    def oldest_keys(self, count: int) -> Ints:
        """Return up to ``count`` distinct keys from the front of the queue."""
        return kernels.oldest_keys(self._t, min(count, len(self)), False)

    def newest_keys(self, count: int) -> Ints:
        """Return up to ``count`` distinct keys from the rear of the queue."""
        return kernels.oldest_keys(self._t, min(count, len(self)), True)

    def ends(self) -> pa.RecordBatch:
        """Return the rows of the oldest and the newest tuple; no rows if the table is empty."""
        slots = self._t.state[[OLDEST, NEWEST]].astype(np.int32)
        return self.rows(slots[slots >= 0])

    def probe(
        self, frames: Bytes, stride: int, cursor: Ints, cap: int, *, wanted: Ints | None = None, leave: bool = False
    ) -> tuple[Slots, Ints, Bytes, int]:
        """Probe the waiting tuples with the rows of pages: one look-up per row of the pages, one step per pair.

        Parameters
        ----------
        frames, stride
            The pages and their layout's stride.
        cursor
            ``[0, 0, -1]`` for the first call; updated. Finished when ``cursor[0] == len(frames)``.
        cap
            Maximum pairs per call.
        wanted
            If given: match only rows whose key has all its rows in one page, or is in these sorted keys.
        leave
            Remove tuples when they match the last row of a key that has all its rows in one page. `leaving` returns
            their slots; pass these to `release`.

        Returns
        -------
        For each pair the slot of the stream tuple, the start of R's row in the flattened frames and the row's flags;
        and the number of look-ups.
        """
        chosen = np.empty(0, np.int64) if wanted is None else wanted
        return kernels.probe(self._t, frames, stride, chosen, wanted is not None, leave, cursor, cap)

    @staticmethod
    def leaving(slots: Slots, flags: Bytes) -> Slots:
        """Return the slots of the tuples that a `probe` with ``leave=True`` removed."""
        last = (flags & ENDS) == ENDS
        return slots if last.all() else slots[last]

    def take_oldest(self, count: int) -> tuple[Slots, NDArray[np.bool_]]:
        """Remove the oldest tuples; return their slots, to be passed to `release`, and which were matched."""
        taken = kernels.take_oldest(self._t, min(count, len(self)))
        return taken, self._t.matched[taken].astype(bool)

    def take_keys(self, keys: Ints) -> tuple[Slots, NDArray[np.bool_]]:
        """Remove all tuples of these keys; return their slots, to be passed to `release`, and which were matched."""
        taken = kernels.take_keys(self._t, keys)
        return taken, self._t.matched[taken].astype(bool)

    def release(self, slots: Slots) -> None:
        """Free the slots of removed tuples whose rows are no longer needed."""
        self._rows.free(slots)
        kernels.release(self._t, slots)

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

    def resized(self, capacity: int) -> StreamTable | None:
        """Return a table of another capacity with the same tuples, or None if they do not fit; this one is unchanged.

        Copies every row. Both tables are in memory until this one is released.
        """
        other = StreamTable(self._rows.codec, capacity, self._row_bytes)
        slots = kernels.in_order(self._t)
        for begin in range(0, slots.size, _COPIED):
            some = slots[begin : begin + _COPIED]
            if other.insert(self.keys_of(some), self.rows(some)) < some.size:
                return None
        other._t.matched[kernels.in_order(other._t)] = self._t.matched[slots]
        return other

    def check(self) -> None:
        """Assert every invariant: queue, chains, hash table and free list agree."""
        t = self._t
        queue: list[int] = []
        slot, before = int(t.state[OLDEST]), -1
        while slot >= 0:
            assert t.before[slot] == before, f"queue link back from {slot} is {t.before[slot]}, not {before}"
            queue.append(slot)
            before, slot = slot, int(t.after[slot])
        assert before == t.state[NEWEST], "the queue does not end at its newest tuple"
        assert len(queue) == len(set(queue)) == len(self), f"{len(queue)} queued, {len(self)} counted"
        position = {slot: place for place, slot in enumerate(queue)}
        chained: list[int] = []
        assert np.count_nonzero(t.entries) == self.distinct_keys, f"{self.distinct_keys} keys counted"
        for at in np.flatnonzero(t.entries):
            head = int(position_at(t.entries, at))
            assert find(t.entries, t.key, int(t.key[head])) == at, f"key {t.key[head]} is not found where it is"
            slot, last = head, -1
            while slot >= 0:
                assert t.key[slot] == t.key[head], "a chain holds two keys"
                assert position[slot] > last, "a chain is not in order of arrival"
                last = position[slot]
                chained.append(slot)
                assert t.chain[slot] >= 0 or t.tail[head] == slot, "the tail is not the end of the chain"
                slot = int(t.chain[slot])
        assert sorted(chained) == sorted(queue), "hash table and queue hold different tuples"
        free, slot = set(), int(t.state[FREE])
        while slot >= 0:
            assert slot not in free, "the free list is a loop"
            free.add(slot)
            slot = int(t.chain[slot])
        assert free.isdisjoint(queue), "a queued slot is free"
        assert len(free) + len(queue) == self.capacity, f"{len(free)} free + {len(queue)} of {self.capacity}"
        assert self.free == len(free), f"{len(free)} free, {self.free} counted"
        self._rows.check(np.array(queue, np.int32))
