"""The stream buffer: tuples that were offered and not yet taken by the algorithm, limited in bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Ints
from semistream.relation.rows.row_codec import RowCodec

__all__ = ["Room", "StreamBuffer", "Tuples"]


class Tuples(NamedTuple):
    """Rows of the stream, and the key of each; no key is NULL."""

    keys: Ints
    batch: pa.RecordBatch


@dataclass
class Room:
    """Bytes for arriving tuples, which two buffers may share."""

    limit: int
    """Maximum bytes; a single longer row is accepted."""
    taken: int = 0


class StreamBuffer:
    """Tuples in order of arrival.

    The buffer also holds rows *aside*, which do not go through the algorithm because they have no key or are too long
    for its memory. They wait for the next iteration and count as well.

    Parameters
    ----------
    codec
        Codec of the stream's rows: a row counts with its encoded bytes, here and in the memory of the algorithm.
    room
        Maximum bytes; a single longer row is accepted. A `Room` may be shared with another buffer.

    Examples
    --------
    >>> batch = pa.record_batch({"id": [7, 7, 9]})
    >>> buffer = StreamBuffer(RowCodec(batch.schema), 4096)
    >>> buffer.receive(Tuples(np.array([7, 7, 9]), batch))
    >>> [part.keys.tolist() for part in buffer.take(2)], len(buffer)
    ([[7, 7]], 1)
    """

    def __init__(self, codec: RowCodec, room: int | Room) -> None:
        self.room = room if isinstance(room, Room) else Room(room)
        self.nbytes = 0
        """Bytes of the tuples."""
        self._codec = codec
        self._least = codec.stride + codec.blank_bytes
        self._rows = 0
        self._parts: deque[tuple[Tuples, Ints | None]] = deque()  # with the end of each row, if lengths vary
        self._aside: deque[tuple[Ints | None, pa.RecordBatch]] = deque()
        self._aside_rows = 0
        self._aside_bytes = 0

    def __len__(self) -> int:
        """Return the number of tuples, without rows put aside."""
        return self._rows

    @property
    def held(self) -> int:
        """Number of rows, including rows put aside."""
        return self._rows + self._aside_rows

    @property
    def limit(self) -> int:
        """Maximum bytes, including those of a buffer that shares the room."""
        return self.room.limit

    def size_of(self, batch: pa.RecordBatch) -> int:
        """Return the bytes of a batch's rows."""
        ends = self._ends(batch)
        return batch.num_rows * self._least if ends is None else _size(ends)

    def fitting(self, batch: pa.RecordBatch) -> int:
        """Return how many rows, counted from the first, fit."""
        return self.within(batch, self.room.limit - self.room.taken)

    def within(self, batch: pa.RecordBatch, room: int) -> int:
        """Return how many rows, counted from the first, fit into ``room`` bytes."""
        most = min(int(batch.num_rows), max(room, 0) // self._least)
        ends = self._ends(batch.slice(0, most))
        return most if ends is None else int(np.searchsorted(ends[1:], room, side="right"))

    def receive(self, part: Tuples) -> None:
        """Append tuples."""
        self._parts.append(self._counted(part, self._ends(part.batch)))

    def put_back(self, part: Tuples) -> None:
        """Put tuples back to the front, because there was no room for them elsewhere."""
        if len(part.keys):
            self._parts.appendleft(self._counted(part, self._ends(part.batch)))

    def take(self, most: int) -> Iterator[Tuples]:
        """Remove and yield up to ``most`` tuples, in order of arrival."""
        while most > 0 and self._parts:
            part, ends = self._parts.popleft()
            self._rows -= len(part.keys)
            self._count(-self._size(part, ends))
            if len(part.keys) > most:
                rest = Tuples(part.keys[most:], part.batch.slice(most))
                self._parts.appendleft(self._counted(rest, None if ends is None else ends[most:]))
                part = Tuples(part.keys[:most], part.batch.slice(0, most))
            most -= len(part.keys)
            yield part

    def _ends(self, batch: pa.RecordBatch) -> Ints | None:
        """Return a zero and the cumulative ends of rows in bytes; None if all rows have the same length."""
        if not self._codec.variable:
            return None
        return np.append(0, np.cumsum(self._codec.lengths(batch) + self._codec.blank_bytes))

    def _size(self, part: Tuples, ends: Ints | None) -> int:
        return len(part.keys) * self._least if ends is None else _size(ends)

    def _counted(self, part: Tuples, ends: Ints | None) -> tuple[Tuples, Ints | None]:
        self._rows += len(part.keys)
        self._count(self._size(part, ends))
        return part, ends

    def _count(self, size: int) -> None:
        self.nbytes += size
        self.room.taken += size

    def put_aside(self, keys: Ints | None, batch: pa.RecordBatch) -> None:
        """Keep rows that do not go through the algorithm for the next iteration."""
        self._aside.append((keys, batch))
        self._aside_rows += batch.num_rows
        self._count_aside(self.size_of(batch))

    def take_aside(self) -> Iterator[tuple[Ints | None, pa.RecordBatch]]:
        """Remove and yield the rows that were put aside."""
        while self._aside:
            keys, batch = self._aside.popleft()
            self._aside_rows -= batch.num_rows
            self._count_aside(-self.size_of(batch))
            yield keys, batch

    def _count_aside(self, size: int) -> None:
        self._aside_bytes += size
        self.room.taken += size

    def check(self) -> None:
        """Assert all invariants."""
        assert sum(len(part.keys) for part, _ in self._parts) == self._rows
        assert sum(self._size(part, ends) for part, ends in self._parts) == self.nbytes
        assert sum(batch.num_rows for _, batch in self._aside) == self._aside_rows
        held = self.nbytes + self._aside_bytes
        assert held <= self.room.taken, f"{held} B in a stream buffer, {self.room.taken} B counted"
        # A single row may be longer than the whole buffer, here or in a buffer that shares the room.
        assert held <= self.limit or self._aside_rows == 1, f"{held} B in a stream buffer of {self.limit} B"


def _size(ends: Ints) -> int:
    return int(ends[-1] - ends[0])
