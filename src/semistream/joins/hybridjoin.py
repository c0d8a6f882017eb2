"""HYBRIDJOIN (§4): the index finds the page of the oldest tuple, and the page serves all who wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.joins.waiting import WaitingJoin
from semistream.relation.relation import Relation

__all__ = ["HybridJoin"]


class HybridJoin(WaitingJoin):
    """Each turn loads the partition of R that the oldest waiting key needs and probes all of it in ``H_S``.

    Every read serves at least one tuple, frequent keys share reads, and the stream is never waited for: with no
    input the join works on until ``H_S`` is empty.

    Parameters
    ----------
    partition_pages
        Pages of a partition, read together (the paper's disk buffer ``d``). On a disk with a costly seek more
        pays; on a solid-state one a page is best.
    in_flight
        Partitions read at once: the turn then serves that many oldest keys instead of one, each by its own
        read. 1 is the paper's loop to the letter.

    Notes
    -----
    Departures from the paper. A key that R does not have leaves after its partition was read (as printed, the
    algorithm would load that partition for ever). A key with rows in several pages is served by its own turn,
    which reads them all. With ``in_flight`` above 1, stream tuples are admitted after that many reads instead of
    after each.
    """

    id = "hybridjoin"
    title = "HYBRIDJOIN: the oldest key's page, for all who wait"

    def __init__(self, relation: Relation, *, partition_pages: int = 1, in_flight: int = 256, **common: Any) -> None:
        if partition_pages < 1 or in_flight < 1:
            raise ValueError(f"partition_pages ({partition_pages}) and in_flight ({in_flight}) must be at least 1")
        self._partition_pages = min(partition_pages, relation.page_count)
        self._in_flight = in_flight
        super().__init__(relation, **common)

    def _minimum(self) -> int:
        return self._partition_pages * self.relation.device.frame_bytes + self._table_minimum(16)

    def _open(self) -> None:
        partition_bytes = self._partition_pages * self.relation.device.frame_bytes
        share = max(1, self.budget.free // 8 // partition_bytes)
        self._in_flight = min(self._in_flight, share)
        self._frames = self.relation.frames(self._in_flight * self._partition_pages)
        self.budget.reserve("disk buffer", self._frames.nbytes)
        self._open_table(self.budget.free)

    def _absorb(self) -> None:
        self._admit(self.table.free)

    def _step(self) -> Iterator[pa.RecordBatch]:
        self._absorb()
        oldest = self.table.oldest_keys(self._in_flight)
        located = self.relation.locate(oldest)
        wanted = np.sort(oldest)
        pages = self._partitions(located.pages)
        for begin in range(0, pages.size, len(self._frames)):
            chunk = pages[begin : begin + len(self._frames)]
            frames = self._frames[: chunk.size]
            self.relation.read(chunk, frames)
            served = [np.empty(0, np.int64)]
            for slots, starts, flags in self._probed(frames, wanted):
                yield from self._joined_slots(slots, frames, starts, flags)
                served.append(self.table.keys_of(slots))
            # the oldest keys stay until all their pages were here; others were served whole by this one
            others = np.setdiff1d(np.concatenate(served), wanted)
            yield from self._leave(*self.table.take_keys(others))
        yield from self._leave(*self.table.take_keys(oldest))
        self._absorb()

    def _partitions(self, pages: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return all pages of the partitions that these pages lie in, in order."""
        if self._partition_pages == 1:
            return np.unique(pages)
        starts = np.unique(pages // self._partition_pages) * self._partition_pages
        every = (starts[:, None] + np.arange(self._partition_pages)).reshape(-1)
        return every[every < self.relation.page_count]
