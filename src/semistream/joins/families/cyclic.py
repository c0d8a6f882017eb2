"""What MESHJOIN and R-MESHJOIN share: R is read in a circle, and a tuple leaves once it has met all of it."""

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
    """What a join shows that reads R in a circle."""

    disk_pages: int
    """Pages of a partition."""
    turns: int
    """``k``: partitions of R."""
    tuples_a_turn: int
    """``w``: tuples that enter and leave in a turn."""


class Scan(NamedTuple):
    """What a cyclic scan needs: a disk buffer of a partition, and a table that lets one tuple in a turn."""

    pages: int
    """Of R."""
    frame_bytes: int
    tuple_bytes: int
    """Of a waiting tuple."""

    def needed(self, partition: int) -> int:
        """Return the least bytes with partitions of so many pages."""
        turns = max(1, math.ceil(self.pages / partition))
        return partition * self.frame_bytes + (turns + 1) * self.tuple_bytes + StreamTable.fixed_bytes()

    def thriftiest(self) -> int:
        """Return the partition that needs least memory."""
        # Buffer and table cost the same there, but for what turns are rounded up; four times as many cost more.
        even = math.isqrt(self.pages * self.tuple_bytes // self.frame_bytes)
        sizes = np.arange(1, min(4 * even + 4, max(1, self.pages)) + 1)
        return int(sizes[np.argmin(sizes * self.frame_bytes - (-self.pages // sizes) * self.tuple_bytes)])

    def least(self, free: int) -> int:
        """Return the smallest partition, nearly, that ``free`` bytes suffice for."""
        partition, most = 1, self.thriftiest()
        while partition < most and self.needed(partition) > free:
            partition = min(max(partition + 1, int(partition * 1.25)), most)
        return partition


class CyclicJoin(WaitingJoin):
    """Each turn takes ``w`` tuples in, reads the next partition of R, and lets the oldest ``w`` tuples go.

    An algorithm adds how large the disk buffer is, `_partition`; the ``k`` partitions of R and ``w`` follow.

    Parameters
    ----------
    pages
        Pages of a partition, if they are given.
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
        """Return the pages of a partition where they are not given; the free memory is for it and the table."""

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
        # the partition that is forming waits beside the k complete ones
        self._w = max(1, self.table.capacity // (self._turns + 1))
        self._queue: deque[int] = deque()
        self._forming = 0
        self._next_page = 0

    def absorb(self) -> None:
        self._forming += self._admit(max(0, self._w - self._forming))

    def turn(self) -> Iterator[pa.RecordBatch]:
        self.absorb()
        if self._forming < self._w and not self.closing and not len(self.stream):
            return  # MESHJOIN waits for its w tuples before it reads, unless long rows leave no room for w
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
        """Read the next partition of R; after the last comes the first again."""
        last = min(self._next_page + len(self._frames), self.relation.page_count)
        pages = np.arange(self._next_page, last)
        self._next_page = 0 if last == self.relation.page_count else last
        frames = self._frames[: pages.size]
        self.relation.read(pages, frames)
        return frames

    def before_update(self, patch: Patch, undo: list[Undo]) -> None:
        """Refuse while tuples are on their way through R: they would see some pages before, some after the update."""
        if self._queue:
            raise UpdateRefusedError(
                f"{self.id} holds {sum(self._queue):,} tuples that have met a part of R only; drain the join, then "
                "update R"
            )
        super().before_update(patch, undo)

    def _least_tuples(self, patch: Patch) -> int:
        return math.ceil(patch.page_count / len(self._frames)) + 2

    def after_update(self, change: Change) -> None:
        """Begin anew with what is now the first page."""
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
