"""What MESHJOIN and R-MESHJOIN share: R is scanned cyclically, and a tuple leaves after it was joined with all of R."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from semistream.core.arguments import check_at_least
from semistream.core.arrays import Bytes
from semistream.core.errors import UpdateRefusedError
from semistream.joins.families.waiting import WaitingJoin
from semistream.joins.interface.following import Undo
from semistream.joins.interface.view import View
from semistream.relation.changes.overlay import Change
from semistream.relation.changes.patch import Patch
from semistream.relation.relation import Relation
from semistream.structures.stream_table import StreamTable

__all__ = ["CyclicJoin", "CyclicView", "Scan"]


@dataclass(frozen=True)
class CyclicView(View):
    """The state that a join with a cyclic scan reports."""

    disk_pages: int
    """Pages of a partition."""
    turns: int
    """``k``: partitions of R."""
    tuples_a_turn: int
    """``w``: tuples that enter and leave per iteration."""


class Scan(NamedTuple):
    """The memory of a cyclic scan: a disk buffer of one partition, and a table for at least one tuple per iteration."""

    pages: int
    """Pages of R."""
    frame_bytes: int
    tuple_bytes: int
    """Bytes of a waiting tuple."""

    def needed(self, partition: int) -> int:
        """Return the minimum bytes with partitions of ``partition`` pages."""
        turns = max(1, math.ceil(self.pages / partition))
        return partition * self.frame_bytes + (turns + 1) * self.tuple_bytes + StreamTable.fixed_bytes()

    def thriftiest(self) -> int:
        """Return the partition, in pages, that needs the least memory."""
        # At the minimum, buffer and table need about the same; rounding shifts it, but never to four times the pages.
        even = math.isqrt(self.pages * self.tuple_bytes // self.frame_bytes)
        sizes = np.arange(1, min(4 * even + 4, max(1, self.pages)) + 1)
        return int(sizes[np.argmin(sizes * self.frame_bytes - (-self.pages // sizes) * self.tuple_bytes)])

    def least(self, free: int) -> int:
        """Return approximately the smallest partition for which ``free`` bytes are enough."""
        partition, most = 1, self.thriftiest()
        while partition < most and self.needed(partition) > free:
            partition = min(max(partition + 1, int(partition * 1.25)), most)
        return partition


class CyclicJoin(WaitingJoin):
    """Each iteration adds ``w`` tuples, reads the next partition of R, and lets the oldest ``w`` tuples leave.

    An algorithm implements the size of the disk buffer, `_partition`; the ``k`` partitions of R and ``w`` follow.

    Parameters
    ----------
    pages
        Pages of a partition; None lets the algorithm choose.
    seek_pages
        Seek time of the device, in pages of transfer (``S / T``).
    """

    uses_index = False
    scans = True

    def __init__(self, relation: Relation, *, pages: int | None, seek_pages: float, **common: Any) -> None:
        check_at_least(0, seek_pages=seek_pages)
        self._given_pages = pages
        self._seek_pages = seek_pages
        super().__init__(relation, **common)

    @abstractmethod
    def _partition(self) -> int:
        """Return the pages of a partition if they are not given; the free memory is for it and the table."""

    def least_bytes(self) -> int:
        scan = self._scan()
        return scan.needed(self._given_pages if self._given_pages is not None else scan.thriftiest())

    def _scan(self) -> Scan:
        return Scan(self.relation.page_count, self.relation.device.frame_bytes, self._tuple_bytes())

    def open_parts(self) -> None:
        pages = self._given_pages
        if pages is None:
            pages = min(max(self._partition(), self._scan().least(self.budget.free)), max(1, self.relation.page_count))
        self._frames = self.relation.frames(pages)
        self.budget.reserve("disk buffer", self._frames.nbytes)
        self._turns = max(1, math.ceil(self.relation.page_count / pages))
        self._open_table(self.budget.free)
        # The table holds the k complete partitions of the queue and the one that is forming.
        self._w = max(1, self.table.capacity // (self._turns + 1))
        self._queue: deque[int] = deque()
        self._forming = 0
        self._next_page = 0

    def absorb(self) -> None:
        self._forming += self._admit(max(0, self._w - self._forming))

    def turn(self) -> Iterator[pa.RecordBatch]:
        self.absorb()
        if self._forming < self._w and not self.closing and not len(self.stream):
            return  # wait for w tuples before reading, unless long rows leave no room for w
        if len(self.table) == 0:
            return
        self._queue.append(self._forming)
        self._forming = 0
        self._serving = True
        try:
            frames = self._read_next()
            for slots, starts, flags in self._probed(frames):
                yield from self._joined_slots(slots, frames, starts, flags)
            if len(self._queue) == self._turns:
                yield from self._leave(*self.table.take_oldest(self._queue.popleft()))
        finally:
            self._serving = False
        if len(self.table) == 0:
            self._queue.clear()

    def _read_next(self) -> Bytes:
        """Read the next partition of R; the first follows the last."""
        last = min(self._next_page + len(self._frames), self.relation.page_count)
        pages = np.arange(self._next_page, last)
        self._next_page = 0 if last == self.relation.page_count else last
        frames = self._frames[: pages.size]
        self.relation.read(pages, frames)
        return frames

    def before_update(self, patch: Patch, undo: list[Undo]) -> None:
        """Refuse while tuples wait: they would see some pages before the update and some after it."""
        if self._queue:
            raise UpdateRefusedError(
                f"{self.id} holds {sum(self._queue):,} tuples that were joined with only a part of R; drain the join, "
                "then update R"
            )
        super().before_update(patch, undo)

    def _least_tuples(self, patch: Patch) -> int:
        return math.ceil(patch.page_count / len(self._frames)) + 2

    def after_update(self, change: Change) -> None:
        """Start a new scan at the first page."""
        self._turns = max(1, math.ceil(self.relation.page_count / len(self._frames)))
        self._w = max(1, self.table.capacity // (self._turns + 1))
        self._next_page = 0

    def view(self) -> CyclicView:
        return CyclicView(
            **vars(super().view()), disk_pages=len(self._frames), turns=self._turns, tuples_a_turn=self._w
        )

    def check_parts(self) -> None:
        super().check_parts()
        assert sum(self._queue) + self._forming == len(self.table), "queue partitions do not add up"
        assert len(self._queue) <= self._turns
