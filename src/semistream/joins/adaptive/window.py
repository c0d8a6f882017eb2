"""The window: stream tuples that are joined together, in order of arrival.

Tuples may be *lent*: they belong to a batch that the caller owns while it is joined. Slices of the batch are views, so
the window holds only the number of a lent tuple.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Slots
from semistream.relation.rows.row_sizes import BatchBytes

__all__ = ["Window"]


_PARTS = 8
"""The room of tuples that have left is reused when 1/8 of the window has left, or all of it."""


class _Part(NamedTuple):
    batch: pa.RecordBatch
    size: int
    """Bytes that count towards the limit; 0 if the batch is lent."""
    due: float
    lent: bool


class Window:
    """Batches of the stream in the order of their arrival, and a number for each tuple.

    Parameters
    ----------
    schema
        Schema of the stream.
    limit
        Maximum bytes of tuples, without numbers and lent tuples; a single longer row is accepted.
    tuples
        Maximum number of tuples.

    Examples
    --------
    >>> batch = pa.record_batch({"id": [7, 7, 9]})
    >>> window = Window(batch.schema, 4096, 100)
    >>> window.room(batch)
    3
    >>> window.numbers_of_next(3)[:] = [0, 0, 1]
    >>> window.append(batch)
    >>> part, numbers, _ = window.take(2)
    >>> part.num_rows, numbers.tolist(), len(window)
    (2, [0, 0], 1)
    """

    bytes_per_tuple = 4
    """Bytes of a tuple in addition to its data: its number."""

    def __init__(self, schema: pa.Schema, limit: int, tuples: int) -> None:
        self.limit = limit
        self.size_of = BatchBytes(schema)
        self.nbytes = 0
        """Bytes of the tuples, without lent ones."""
        self.refused = False
        """Whether tuples were refused for lack of room since tuples last left."""
        self._columns = len(schema)
        self._numbers: Slots = np.empty(tuples, np.int32)
        self._begin = 0
        self._end = 0
        self._batches: deque[_Part] = deque()

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def tuples(self) -> int:
        """Maximum number of tuples."""
        return self._numbers.size

    @property
    def free(self) -> int:
        """Number of tuples that can still be numbered."""
        return self.tuples - self._end

    @property
    def due(self) -> float:
        """Deadline of the first tuples."""
        return self._batches[0].due if self._batches else math.inf

    @property
    def lent(self) -> int:
        """Number of lent tuples in the window."""
        return sum(part.batch.num_rows for part in self._batches if part.lent)

    @property
    def lent_bytes(self) -> int:
        """Bytes of the lent tuples."""
        return sum(self.size_of(part.batch) for part in self._batches if part.lent)

    def resize(self, limit: int, tuples: int) -> bool:
        """Change the limits; return False, and change nothing, if the window holds more."""
        held = len(self)
        if held > tuples or (held and self.nbytes > limit):
            return False
        self.limit = limit
        numbers = np.empty(tuples, np.int32)
        numbers[:held] = self.numbers
        self._numbers, self._begin, self._end = numbers, 0, held
        return True

    def room(self, batch: pa.RecordBatch, lent: int | None = None) -> int:
        """Return how many rows, counted from the first, fit; at least one if the window is empty.

        Lent rows do not count towards the limit; ``lent`` is the maximum of their bytes. The room of tuples that have
        left is reused only when they are many, so that a window does not consist of many small parts.
        """
        held = len(self)
        if self._begin and self._begin >= (self.tuples // _PARTS if held else 0):
            self._numbers[:held] = self.numbers
            self._begin, self._end = 0, held
        count = min(int(batch.num_rows), self.free)
        room = self.limit - self.nbytes if lent is None else lent
        size = self.size_of(batch.slice(0, count))
        if size > room:
            count = int(count * max(room, 0) / size)
            while count and self.size_of(batch.slice(0, count)) > room:
                count //= 2
        count = count or int(held == 0 and batch.num_rows > 0)
        self.refused = self.refused or count < min(1, batch.num_rows)
        return count

    def numbers_of_next(self, count: int) -> Slots:
        """Return the buffer for the numbers of the next ``count`` tuples."""
        return self._numbers[self._end : self._end + count]

    def append(self, batch: pa.RecordBatch, due: float = math.inf, *, lent: bool = False) -> None:
        """Append tuples whose numbers have been written, with deadline ``due``."""
        size = 0 if lent else self.size_of(batch)
        self._batches.append(_Part(batch, size, due, lent))
        self._end += batch.num_rows
        self.nbytes += size

    def keep(self) -> bool:
        """Count lent tuples as the window's own; return False, and change nothing, if there is no room for them."""
        if not self.lent:
            return True
        parts = [
            part._replace(size=self.size_of(part.batch), lent=False) if part.lent else part for part in self._batches
        ]
        size = sum(part.size for part in parts)
        if size > self.limit and len(self) > 1:
            return False
        self._batches, self.nbytes = deque(parts), size
        return True

    @property
    def numbers(self) -> Slots:
        """Numbers of all tuples."""
        return self._numbers[self._begin : self._end]

    def parts(self) -> Iterator[tuple[pa.RecordBatch, Slots, float]]:
        """Yield the batches of the window, the numbers of their tuples, and their deadlines."""
        begin = self._begin
        for batch, _, due, _ in self._batches:
            yield batch, self._numbers[begin : begin + batch.num_rows], due
            begin += batch.num_rows

    def take(self, most: int) -> tuple[pa.RecordBatch, Slots, float]:
        """Remove up to ``most`` tuples of the first batch; return them, their numbers and their deadline."""
        self.refused = False
        batch, size, due, lent = self._batches.popleft()
        self.nbytes -= size
        if batch.num_rows > most:
            rest = batch.slice(most)
            size = 0 if lent else self.size_of(rest)
            self._batches.appendleft(_Part(rest, size, due, lent))
            self.nbytes += size
            batch = batch.slice(0, most)
        begin, self._begin = self._begin, self._begin + int(batch.num_rows)
        return batch, self._numbers[begin : self._begin], due

    def check(self) -> None:
        """Assert all invariants."""
        assert sum(part.batch.num_rows for part in self._batches) == len(self)
        assert sum(part.size for part in self._batches) == self.nbytes
        assert all(part.size == 0 for part in self._batches if part.lent)
        assert 0 <= self._begin <= self._end <= self.tuples
        most = self.limit + len(self._batches) * (8 + 2 * self._columns)
        assert self.nbytes <= most or len(self) == 1, f"{self.nbytes} B in a window of {self.limit} B"
