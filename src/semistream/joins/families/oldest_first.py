"""What HYBRIDJOIN and X-HYBRIDJOIN share: read the pages of the oldest waiting keys, and join all tuples with them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.arguments import check_at_least, check_between
from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import kernel
from semistream.joins.families.holding import LEAST_TUPLES
from semistream.joins.families.waiting import WaitingJoin
from semistream.joins.interface.view import View
from semistream.joins.shares import memory_of_long_turns
from semistream.relation.relation import Relation
from semistream.structures.stream_table import StreamTable

__all__ = ["DISK_SHARE", "IN_FLIGHT", "DiskLayout", "OldestFirstJoin", "OldestFirstView"]


IN_FLIGHT, DISK_SHARE = 512, 0.4
"""Defaults of the parameters: partitions read together, and share of the memory for pages. An iteration costs about a
millisecond in addition to its reads, as much as hundreds of reads on current devices."""
_PAGES_A_SEEK = 8
"""Ratio of transfer time to seek time of a wide partition: with more the seek hardly matters."""


@kernel
def partitions(pages: Ints, width: int, page_count: int) -> tuple[Ints, int]:
    """Return all pages of the partitions that contain ``pages``, ascending, and the number of distinct ``pages``."""
    ordered = np.sort(pages)
    every = np.empty(min(ordered.size * width, page_count), np.int64)
    count, distinct = 0, 0
    done = np.int64(0)  # pages before this one are listed, or not wanted
    for i in range(ordered.size):
        if i > 0 and ordered[i] == ordered[i - 1]:
            continue
        distinct += 1
        first = ordered[i] // width * width
        if first >= done:
            done = min(first + width, np.int64(page_count))
            for page in range(first, done):
                every[count] = page
                count += 1
    return every[:count], distinct


@dataclass(frozen=True)
class DiskLayout:
    """How memory is split between pages and waiting tuples, shared by the joins and their cost models.

    Parameters
    ----------
    frame_bytes, tuple_bytes
        Bytes of a page in memory, and of a waiting tuple.
    partition_pages, in_flight, disk_share
        See `OldestFirstJoin`.
    """

    frame_bytes: int
    tuple_bytes: int
    partition_pages: int | None = None
    in_flight: int = IN_FLIGHT
    disk_share: float = DISK_SHARE

    @property
    def partition_bytes(self) -> int:
        """Bytes of a partition: the smallest disk buffer."""
        return (self.partition_pages or 1) * self.frame_bytes

    @property
    def least_table(self) -> int:
        """Bytes of the smallest stream table."""
        return LEAST_TUPLES * self.tuple_bytes + StreamTable.fixed_bytes()

    @property
    def least(self) -> int:
        """Minimum bytes of both."""
        return self.partition_bytes + self.least_table

    def room(self, free: int) -> int:
        """Return how many of ``free`` bytes are for pages."""
        return max(0, min(int(free * self.disk_share), free - self.least_table))

    def frames(self, room: int) -> int:
        """Return the pages of the disk buffer: ``in_flight`` partitions, or fewer if they do not fit; at least one."""
        return min(self.in_flight, max(1, room // self.partition_bytes)) * (self.partition_pages or 1)


@dataclass(frozen=True)
class OldestFirstView(View):
    """The state of a join that serves its oldest tuples first, for reports."""

    partition_pages: int | None
    """Pages of a partition; None if it adapts."""
    disk_pages: int
    """Capacity in pages."""
    buffer_pages: int
    """Pages of a disk buffer: all, or half if one buffer is loaded for the oldest tuples and one for the newest."""
    widest: int
    """Maximum pages that are read for a key while the partition adapts."""
    pinned_for_good: int | None
    """Number of first pages of R that are never read again; None if the join learns which pages to keep."""


class OldestFirstJoin(WaitingJoin):
    """A join that loads the partitions of the oldest keys and probes ``H_S`` with all of their rows.

    Parameters
    ----------
    partition_pages
        Pages of a partition, read together. None adapts: one page while tuples wait for few pages of R, and a wide
        partition while they wait for many, because reading on then costs less than another seek.
    in_flight
        Partitions read together: an iteration serves this many of the oldest keys instead of one, each with its own
        read.
    seek_pages
        Seek time of the device, in pages of transfer (``S / T`` with ``in_flight`` reads in flight); only for the
        adaptive partition.
    disk_share
        Maximum share of the memory for pages. A higher value makes iterations longer, so that their fixed work costs
        less per tuple. A lower value leaves more memory for waiting tuples, so that more of them share a read.
    """

    def __init__(
        self,
        relation: Relation,
        *,
        partition_pages: int | None = None,
        in_flight: int = IN_FLIGHT,
        seek_pages: float = 3.0,
        disk_share: float = DISK_SHARE,
        **common: Any,
    ) -> None:
        check_at_least(1, in_flight=in_flight, partition_pages=partition_pages)
        check_at_least(0, seek_pages=seek_pages)
        check_between(0, 1, disk_share=disk_share)
        if partition_pages is not None:
            partition_pages = min(partition_pages, relation.page_count)
        self._disk_share = disk_share
        self._partition_pages = partition_pages
        self._in_flight = in_flight
        self._seek_pages = seek_pages
        self._wide = False
        self._density = 0.0
        super().__init__(relation, **common)

    def least_bytes(self) -> int:
        return self._layout.least

    @property
    def _layout(self) -> DiskLayout:
        return DiskLayout(
            self.relation.device.frame_bytes, self._tuple_bytes(), self._partition_pages, self._in_flight,
            self._disk_share,
        )  # fmt: skip

    def view(self) -> OldestFirstView:
        return OldestFirstView(
            **vars(super().view()), partition_pages=self._partition_pages, disk_pages=len(self._frames),
            buffer_pages=len(self._frames), widest=self._widest, pinned_for_good=0,
        )  # fmt: skip

    def memory_of_long_turns(self) -> int:
        relation, frame_bytes = self.relation, self.relation.device.frame_bytes
        index = self._index_bytes - relation.packing_bytes
        long = memory_of_long_turns(relation.page_count, index, frame_bytes, self._tuple_bytes())
        return long + relation.packing_bytes

    def _disk_bytes(self) -> int:
        """Return the bytes that are free for pages."""
        return self._layout.room(self.budget.free)

    def _open_disk_buffer(self, share: int) -> int:
        """Reserve frames for ``in_flight`` partitions, or for the number that fits into ``share`` bytes; at least one.

        Returns the bytes of all partitions after the first.
        """
        layout = self._layout
        self._frames = self.relation.frames(layout.frames(share))
        self.budget.reserve("disk buffer", self._frames.nbytes)
        self._widest = max(1, min(len(self._frames), self.relation.page_count, int(_PAGES_A_SEEK * self._seek_pages)))
        return self._frames.nbytes - layout.partition_bytes

    def _serve_oldest(self) -> Iterator[pa.RecordBatch]:
        """Read the partitions of the oldest keys, and join all tuples that wait for any of their rows."""
        self._serving = True
        try:
            width = self._width()
            oldest = self.table.oldest_keys(max(1, len(self._frames) // width))
            located = self.relation.locate(oldest)
            pages, asked_for = partitions(located.pages, width, self.relation.page_count)
            wanted = np.sort(oldest)
            useful = 0
            for chunk, frames in self._fetched(pages):
                met = np.zeros(chunk.size, np.int64)
                # Tuples leave with a page that holds all rows of their key.
                for slots, starts, flags in self._probed(frames, wanted, leave=True):
                    yield from self._joined_slots(slots, frames, starts, flags)
                    self._let_go(self.table.leaving(slots, flags))
                    met += np.bincount(starts // frames.shape[1], minlength=chunk.size)
                self._served(chunk, frames, met)
                useful += int(np.count_nonzero(met))
            self.tally.pages_useful += useful
            if pages.size > asked_for:
                self._measure(useful - asked_for, pages.size - asked_for)
            # The remaining tuples of the oldest keys: R has no rows of them, or rows in several pages, all read here.
            yield from self._leave(*self.table.take_keys(oldest))
        finally:
            self._serving = False

    def _fetched(self, pages: Ints) -> Iterator[tuple[Ints, Bytes]]:
        """Read pages into the disk buffer, one buffer at a time."""
        for begin in range(0, pages.size, len(self._frames)):
            chunk = pages[begin : begin + len(self._frames)]
            frames = self._frames[: chunk.size]
            self.relation.read(chunk, frames)
            yield chunk, frames

    def _served(self, pages: Ints, frames: Bytes, met: Ints) -> None:
        """Called with pages that were read, and the number of pairs of each."""

    def _width(self) -> int:
        """Return how many pages to read for a key.

        A key's own page costs ``S + T`` and certainly serves tuples. Each neighbour costs ``T`` and serves tuples with
        the probability that any wait for it, so neighbours pay off if this probability is above ``T / (S + T)``. While
        neighbours are read, the probability is measured. Before that, the estimate is the probability that a page
        contains any of the distinct waiting keys.
        """
        if self._partition_pages is not None:
            return self._partition_pages
        if not self._wide:
            self._density = 1.0 - math.exp(-self.table.distinct_keys / max(1, self.relation.page_count))
        self._wide = self._density * (1.0 + self._seek_pages) > 1.0
        return self._widest if self._wide else 1

    def _measure(self, useful: int, neighbours: int) -> None:
        self._density += 0.25 * (max(0, useful) / neighbours - self._density)
