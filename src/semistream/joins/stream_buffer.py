"""The stream buffer: tuples that were offered and not yet taken by the algorithm, within a number of bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.relation.sizes import BatchBytes

__all__ = ["StreamBuffer", "Tuples"]

Ints = NDArray[np.int64]


class Tuples(NamedTuple):
    """Some of the stream: rows, and the key of each; no key is NULL."""

    keys: Ints
    batch: pa.RecordBatch


class StreamBuffer:
    """Tuples in the order of their arrival.

    Beside them are rows that do not go through the algorithm, without a key or too long for its memory; they wait for
    the next turn and count as well.

    Parameters
    ----------
    schema
        Of the stream.
    limit
        Bytes at most, but for a single row that is longer.

    Examples
    --------
    >>> batch = pa.record_batch({"id": [7, 7, 9]})
    >>> buffer = StreamBuffer(batch.schema, 4096)
    >>> buffer.receive(Tuples(np.array([7, 7, 9]), batch))
    >>> [part.keys.tolist() for part in buffer.take(2)], len(buffer)
    ([[7, 7]], 1)
    """

    def __init__(self, schema: pa.Schema, limit: int) -> None:
        self.limit = limit
        self.size_of = BatchBytes(schema)
        """Bytes of a batch."""
        self.nbytes = 0
        """Bytes of the tuples."""
        self._columns = len(schema)
        self._rows = 0
        self._parts: deque[tuple[Tuples, int]] = deque()
        self._aside: deque[tuple[Ints | None, pa.RecordBatch]] = deque()
        self._aside_rows = 0
        self._aside_bytes = 0

    def __len__(self) -> int:
        """Return the number of tuples, those put aside left out."""
        return self._rows

    @property
    def held(self) -> int:
        """Rows in all."""
        return self._rows + self._aside_rows

    def fitting(self, batch: pa.RecordBatch) -> int:
        """Return how many rows, from the first on, there is room for."""
        room, size, count = self.limit - self.nbytes - self._aside_bytes, self.size_of(batch), int(batch.num_rows)
        if size > room:
            count = int(count * max(room, 0) / size)
            while count and self.size_of(batch.slice(0, count)) > room:
                count //= 2
        return count

    def receive(self, part: Tuples) -> None:
        """Append tuples."""
        self._parts.append((part, self._counted(part)))

    def put_back(self, part: Tuples) -> None:
        """Return tuples that found no room elsewhere to the front."""
        if len(part.keys):
            self._parts.appendleft((part, self._counted(part)))

    def _counted(self, part: Tuples) -> int:
        size = self.size_of(part.batch)
        self._rows += len(part.keys)
        self.nbytes += size
        return size

    def take(self, most: int) -> Iterator[Tuples]:
        """Take up to ``most`` tuples out, in order of arrival."""
        while most > 0 and self._parts:
            part, size = self._parts.popleft()
            self._rows -= len(part.keys)
            self.nbytes -= size
            if len(part.keys) > most:
                self.put_back(Tuples(part.keys[most:], part.batch.slice(most)))
                part = Tuples(part.keys[:most], part.batch.slice(0, most))
            most -= len(part.keys)
            yield part

    def put_aside(self, keys: Ints | None, batch: pa.RecordBatch) -> None:
        """Keep rows for the next turn that do not go through the algorithm."""
        self._aside.append((keys, batch))
        self._aside_rows += batch.num_rows
        self._aside_bytes += self.size_of(batch)

    def take_aside(self) -> Iterator[tuple[Ints | None, pa.RecordBatch]]:
        """Take the rows out that were put aside."""
        while self._aside:
            keys, batch = self._aside.popleft()
            self._aside_rows -= batch.num_rows
            self._aside_bytes -= self.size_of(batch)
            yield keys, batch

    def check(self) -> None:
        """Assert all invariants."""
        assert sum(len(part.keys) for part, _ in self._parts) == self._rows
        assert sum(size for _, size in self._parts) == self.nbytes
        assert sum(batch.num_rows for _, batch in self._aside) == self._aside_rows
        # bits are rounded up to bytes in each part; a single row may be longer than the whole buffer
        held, parts = self.nbytes + self._aside_bytes, len(self._parts) + len(self._aside)
        most = self.limit + parts * (8 + 2 * self._columns)
        assert held <= most or self._aside_rows == 1, f"{held} B in a stream buffer of {self.limit} B"
