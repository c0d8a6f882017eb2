"""Stream tuples that leave the join: their sizes in bytes, and how to make batches of them.

A result may be far larger than its input: a stream row is copied for each row of R that it matches. So pairs are first
collected as positions, and then made into batches of a bounded number of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Ints
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.rows.selection import take_rows

__all__ = ["BatchRows", "Leaving", "portions"]


class Leaving(NamedTuple):
    """Stream tuples that leave, not yet made into a batch."""

    rows: int
    sizes: Ints | int
    """Bytes of each encoded tuple; one number if all have the same size."""
    some: Callable[[int, int], pa.RecordBatch]
    """Makes a batch of the tuples from one position up to another."""


class BatchRows:
    """The rows of a batch; any row may leave, also repeatedly.

    >>> batch = pa.record_batch({"id": [7, 8], "name": ["seven", None]})
    >>> leaving = BatchRows(RowCodec(batch.schema), batch).at(np.array([1, 0, 0]))
    >>> leaving.sizes.tolist(), leaving.some(0, 2).to_pydict()
    ([17, 22, 22], {'id': [8, 7], 'name': [None, 'seven']})
    """

    def __init__(self, codec: RowCodec, batch: pa.RecordBatch) -> None:
        self._codec = codec
        self._batch = batch

    @cached_property
    def _sizes(self) -> Ints | int:
        if self._codec.variable:
            return self._codec.lengths(self._batch) + self._codec.blank_bytes
        return self._codec.stride + self._codec.blank_bytes

    def all(self) -> Leaving:
        """Return all rows."""
        return Leaving(self._batch.num_rows, self._sizes, lambda begin, end: self._batch.slice(begin, end - begin))

    def at(self, positions: Ints) -> Leaving:
        """Return the rows at ``positions``."""
        sizes = self._sizes if isinstance(self._sizes, int) else self._sizes[positions]
        return Leaving(positions.size, sizes, lambda begin, end: take_rows(self._batch, positions[begin:end]))


def portions(count: int, sizes: Ints | int, limit: int) -> Iterator[tuple[int, int]]:
    """Cut rows of these sizes into portions of at most ``limit`` bytes; a larger row is a portion of its own.

    >>> list(portions(5, np.array([3, 3, 9, 1, 1]), 6)), list(portions(5, 3, 7))
    ([(0, 2), (2, 3), (3, 5)], [(0, 2), (2, 4), (4, 5)])
    """
    if isinstance(sizes, int):
        step = max(1, limit // max(1, sizes))
        for begin in range(0, count, step):
            yield begin, min(begin + step, count)
        return
    ends, begin, before = np.cumsum(sizes), 0, 0
    while begin < count:
        end = max(begin + 1, int(np.searchsorted(ends, before + limit, side="right")))
        yield begin, end
        begin, before = end, int(ends[end - 1])
