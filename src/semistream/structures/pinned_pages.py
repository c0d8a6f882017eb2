"""Pages of R that stay in memory, found by key: the non-swappable part of X-HYBRIDJOIN's disk buffer.

A `directory` maps a key to its first row in the frames, so a stream tuple finds its rows without R's index and without
touching pages that do not contain them. Only keys with all their rows in one page are inserted: for them a hit is a
complete answer.

Pages that serve many tuples stay. Uses are counted for every page of R, pinned or not. A page that was read and has
more uses than the least used pinned page replaces it. No page is read only to be pinned. The pinned pages are sorted by
use after every ``period`` tuples, and when the order is used up. Every fourth time the counts are halved, so that
formerly hot pages can be replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import frozen
from semistream.relation.pages.page_layout import page_keys
from semistream.relation.relation import Relation
from semistream.structures import pinned_kernels as kernels
from semistream.structures.directory import entries_for, find, position_at
from semistream.structures.lookup import Matches

__all__ = ["PinnedLayout", "PinnedPages"]


_PERIODS_BEFORE_AGING = 4


class PinnedLayout(NamedTuple):
    """Memory cost of pinned pages."""

    frame_bytes: int
    rows_per_page: float
    page_rows: int | None
    """Rows that fit into a page; None if they vary in length."""

    @classmethod
    def of(cls, relation: Relation) -> PinnedLayout:
        """Return the layout for a relation."""
        frame, layout = relation.device.frame_bytes, relation.layout
        return cls(frame, relation.rows_per_page, layout.capacity(frame) if layout.stride else None)

    def keys(self, frames: int) -> int:
        """Return the number of keys that the directory has room for."""
        if self.page_rows is not None:
            return frames * self.page_rows
        return int(frames * self.rows_per_page * 1.25) + 64

    def bytes_for(self, frames: int) -> int:
        """Return the bytes for ``frames`` pages, without counters."""
        return frames * (self.frame_bytes + 24) + 8 * (entries_for(self.keys(frames)) + entries_for(frames))

    def fitting(self, size: int) -> int:
        """Return how many pages fit into ``size`` bytes, without counters."""
        frames = max(0, int(size // (self.bytes_for(1000) / 1000)))
        while frames and self.bytes_for(frames) > size:
            frames -= 1
        return frames


class PinnedPages:
    """A fixed number of pages of R that stay in memory.

    Frames, directories and counters are allocated at once. A look-up takes constant time plus one step per match, and
    reads nothing; only `load` reads.

    Parameters
    ----------
    relation
        R.
    frames
        Pages held (``l``).
    counters
        Number of counters of use. If R has more pages, several pages share a counter. None if the pages are set by
        `load` and never replaced.
    period
        Tuples after which the pinned pages are sorted again. A smaller value follows a changing stream faster; a larger
        one estimates a steady stream better.

    Examples
    --------
    >>> import pyarrow as pa, tempfile
    >>> table = pa.table({"id": range(1000), "name": [f"n{i}" for i in range(1000)]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     relation = Relation.build(table, f"{folder}/r", key="id", page_size=512)
    ...     pinned = PinnedPages(relation, 2)
    ...     pinned.load(np.array([0, 1]))
    ...     held, (match,) = pinned.look_up(np.array([3, 999]), cap=100)
    ...     held.tolist(), relation.rows(match.data, match.starts).to_pydict()
    ([True, False], {'name': ['n3']})
    """

    def __init__(
        self, relation: Relation, frames: int, *, counters: int | None = None, period: int | None = None
    ) -> None:
        self._relation = relation
        self._bytes = relation.device.frame_bytes
        self.capacity = frames
        self._keys_at_most = self._room = PinnedLayout.of(relation).keys(frames)
        pages = relation.frames(frames)
        flat = pages.reshape(-1)
        self._frames = pages
        self._t = kernels.Pinned(
            frames=flat,
            words=flat.view(np.int64),
            page=np.full(frames, -1, np.int64),
            rows=np.zeros(entries_for(self._room), np.uint64),
            pages=np.zeros(entries_for(frames), np.uint64),
            uses=np.zeros(counters or 0, np.uint32),
        )
        self.period = period or max(1024, 32 * frames)
        # frames, the least used first; to begin with all are empty
        self._victims: Ints = np.arange(frames)
        self._had: Ints = np.full(frames, -1, np.int64)
        self._next_victim = 0
        self._tuples = 0
        self._periods = 0
        self.pinned = 0
        """Pages pinned so far, loaded ones included."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self._t) - self._t.words.nbytes + self._victims.nbytes + self._had.nbytes

    @property
    def counters(self) -> int:
        """Counters of use; fewer than the pages of R if pages share them."""
        return self._t.uses.size

    @property
    def pages(self) -> Ints:
        """The pages in memory, ascending."""
        return np.sort(self._t.page[self._t.page >= 0])

    @property
    def row_count(self) -> int:
        """Rows that can be found (``d_N``)."""
        return int(np.count_nonzero(self._t.rows))

    def frames_of(self, pages: Ints) -> Ints:
        """Return the frame of each page, -1 where it is not held."""
        return kernels.frames_of(self._t, frozen(pages))

    def copy(self, frames: Ints, into: Bytes) -> None:
        """Copy held pages into other frames."""
        np.take(self._frames, frames, axis=0, out=into)

    def runs(self) -> Iterator[Bytes]:
        """Yield the frames that hold pages, without copying; neighbouring frames are yielded together."""
        held = np.flatnonzero(np.diff(self._t.page >= 0, prepend=False, append=False))
        for begin, end in held.reshape(-1, 2):
            yield self._frames[begin:end]

    def load(self, pages: Ints) -> None:
        """Read pages, each once, and hold them instead of the previous ones."""
        self.forget(self.pages)
        pages = pages[: self.capacity]
        self._relation.read(pages, self._frames[: pages.size])
        for frame, page in enumerate(pages):
            self._t.page[frame] = page
            self._room -= int(kernels.enter(self._t, self._bytes, frame))
        self.pinned += pages.size

    def forget(self, pages: Ints) -> None:
        """Drop pages, for example after an update of R. Pages that are not held are ignored."""
        for frame in self.frames_of(pages):
            if frame >= 0:
                self._room += int(kernels.withdraw(self._t, self._bytes, frame))
        self._order()

    def look_up(self, keys: Ints, cap: int) -> tuple[NDArray[np.bool_], Iterator[Matches]]:
        """Return which keys are held (valid after all matches were read), and their matches, about ``cap`` at once."""
        held = np.zeros(keys.size, np.bool_)
        return held, self._matches(frozen(keys), cap, held)

    def _matches(self, keys: Ints, cap: int, held: NDArray[np.bool_]) -> Iterator[Matches]:
        relation, at = self._relation, 0
        while at < keys.size:
            positions, starts, flags, at = kernels.look_up(
                self._t, self._bytes, relation.layout.stride, relation.unique, keys, at, cap, held
            )
            if positions.size:
                yield Matches(positions, self._t.frames, starts, flags, keys[positions])

    def consider(self, pages: Ints, frames: Bytes, met: Ints) -> int:
        """Record pages that were read and how many tuples each of them served; pin the most used ones.

        Returns how many were pinned. Takes constant time per page. Pinning a page copies it and inserts its keys;
        nothing is read again.
        """
        self._next_victim, self._room, pinned = kernels.consider(
            self._t, self._bytes, pages, frames, met, self._victims, self._had, self._next_victim, self._room
        )
        self.pinned += pinned
        if self._next_victim == self.capacity:
            self._order()
        return pinned

    def pass_time(self, tuples: int) -> None:
        """Advance the clock by a number of stream tuples; sort the pages and age the counts when a period has passed.

        Once per period this sorts the pages in memory, and sometimes passes over the counters.
        """
        self._tuples += tuples
        if self._tuples < self.period or self._t.uses.size == 0:
            return
        self._tuples = 0
        self._periods += 1
        if self._periods % _PERIODS_BEFORE_AGING == 0:
            self._t.uses[:] >>= np.uint32(1)
        self._order()

    def _order(self) -> None:
        """Sort the frames: empty ones first, then the least used."""
        if self._t.uses.size:
            uses = kernels.uses_of_all(self._t)
            self._victims = np.argsort(uses, kind="stable")
            self._had = uses[self._victims]
        self._next_victim = 0

    def check(self) -> None:
        """Assert that directories and frames agree."""
        t = self._t
        held = np.flatnonzero(t.page >= 0)
        assert np.unique(t.page[held]).size == held.size, "a page is held twice"
        assert np.array_equal(self.frames_of(t.page[held]), held), "a page is not found where it is"
        assert np.count_nonzero(t.pages) == held.size, "the directory of pages has other pages"
        assert np.array_equal(np.sort(self._victims), np.arange(self.capacity)), "the order lacks a frame"
        entered = 0
        for frame in held:
            keys, flags, _ = page_keys(self._frames[frame : frame + 1], self._relation.layout.stride)
            for key in keys[(flags & kernels.ENTERED) == kernels.ENTERED]:
                at = find(t.rows, t.words, key)
                assert at >= 0, f"key {key} of frame {frame} is not found"
                assert position_at(t.rows, at) * 8 // self._bytes == frame, f"key {key} leads to another frame"
                entered += 1
        assert entered == np.count_nonzero(t.rows), f"{entered} keys in the frames, more in the directory"
        assert entered + self._room == self._keys_at_most, "room is miscounted"
