"""The inverted index of SSIJ: for each wanted page of R, the tuples that wait for it.

A wanted page has an entry, and a waiting tuple has a node for each page that it waits for. Both are in logs of frames,
so waiting tuples take memory from cached pages, and return it.

::

    entry     0  u32 page | 4  u32 tuples that wait | 8  u32 last node | 12  u32 zero
    node      0  u32 tuple's address                | 4  u32 node before
    follower  0  u32 follower before, in units of four bytes | 4  the tuple's row, padded to 4

Tuples of the same key wait for the same pages. Only the first of them, the leader, has a record and nodes. The others
follow it and store only their row. So if R has many rows of a key, on several pages, the memory of a follower does not
grow with the number of pages.

Two compiled passes perform the join: `serve_cached`, over stream tuples whose page is in memory or not (Algorithm 1,
lines 3 to 20), and `serve_waiting`, over pages just read (Algorithm 2, line 10). Both stop when the room for pairs is
used up, and continue where they stopped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from semistream.core.arrays import Bytes, Ints, Scores, Slots
from semistream.joins.ssij import inverted_lists as lists
from semistream.joins.ssij import inverted_passes as passes
from semistream.joins.ssij.frame_pool import FRONT, OFFSET, FrameLog, FramePool
from semistream.joins.ssij.inverted_layout import (
    HAS_MATCHED,
    LEADER,
    NONE,
    PAGES_WENT,
    RECORD,
    W_BYTES,
    W_LAST,
    W_MEMBER,
    W_NODE,
    W_PAGE,
    W_PAIRS,
    W_ROW,
    Pairs,
)
from semistream.joins.ssij.page_cache import WANTED, Cache
from semistream.joins.ssij.tuple_log import MATCHED, ONE_PAGE, PARTIAL, TupleLog, TupleShape

__all__ = ["InvertedIndex", "Served"]


class Served(NamedTuple):
    """Result of a pass."""

    status: int
    pairs: int
    alone: int
    """Tuples that were joined with all of their pages and have no match."""
    hits: int
    """Tuples that left and needed only cached pages."""
    finished: int
    """Tuples that left."""
    waiting: int
    """Tuples added to the stream buffer."""
    probes: int
    late: int
    """Tuples that left after their deadline."""


class InvertedIndex:
    """Waiting stream tuples (the stream buffer), and the pages that they wait for.

    Parameters
    ----------
    pool
        The frames for all data. The caller passes which pages are cached.
    shape
        Layout of the stream's tuples.
    stride, ordered
        Of R's pages: bytes of a row, and whether rows are ordered by key.
    unique
        Whether R has one row per key. Then tuples share little, and a tuple only follows its direct predecessor.

    Notes
    -----
    Holds 16 bytes per wanted page; for a leader its record (`TupleShape.size_of`) and 8 bytes per page that it waits
    for; for a follower its row and 4 bytes, padded to 4. All of it is in frames of the pool. This class does not read
    from R: pages are passed in memory.
    """

    def __init__(self, pool: FramePool, shape: TupleShape, stride: int, ordered: bool, unique: bool) -> None:
        self.pool = pool
        self.shape = shape
        self._stride = stride
        self._ordered = ordered
        self._searches = not unique
        self._nodes = FrameLog(pool)
        self._entries = FrameLog(pool)
        self.buffer = TupleLog(pool, shape)
        self._followers = FrameLog(pool)
        # Kernels take the states as rows of one array.
        self._states = np.stack([log.state for log in self.logs])
        for row, log in enumerate(self.logs):
            log.state = self._states[row]
        self.earliest = np.array([np.inf])
        """The earliest deadline of the waiting tuples."""

    def __len__(self) -> int:
        """Return the number of waiting tuples."""
        return len(self.buffer) + len(self._followers)

    @property
    def wanted(self) -> int:
        """Number of pages that tuples wait for."""
        return len(self._entries)

    @property
    def logs(self) -> list[FrameLog]:
        """The logs that hold all data."""
        return [self.buffer, self._nodes, self._entries, self._followers]

    def serve_cached(
        self,
        cache: Cache,
        page_order: Ints,
        tuples: Ints,
        spans: tuple[Ints, Ints, Ints],
        now: float,
        cursor: Ints,
        pairs: Pairs,
        alone: Ints,
    ) -> Served:
        """Join tuples with cached pages, and let them wait for the others.

        Costs one step per pair. In addition, for each tuple and page of its span: a binary search in a cached page, or
        a node in the list of a page that is not cached, after checking up to `SEARCHED` tuples of the list. Tuples
        ordered by key need fewer searches, and follow one another.

        Parameters
        ----------
        cache, page_order
            Which pages are cached; page ids in key order, if they are not in order themselves.
        tuples, spans
            Addresses of the tuples, and the pages of each (`Spans`).
        now
            The time to compare deadlines with.
        cursor
            `start` for the first call; updated.
        pairs, alone
            Filled with the pairs found, and with tuples that have no match.
        """
        return Served(
            *passes.serve_cached(
                self.pool.arrays, cache, self._states, self.shape.array, self._stride, self._ordered, self._searches,
                page_order, tuples, *spans, now, cursor, pairs, alone, self.earliest,
            )
        )  # fmt: skip

    def serve_waiting(
        self, cache: Cache, pages: Ints, frames: Bytes, now: float, cursor: Ints, pairs: Pairs, copies: Bytes
    ) -> Served:
        """Join pages just read with the tuples that wait for them; pages that no tuple waits for are skipped.

        Costs a binary search per leader in the list of a page, one step per pair, also for followers, and a copy of
        each matched row of R.

        R's rows are copied to ``copies``, so pairs of several calls can be collected: ``pairs`` of the result counts
        all of them. `next_pages` moves the cursor to other pages; `next_pairs` discards the pairs.
        """
        return Served(
            *passes.serve_waiting(
                self.pool.arrays, cache, self.shape.array, self._stride, self._ordered,
                pages, frames, now, cursor, pairs, copies,
            )
        )  # fmt: skip

    @staticmethod
    def start() -> Ints:
        """Return a cursor for `serve_cached`."""
        return np.array([0, 0, 0, -1, -1, 0, 0, -1], np.int64)

    @staticmethod
    def start_waiting() -> Ints:
        """Return a cursor for `serve_waiting`."""
        return np.array([0, -1, -1, 0, 0, 0, -1, -1], np.int64)

    @staticmethod
    def next_pages(cursor: Ints) -> None:
        """Move a cursor of `serve_waiting` to the first of other pages."""
        cursor[[W_PAGE, W_NODE, W_ROW, W_LAST, W_MEMBER]] = 0, -1, -1, -1, -1

    @staticmethod
    def next_pairs(cursor: Ints) -> None:
        """Discard the collected pairs."""
        cursor[[W_PAIRS, W_BYTES, W_LAST]] = 0, 0, -1

    def utilities(self, cache: Cache, pages: Ints | Slots, utility: Scores) -> Scores:
        """Return how many tuples wait for each page, in one step per page; the result is written to ``utility``."""
        lists.list_utilities(self.pool.arrays, cache.place, pages, utility)
        return utility[: pages.size]

    def tally(self, cache: Cache, prefix: int, shift: int, counts: Ints) -> None:
        """Count wanted pages by some bits of their utility, in one step per page; see `PageCache.decide`."""
        lists.tally_utilities(self.pool.arrays, cache.place, self._entries.state, prefix, shift, counts)

    @staticmethod
    def pages_went(cursor: Ints) -> None:
        """Record, during `serve_cached`, that pages were evicted: later tuples may wait for pages that a leader had."""
        cursor[LEADER] = PAGES_WENT

    def suspend(self, cursor: Ints) -> None:
        """Mark, before a join phase during `serve_cached`, that the current tuple will still need more pages."""
        if cursor[RECORD] >= 0:
            self.pool.arrays.halves[2 * cursor[RECORD]] |= np.uint32(PARTIAL)

    def resume(self, cursor: Ints) -> None:
        """Restore the cursor after that join phase, before `clear`: the current tuple is added to the buffer again."""
        if cursor[RECORD] >= 0:
            matched = self.pool.arrays.halves[2 * cursor[RECORD]] & np.uint32(MATCHED)
            cursor[HAS_MATCHED] |= np.int64(matched > 0)
            cursor[RECORD] = -1

    def unmatched(self, place: Ints, most: int) -> Ints:
        """Return the starts of the rows of tuples without a match; ``place`` is `begin` at first, and is updated.

        Returns up to ``most`` per call, none at the end. In total, one step per leader and per tuple found.
        """
        return lists.list_unmatched(self.pool.arrays, self.shape.array, place, most)

    def begin(self) -> Ints:
        """Return the position of the first tuple, for `unmatched`."""
        state = self.buffer.state
        return np.array([state[FRONT] if len(self.buffer) else -1, state[OFFSET], -1], np.int64)

    def clear(self) -> None:
        """Empty the stream buffer after all its tuples were joined, in time linear in its frames, not in its tuples."""
        for log in self.logs:
            log.clear()
        self.earliest[0] = np.inf

    def check(self, cache: Cache) -> None:
        """Assert that every wanted page leads to its tuples, and that each tuple's count of pages is right.

        Loops in Python over the pages of R and the tuples of each list.
        """
        self.buffer.check()
        halves = self.pool.arrays.halves
        waits: dict[int, int] = {}
        pages = np.flatnonzero(cache.place <= WANTED)
        assert pages.size == self.wanted, f"{pages.size} pages are wanted, {self.wanted} have an entry"
        nodes = 0
        for page in pages:
            entry = WANTED - int(cache.place[page])
            assert halves[2 * entry] == page, "an entry belongs to another page"
            node, count, tuples = int(halves[2 * entry + 2]), 0, 0
            while node != int(NONE):
                record = int(halves[2 * node])
                waits[record] = waits.get(record, 0) + 1
                node, count = int(halves[2 * node + 1]), count + 1
                tuples += 1 + self._following(record)
            assert tuples == halves[2 * entry + 1], f"{tuples} tuples wait for page {page}, not {halves[2 * entry + 1]}"
            nodes += count
        assert nodes == len(self._nodes), f"{nodes} nodes are in lists, of {len(self._nodes)}"
        records = set(self.buffer.front(len(self.buffer)).tolist())
        assert set(waits) == records, "tuples that wait and tuples in the buffer differ"
        assert all(halves[2 * record] // ONE_PAGE == count for record, count in waits.items())
        assert sum(map(self._following, records)) == len(self._followers), "a follower has no leader"

    def _following(self, record: int) -> int:
        """Return how many tuples follow this one."""
        halves, count = self.pool.arrays.halves, 0
        follower = int(halves[2 * record + 1])
        while follower != int(NONE):
            follower, count = int(halves[follower]), count + 1
        return count
