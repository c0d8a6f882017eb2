"""Look up keys in R through its index, a few pages at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import frozen
from semistream.relation.pages.page_layout import FIRST, find_rows, page_keys
from semistream.relation.pages.page_versions import find_versions
from semistream.relation.relation import Relation
from semistream.relation.spans import locate_spans, locate_versions

__all__ = ["Matches", "PageLookup"]


class Matches(NamedTuple):
    """Matched pairs: the stream tuple, and the start of R's row in ``data``; valid until the next request."""

    positions: Ints
    data: Bytes
    starts: Ints
    flags: Bytes
    keys: Ints
    """Key of R's row."""


class PageLookup:
    """Finds the rows of keys.

    Reads pages into a fixed number of frames, which are all the memory it holds.

    Parameters
    ----------
    relation
        Where to look.
    frames
        Pages that are read and held at once.
    share
        Read a page once for all keys of one call that need it. False is the papers' index nested loop join: every key
        reads its own page.
    cap
        Approximate number of pairs per result: the rows of a key in one page are not split.
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
        """Yield all pairs of ``keys`` (by position) with rows of R.

        Takes one index look-up per key, and one read per page that may hold a key; with ``share``, one per different
        page.
        """
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
                    yield Matches(asked_by[low:high][found], frames.reshape(-1), starts, flags, wanted[found])

    def match_at(self, keys: Ints, times: Ints) -> Iterator[Matches]:
        """Yield the pairs of ``keys`` (by position) with the row of a history that is valid at each one's time."""
        relation = self._relation
        assert relation.times is not None
        fields = relation.times.fields(relation.codec).array()
        located = locate_versions(relation, keys, times)
        asked_by = np.flatnonzero(located.pages >= 0)
        pages, place = located.pages[asked_by], np.arange(asked_by.size)
        if self._share and pages.size:
            pages, place = np.unique(pages, return_inverse=True)
            order = np.argsort(place, kind="stable")
            place, asked_by = place[order], asked_by[order]
        for begin in range(0, pages.size, len(self._frames)):
            chunk = pages[begin : begin + len(self._frames)]
            frames = self._frames[: chunk.size]
            relation.read(chunk, frames)
            low, high = (int(end) for end in np.searchsorted(place, [begin, begin + chunk.size]))
            flat = frames.reshape(-1)
            for at in range(low, high, self._cap):
                some = slice(at, min(at + self._cap, high))
                asking = asked_by[some]
                starts = np.empty(asking.size, np.int64)
                find_versions(
                    frozen(flat), frozen(flat.view(np.int64)), frames.shape[1], relation.layout.stride, frozen(fields),
                    frozen(keys[asking]), frozen(times[asking]), frozen(located.following[asking]),
                    frozen(place[some] - begin), starts,
                )  # fmt: skip
                found = np.flatnonzero(starts >= 0)
                if found.size:
                    flags = np.full(found.size, FIRST, np.uint8)
                    yield Matches(asking[found], flat, starts[found], flags, keys[asking[found]])

    def match_between(self, low: Ints, high: Ints) -> Iterator[Matches]:
        """Yield all pairs of the intervals ``[low, high]`` with rows of R, one interval after the other.

        Every page of an interval is read, even if the previous interval read it too.
        """
        spans = locate_spans(self._relation, low, high)
        order = self._relation.page_order
        for i in range(low.size):
            for span in range(spans.bounds[i], spans.bounds[i + 1]):
                positions = np.arange(spans.first[span], spans.first[span] + spans.length[span])
                pages = order[positions] if order.size else positions
                for begin in range(0, pages.size, len(self._frames)):
                    chunk = pages[begin : begin + len(self._frames)]
                    frames = self._frames[: chunk.size]
                    self._relation.read(chunk, frames)
                    keys, flags, starts = page_keys(frames, self._relation.layout.stride)
                    inside = np.flatnonzero((keys >= low[i]) & (keys <= high[i]))
                    for at in range(0, inside.size, self._cap):
                        rows = inside[at : at + self._cap]
                        owner = np.full(rows.size, i, np.int64)
                        yield Matches(owner, frames.reshape(-1), starts[rows], flags[rows], keys[rows])
