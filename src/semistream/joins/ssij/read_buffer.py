"""Reads the pages of read plans, at most one buffer of frames at a time."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from semistream.core.arrays import Bytes, Ints
from semistream.relation.relation import Relation
from semistream.structures.read_plan import ReadPlan

__all__ = ["ReadBuffer"]


class ReadBuffer:
    """The read buffer of SSIJ.

    Parameters
    ----------
    relation
        R.
    frames
        The buffer, one page per array row.
    buffers
        1; or 2, so that a thread reads the next pages into one half while the pages in the other are joined.

    Notes
    -----
    Holds 8 bytes per frame in addition to the frames.
    """

    def __init__(self, relation: Relation, frames: Bytes, buffers: int) -> None:
        self.most = len(frames) // buffers
        """Maximum pages per read."""
        self._relation = relation
        listed = np.empty(len(frames), np.int64)
        self._buffers = [
            (listed[begin : begin + self.most], frames[begin : begin + self.most])
            for begin in range(0, self.most * buffers, self.most)
        ]
        self._reader = ThreadPoolExecutor(1, "semistream-ssij") if buffers == 2 else None

    def pages(self, plans: Iterator[ReadPlan]) -> Iterator[tuple[Ints, Bytes]]:
        """Yield the pages of some plans, some runs at a time: their ids, and a frame for each.

        Each page of a plan is read once, with one call of `Relation.read` for up to `most` pages. A plan is requested
        when the previous one is used up. A yielded result is valid until the next is requested.
        """
        coming: deque[tuple[Ints, Bytes, Future[None] | None]] = deque()
        lists = self._lists(plans)
        while True:
            while len(coming) < len(self._buffers) and (some := next(lists, None)) is not None:
                ahead = None if self._reader is None else self._reader.submit(self._relation.read, *some)
                coming.append((*some, ahead))
            if not coming:
                return
            pages, frames, reading = coming.popleft()
            if reading is None:
                self._relation.read(pages, frames)
            else:
                reading.result()
            yield pages, frames

    def _lists(self, plans: Iterator[ReadPlan]) -> Iterator[tuple[Ints, Bytes]]:
        """Yield pages to read together, and frames for them, alternating between the buffers."""
        buffers = itertools.cycle(self._buffers)
        for plan in plans:
            at = 0
            while at < plan.pages.size:
                listed, frames = next(buffers)
                pages, at = plan.list_pages(at, listed)
                yield pages, frames[: pages.size]
