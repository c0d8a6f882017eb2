"""MESHJOIN (Polyzotis et al.; restated in CMESHJOIN §2 and HYBRIDJOIN §3): R passes by, the stream waits."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.joins.waiting import WaitingJoin
from semistream.relation.relation import Relation

__all__ = ["MeshJoin"]


class MeshJoin(WaitingJoin):
    """R is read in a circle, partition by partition; a tuple leaves once it has met all of R.

    Each turn takes ``w`` stream tuples into ``H_S``, reads the next ``b`` pages of R, probes every row of them in
    ``H_S``, and lets the oldest ``w`` tuples go, which have now met every page. No index, only sequential reads;
    the rate does not depend on skew, and a tuple waits for a whole pass over R.

    Parameters
    ----------
    partition_pages
        ``b``. More makes longer reads with fewer seeks, and leaves less memory to waiting tuples. By default the
        value that maximises the rate for a device whose seek costs as much as the transfer of ``seek_pages``.
    seek_pages
        Seek time of the device, in pages of transfer (``S / T``).

    Notes
    -----
    Memory: ``b·v_P + w·v_S + k·w·(bytes of a waiting tuple)`` with ``k = ceil(N_R / b)``, as in the paper. The
    partition of the queue that is forming is counted in the stream table.
    """

    id = "meshjoin"
    title = "MESHJOIN: cyclic scan of R"
    uses_index = False

    def __init__(
        self,
        relation: Relation,
        *,
        partition_pages: int | None = None,
        seek_pages: float = 16.0,
        **common: Any,
    ) -> None:
        if partition_pages is not None and partition_pages < 1:
            raise ValueError(f"partition_pages must be at least 1, not {partition_pages}")
        self._partition_pages = partition_pages
        self._seek_pages = seek_pages
        super().__init__(relation, **common)

    def _minimum(self) -> int:
        pages = self._partition_pages or 1
        turns = math.ceil(self.relation.page_count / pages)
        smallest = pages * self.relation.device.frame_bytes + self._table_minimum(turns + 1)
        if self._partition_pages is not None:
            return smallest
        # one tuple a turn: the partition size that needs least
        best = max(1, math.isqrt(self.relation.page_count * self._tuple_bytes() // self.relation.device.frame_bytes))
        turns = math.ceil(self.relation.page_count / best)
        return min(smallest, best * self.relation.device.frame_bytes + self._table_minimum(turns + 1))

    def _open(self) -> None:
        frame_bytes, pages = self.relation.device.frame_bytes, self.relation.page_count
        self._b = self._partition_pages or self._best_partition()
        self._turns = math.ceil(pages / self._b)
        self._frames = self.relation.frames(self._b)
        self.budget.reserve("disk buffer", self._b * frame_bytes)
        self._open_table(self.budget.free)
        # the partition that is forming waits beside the k complete ones
        self._w = max(1, self.table.capacity // (self._turns + 1))
        self._queue: deque[int] = deque()
        self._forming = 0
        self._next_page = 0

    def _best_partition(self) -> int:
        """Return ``b`` that maximises ``h_S·b / (S/T + b)``, kept within what lets one tuple a turn enter."""
        frame_bytes, pages = self.relation.device.frame_bytes, self.relation.page_count
        room, seek = self.budget.free, self._seek_pages
        best = int(math.sqrt(seek * seek + seek * room / frame_bytes) - seek)
        least = 1
        while least < pages and least * frame_bytes + self._table_minimum(math.ceil(pages / least) + 1) > room:
            least = max(least + 1, int(least * 1.25))
        return min(max(best, least, 1), pages)

    def _absorb(self) -> None:
        self._forming += self._admit(self._w - self._forming)

    def _step(self) -> Iterator[pa.RecordBatch]:
        self._absorb()
        if self._forming < self._w and not self._closing and not self._arrived:
            return  # MESHJOIN waits for its w tuples before it reads, unless long rows leave no room for w
        if len(self.table) == 0:
            return
        self._queue.append(self._forming)
        self._forming = 0
        yield from self._meet(self._read_next())
        if len(self._queue) == self._turns:
            yield from self._leave(*self.table.take_oldest(self._queue.popleft()))
        if len(self.table) == 0:
            self._queue.clear()

    def _read_next(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Read the next partition of R; after the last comes the first again."""
        last = min(self._next_page + self._b, self.relation.page_count)
        pages = np.arange(self._next_page, last)
        self._next_page = 0 if last == self.relation.page_count else last
        frames = self._frames[: pages.size]
        self.relation.read(pages, frames)
        return frames

    def _meet(self, frames: np.ndarray[Any, np.dtype[np.uint8]]) -> Iterator[pa.RecordBatch]:
        for slots, starts, flags in self._probed(frames):
            yield from self._joined_slots(slots, frames, starts, flags)

    def _check(self) -> None:
        super()._check()
        assert sum(self._queue) + self._forming == len(self.table), "queue partitions do not add up"
        assert len(self._queue) <= self._turns
