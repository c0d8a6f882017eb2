"""A table that is described, not stored: its Arrow batches are generated when they are requested.

A stream and a master table are both a `TableSource`; the subclass generates the rows. Sources are small and
picklable, so a description can be sent to another process and gives the same rows there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import pyarrow as pa

from semistream.core.arguments import check_at_least

__all__ = ["BATCH_ROWS", "TableSource", "batch_ranges", "check_batch_rows"]

BATCH_ROWS = 1 << 16
"""Default rows per batch: enough for a low cost per batch, few enough to stay in the processor's cache."""


class TableSource(ABC):
    """Rows as Arrow batches."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of every batch."""

    @property
    @abstractmethod
    def row_count(self) -> int | None:
        """Total number of rows; None for an endless stream."""

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows from the first. Every call starts again and gives the same rows."""

    def table(self) -> pa.Table:
        """Return all rows as one table, for sizes that fit in memory."""
        if self.row_count is None:
            raise ValueError("an endless stream does not fit into a table; give the number of rows")
        return pa.Table.from_batches(self.batches(), schema=self.schema)


def check_batch_rows(batch_rows: int) -> None:
    """Raise `ValueError` for a batch size below one row."""
    check_at_least(1, batch_rows=batch_rows)


def batch_ranges(rows: int | None, batch_rows: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the length of each batch, endlessly if ``rows`` is None.

    >>> list(batch_ranges(7, 3))
    [(0, 3), (3, 3), (6, 1)]
    """
    start = 0
    while rows is None or start < rows:
        count = batch_rows if rows is None else min(batch_rows, rows - start)
        yield start, count
        start += count
