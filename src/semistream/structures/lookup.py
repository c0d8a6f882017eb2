"""Look keys up in R through its index, some pages at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.relation.pages import find_rows
from semistream.relation.relation import Relation

__all__ = ["Matches", "PageLookup"]

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class Matches(NamedTuple):
    """Pairs found: which stream tuple, and where R's row starts in ``data``; valid until the next are asked for."""

    positions: Ints
    data: Bytes
    starts: Ints
    flags: Bytes


class PageLookup:
    """Finds the rows of keys, reading pages into a fixed number of frames.

    Parameters
    ----------
    relation
        Where to look.
    frames
        Pages in memory, and read, at once.
    share
        Read a page once for all keys of one call that want it. False is the index nested loop join of the
        papers: every key reads its own.
    cap
        Pairs given out at once, more or less: a key's rows in one page are not cut in two.
    """

    def __init__(self, relation: Relation, frames: int, *, share: bool, cap: int) -> None:
        self._relation = relation
        self._frames = relation.frames(frames)
        self._share = share
        self._cap = cap

    @property
    def nbytes(self) -> int:
        """Bytes of the frames."""
        return self._frames.nbytes

    def match(self, keys: Ints) -> Iterator[Matches]:
        """Yield all pairs of ``keys`` (by position) with rows of R."""
        located = self._relation.locate(keys)
        asked_by = np.repeat(np.arange(keys.size), located.counts)
        pages = located.pages
        place = np.arange(pages.size)
        if self._share and pages.size:
            pages, place = np.unique(pages, return_inverse=True)
            order = np.argsort(place, kind="stable")
            place, asked_by = place[order], asked_by[order]
        for begin in range(0, pages.size, len(self._frames)):
            chunk = pages[begin : begin + len(self._frames)]
            frames = self._frames[: chunk.size]
            self._relation.read(chunk, frames)
            low, high = np.searchsorted(place, [begin, begin + chunk.size])
            wanted, frame_of = keys[asked_by[low:high]], place[low:high] - begin
            at = 0
            while at < wanted.size:
                found, starts, flags, at = find_rows(
                    frames, self._relation.layout.stride, self._relation.clustered, wanted, frame_of, at, self._cap
                )
                if found.size:
                    yield Matches(asked_by[low:high][found], frames.reshape(-1), starts, flags)
