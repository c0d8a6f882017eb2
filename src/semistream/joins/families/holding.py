"""Common part of joins whose tuples wait in a table of fixed capacity: how tuples leave, and how memory is released."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, Protocol, Self, TypeVar

import pyarrow as pa

from semistream.core.arrays import Ints, Slots
from semistream.core.budget import Reservation
from semistream.joins.interface.following import Undo
from semistream.joins.interface.join import Join
from semistream.joins.interface.leaving import Leaving
from semistream.relation.changes.patch import Patch

__all__ = ["LEAST_TUPLES", "HoldingJoin", "TupleTable"]


LEAST_TUPLES = 16


class TupleTable(Protocol):
    """A table in which tuples wait, each in a slot."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        ...

    @property
    def largest_row(self) -> int:
        """Bytes of the longest row that fits into the empty table."""
        ...

    def __len__(self) -> int: ...

    def sizes(self, slots: Slots) -> Ints | int:
        """Return the bytes of tuples."""
        ...

    def rows(self, slots: Slots) -> pa.RecordBatch:
        """Return tuples."""
        ...

    def resized(self, capacity: int) -> Self | None:
        """Return a table of another capacity with the same tuples, or None if they do not fit."""
        ...


T = TypeVar("T", bound=TupleTable)


class HoldingJoin(Join, Generic[T]):
    """A join whose stream tuples wait in a table.

    An algorithm implements the fixed bytes of the table, the bytes of a tuple, and its minimum capacity.
    """

    table: T
    _table_part: Reservation

    @abstractmethod
    def _fixed_bytes(self) -> int:
        """Return the bytes of the table without its tuples."""

    @abstractmethod
    def _tuple_bytes(self) -> int:
        """Return the bytes of one waiting tuple."""

    def _least_tuples(self, patch: Patch) -> int:
        """Return the minimum capacity of the table after an update."""
        return LEAST_TUPLES

    def _held(self, slots: Slots) -> Leaving:
        """Return tuples of the table, ready to leave."""
        return Leaving(slots.size, self.table.sizes(slots), lambda begin, end: self.table.rows(slots[begin:end]))

    def _limit_rows(self) -> None:
        """Set the longest row that may wait: longer rows would displace too many others, and are looked up instead."""
        if self.stream_codec.variable:
            self.largest_row = max(self.table.largest_row // 4, int(self.row_bytes))

    def give_up(self, lacking: int, patch: Patch) -> Undo:
        """Move the waiting tuples to a smaller table."""
        table, fixed = self.table, self._fixed_bytes()
        least = fixed + self._least_tuples(patch) * self._tuple_bytes()
        if table.nbytes - lacking < least:
            raise self.too_large(lacking - max(0, table.nbytes - least), patch)
        # Shrink a little more than necessary, so that the next update need not do it again.
        capacity = (max(least, table.nbytes - lacking - table.nbytes // 16) - fixed) // self._tuple_bytes()
        if capacity < len(table) or (smaller := table.resized(capacity)) is None:
            raise self.must_drain(len(table))
        if self.largest_row is not None and smaller.largest_row < self.largest_row:
            raise self.too_large(lacking, patch)

        def undo() -> None:
            self.table = table
            self._table_part.resize(table.nbytes)

        self.table = smaller
        self._table_part.resize(smaller.nbytes)
        return undo

    @property
    def waiting(self) -> int:
        return len(self.table) if self.bound else 0
