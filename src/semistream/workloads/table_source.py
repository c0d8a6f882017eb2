"""A table that is described, not held: its Arrow batches are made when they are asked for.
 A stream and a master table are both a `TableSource`; what makes a row is up to the subclass. Sources are
small and picklable, so a description can be sent to another process and give the same rows there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import pyarrow as pa

from semistream.core.arguments import check_at_least

__all__ = ["BATCH_ROWS", "TableSource", "batch_ranges", "check_batch_rows"]

BATCH_ROWS = 1 << 16
"""Rows of a batch unless told otherwise: many for little work per batch, few enough to stay in cache."""


class TableSource(ABC):
    """Rows as Arrow batches."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of every batch."""

    @property
    @abstractmethod
    def row_count(self) -> int | None:
        """How many rows there are in all; None for a stream without end."""

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows from the first on; every call starts anew and gives the same rows."""

    def table(self) -> pa.Table:
        """Return all rows at once, for sizes that fit in memory."""
        if self.row_count is None:
            raise ValueError("a stream without end does not fit in a table; give the number of rows")
        return pa.Table.from_batches(self.batches(), schema=self.schema)


def check_batch_rows(batch_rows: int) -> None:
    """Raise `ValueError` for a batch size below one row."""
    check_at_least(1, batch_rows=batch_rows)


def batch_ranges(rows: int | None, batch_rows: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the length of each batch; without end if ``rows`` is None.

    >>> list(batch_ranges(7, 3))
    [(0, 3), (3, 3), (6, 1)]
    """
    start = 0
    while rows is None or start < rows:
        count = batch_rows if rows is None else min(batch_rows, rows - start)
        yield start, count
        start += count
