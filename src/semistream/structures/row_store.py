"""Rows in numbered slots of flat arrays, put, read and freed one by one in any order.

Fixed-width rows lie at ``slot * stride``. Rows that vary in length lie in chains of equal segments, so that any
row fits wherever segments are free, nothing has to be moved, and every byte is counted; a chain costs at most
one segment more than its row needs.

The arrays may be given from outside (memory-mapped files), which makes the store shareable between processes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.core.compiled import Int, copy_bytes, inner_kernel, kernel
from semistream.core.errors import SemistreamError
from semistream.relation.rows.row_codec import RowCodec, Rows
from semistream.structures.array_source import Arrays, in_memory
from semistream.structures.elastic import ElasticArrays

__all__ = ["RowStore", "RowTable", "free_segments", "put_row", "segments_of"]


_FREE, _COUNT, _READY = 0, 1, 2


class RowTable(NamedTuple):
    """The arrays of a store. Fixed rows lie in ``data``, and the next three are empty; else ``data`` has segments."""

    data: Bytes
    first: Slots
    length: Slots
    next: Slots
    state: Ints


@inner_kernel
def free_segments(t: RowTable) -> Int:
    """Return how many segments no row has."""
    return t.next.size - np.int64(t.state[_COUNT])


@inner_kernel
def segments_of(length: Int, width: int) -> Int:
    """Return how many segments a row of so many bytes takes."""
    return max(1, (length + width - 1) // width)


@inner_kernel
def put_row(t: RowTable, width: int, slot: Int, data: Bytes, start: Int, length: Int) -> None:
    """Copy a row into a free slot; if rows vary, there are enough segments."""
    if t.next.size == 0:
        copy_bytes(t.data, slot * width, data, start, width)
        return
    t.length[slot] = length
    segment = np.int64(t.state[_FREE])
    t.first[slot] = segment
    at, left = np.int64(start), np.int64(length)
    while True:
        part = min(int(left), width)
        copy_bytes(t.data, segment * width, data, at, part)
        at += part
        left -= part
        t.state[_COUNT] += 1
        after = np.int64(t.next[segment])
        if left == 0:
            t.next[segment] = -1
            t.state[_FREE] = after
            return
        segment = after


@kernel
def _put(t: RowTable, width: int, slots: Slots, data: Bytes, starts: Ints, lengths: Ints) -> None:
    for i in range(slots.size):
        put_row(t, width, np.int64(slots[i]), data, starts[i], lengths[i])


@kernel
def _free_segments(t: RowTable, slots: Slots) -> None:
    for i in range(slots.size):
        first = np.int64(t.first[slots[i]])
        if first < 0:
            continue
        t.first[slots[i]] = -1
        last = first
        t.state[_COUNT] -= 1
        while t.next[last] >= 0:
            last = np.int64(t.next[last])
            t.state[_COUNT] -= 1
        # in their order: segments that lay next to each other do so in the next row too
        t.next[last] = t.state[_FREE]
        t.state[_FREE] = first


@kernel
def _gather_segments(t: RowTable, width: int, slots: Slots) -> tuple[Bytes, Ints]:
    starts = np.empty(slots.size, np.int64)
    total = 0
    for i in range(slots.size):
        starts[i] = total
        total += t.length[slots[i]]
    data = np.empty(total, np.uint8)
    for i in range(slots.size):
        at, left = starts[i], int(t.length[slots[i]])
        segment = np.int64(t.first[slots[i]])
        while left > 0:
            begin, after = segment, np.int64(t.next[segment])
            while after == segment + 1:
                segment, after = after, np.int64(t.next[after])
            part: Int = min(left, int(segment + 1 - begin) * width)
            copy_bytes(data, at, t.data, begin * width, part)
            at += part
            left -= part
            segment = after
    return data, starts


@kernel
def _draw_in(t: RowTable, width: int, limit: int) -> None:
    """Move what lies in segments from ``limit`` on to free ones below it, of which there are enough."""
    used = np.zeros(t.next.size, np.bool_)
    for slot in range(t.first.size):
        segment = np.int64(t.first[slot])
        while segment >= 0:
            used[segment] = True
            segment = np.int64(t.next[segment])
    free = np.int64(-1)
    for at in range(limit - 1, -1, -1):
        if not used[at]:
            t.next[at] = free
            free = np.int64(at)
    for slot in range(t.first.size):
        before: Int = -1
        segment = np.int64(t.first[slot])
        while segment >= 0:
            if segment >= limit:
                to = free
                free = np.int64(t.next[to])
                copy_bytes(t.data, to * width, t.data, segment * width, width)
                t.next[to] = t.next[segment]
                if before >= 0:
                    t.next[before] = to
                else:
                    t.first[slot] = to
                segment = to
            before = segment
            segment = np.int64(t.next[segment])
    t.state[_FREE] = free


def _fixed(data: Bytes) -> RowTable:
    none = np.empty(0, np.int32)
    return RowTable(data, none, none, none, np.zeros(3, np.int64))


class RowStore:
    """Room for up to ``slots`` rows of one codec.

    All memory is taken at once. A row is put or moved in one copy, and freed in constant time; if rows vary, in time
    in proportion to its segments.

    Parameters
    ----------
    codec
        How the rows are encoded.
    slots
        Rows at most.
    row_bytes
        Expected bytes of a variable row: the store has room for ``slots`` rows of that size. Ignored for
        fixed rows.
    arrays
        Where the arrays live; a store that was left in mapped files is taken up as it was.
    """

    SEGMENT = 32
    """Bytes of a segment: shorter wastes less at the end of a row, longer makes shorter chains."""

    def __init__(self, codec: RowCodec, slots: int, row_bytes: float = 0.0, arrays: Arrays = in_memory) -> None:
        self.codec = codec
        self.slots = slots
        self.variable = codec.variable
        self.width: int = self.SEGMENT if self.variable else codec.stride
        """Bytes of a segment, or of a row if rows are fixed."""
        if not self.variable:
            self._t = _fixed(arrays("rows", slots * self.width, np.uint8))
            return
        self._segments_a_slot = math.ceil(max(row_bytes, 1) / self.SEGMENT)
        segments = self.segments_for(slots)
        self._t = RowTable(
            data=arrays("segments", segments * self.SEGMENT, np.uint8),
            first=arrays("first_segment", slots, np.int32),
            length=arrays("row_length", slots, np.int32),
            next=arrays("next_segment", segments, np.int32),
            state=arrays("segment_state", 3, np.int64),
        )
        if not self._t.state[_READY]:
            self._t.first[:] = -1
            self._t.next[:] = np.append(np.arange(1, segments), -1)
            self._t.state[_READY] = 1

    @classmethod
    def bytes_per_slot(cls, codec: RowCodec, row_bytes: float = 0.0) -> int:
        """Return what one slot costs in memory."""
        if not codec.variable:
            return codec.stride
        return math.ceil(max(row_bytes, 1) / cls.SEGMENT) * (cls.SEGMENT + 4) + 8

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self._t) if self.variable else self._t.data.nbytes

    @property
    def table(self) -> RowTable:
        """The arrays, for kernels; others after a `resize`."""
        return self._t

    @property
    def free_segments(self) -> int:
        """Segments that no row has; none if rows are fixed."""
        return int(self._t.next.size - self._t.state[_COUNT]) if self.variable else 0

    @property
    def largest_row(self) -> int:
        """The longest row that an empty store can take."""
        return int(self._t.data.size) if self.variable else self.width

    def fitting(self, lengths: Ints) -> int:
        """Return how many of the rows, from the first on, fit into what is free."""
        if not self.variable:
            return int(lengths.size)
        free = self._t.next.size - int(self._t.state[_COUNT])
        needed = np.cumsum(-(-np.maximum(lengths, 1) // self.SEGMENT))
        return int(np.searchsorted(needed, free, side="right"))

    def put(self, slots: Slots, rows: Rows) -> None:
        """Store ``rows[i]`` in ``slots[i]``; the slots are free and the rows fit."""
        if slots.size != len(rows) or self.fitting(rows.lengths) < len(rows):
            raise SemistreamError(
                f"{len(rows)} rows of {int(rows.lengths.sum()):,} B do not fit into {slots.size} slots of a row store "
                f"that takes rows up to {self.largest_row:,} B; this is a fault of semistream, please report it"
            )
        _put(self._t, self.width, slots, rows.data, rows.starts, rows.lengths)

    def free(self, slots: Slots) -> None:
        """Give slots back."""
        if self.variable:
            _free_segments(self._t, slots)

    def sizes(self, slots: Slots) -> Ints | int:
        """Return the bytes of the rows in slots; one number if all take the same."""
        if not self.variable:
            return self.width + self.codec.blank_bytes
        return self._t.length[slots].astype(np.int64) + self.codec.blank_bytes

    def locate(self, slots: Slots) -> tuple[Bytes, Ints]:
        """Return bytes and the start of each slot's row in them, ready for `RowCodec.decode`.

        Fixed rows are where they lie, and nothing is copied; rows that vary are copied together.
        """
        if self.variable:
            return _gather_segments(self._t, self.width, slots)
        return self._t.data, slots.astype(np.int64) * self.width

    def segments_for(self, slots: int) -> int:
        """Return the segments of a store of so many slots; none if rows are fixed."""
        return max(1, slots * self._segments_a_slot) if self.variable else 0

    def move(self, sources: Slots, targets: Slots) -> None:
        """Move rows from slots in use to free ones."""
        if not self.variable:
            rows = self._t.data.reshape(-1, self.width)
            rows[targets] = rows[sources]
            return
        t = self._t
        t.first[targets], t.length[targets] = t.first[sources], t.length[sources]
        t.first[sources] = -1

    def resize(self, slots: int, arrays: ElasticArrays) -> None:
        """Have another number of slots, all in use being below it; segments in use must fit, too."""
        if not self.variable:
            del self._t
            self._t = _fixed(arrays.resize("rows", slots * self.width))
            self.slots = slots
            return
        segments, before = self.segments_for(slots), self._t.next.size
        if segments < before:
            _draw_in(self._t, self.width, segments)
        state = self._t.state
        del self._t
        self._t = RowTable(
            data=arrays.resize("segments", segments * self.SEGMENT),
            first=arrays.resize("first_segment", slots),
            length=arrays.resize("row_length", slots),
            next=arrays.resize("next_segment", segments),
            state=state,
        )
        self._t.first[self.slots :] = -1
        if segments > before:
            self._t.next[before:] = np.append(np.arange(before + 1, segments), state[_FREE])
            state[_FREE] = before
        self.slots = slots

    def check(self, used: Slots) -> None:
        """Assert that exactly ``used`` hold rows and every segment is in one chain or free."""
        if not self.variable:
            return
        t = self._t
        assert np.array_equal(np.flatnonzero(t.first >= 0), np.sort(used)), "slots in use differ"
        chained = int(np.sum(-(-np.maximum(t.length[used], 1) // self.SEGMENT)))
        assert chained == t.state[_COUNT], f"{chained} segments in chains, {t.state[_COUNT]} counted"
        free, segment = 0, int(t.state[_FREE])
        while segment >= 0:
            free += 1
            segment = int(t.next[segment])
        assert free + chained == t.next.size, f"{free} free + {chained} used of {t.next.size} segments"
