"""The inverted index of SSIJ: for each page of R that is wanted, the tuples that wait for it.

A wanted page has an entry, a waiting tuple a node for each page it waits for; both lie in logs of frames, so that what
waits takes memory away from cached pages, and gives it back.

::

    entry     0  u32 page | 4  u32 tuples that wait | 8  u32 last node | 12  u32 zero
    node      0  u32 tuple's address                | 4  u32 node before
    follower  0  u32 follower before, in units of four bytes | 4  the tuple's row, padded to 4

Tuples of the same key wait for the same pages. Only the first of them, the leader, has a record and nodes; the others
follow it, with no more than their row. So if R has many rows of a key, on several pages, what a waiting tuple takes
does not grow with their number.

Two compiled passes do the joining: `serve_cached`, over stream tuples whose page is in memory or not (Algorithm 1,
lines 3 to 20), and `serve_waiting`, over pages just read (Algorithm 2, line 10). Both stop when the room for pairs is
used up, and go on where they stopped.
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
    """What a pass did."""

    status: int
    pairs: int
    alone: int
    """Tuples that have met all of their pages and no partner."""
    hits: int
    """Tuples that left, served by cached pages alone."""
    finished: int
    """Tuples that left."""
    waiting: int
    """Tuples put into the stream buffer."""
    probes: int
    late: int
    """Tuples that left after their deadline."""


class InvertedIndex:
    """Stream tuples that wait (the stream buffer), and what they wait for.

    Parameters
    ----------
    pool
        Where memory comes from; which pages are cached, whoever calls says.
    shape
        Layout of the stream's tuples.
    stride, ordered
        Of R's pages: bytes of a row, and whether its rows are in the order of their keys.
    unique
        Whether R has one row a key. Tuples then share little, and none looks for another to follow, except beside it.

    Notes
    -----
    Holds 16 bytes a wanted page; a tuple that leads its record (`TupleShape.size_of`) and 8 bytes for each page it
    waits for; a tuple that follows its row and 4 bytes, padded to 4. All of it lies in frames of the pool. Nothing
    here reads from R: pages come in memory.
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
        # kernels get them as rows of one array
        self._states = np.stack([log.state for log in self.logs])
        for row, log in enumerate(self.logs):
            log.state = self._states[row]
        self.earliest = np.array([np.inf])
        """The first deadline of the tuples that wait."""

    def __len__(self) -> int:
        """Return the number of tuples that wait."""
        return len(self.buffer) + len(self._followers)

    @property
    def wanted(self) -> int:
        """Pages that tuples wait for."""
        return len(self._entries)

    @property
    def logs(self) -> list[FrameLog]:
        """The logs that hold it all."""
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

        For each tuple and page of its span, beside a step a pair: a binary search in a page that is
        cached, or a node in the list of one that is not, for which up to `SEARCHED` of the list are looked at. Tuples
        in the order of their keys save searches, and follow one another.

        Parameters
        ----------
        cache, page_order
            Which pages are cached; page ids in key order, if they are not in order themselves.
        tuples, spans
            Addresses of the tuples, and the pages of each (`Spans`).
        now
            What deadlines are compared with.
        cursor
            `start` to begin with; moved.
        pairs, alone
            Filled with the pairs found, and with tuples that have no partner.
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
        """Join pages just read with the tuples that wait for them; others among them are passed over.

        A binary search for each leader in the list of a page, a step for each pair, and a copy of each row of R that
        has one; followers of a leader cost a step a pair.

        Pairs of several calls may be gathered, since R's rows are copied to ``copies``: ``pairs`` of what is returned
        counts all of them. `next_pages` moves the cursor on to other pages, `next_pairs` forgets the pairs.
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
        """Begin to gather pairs anew."""
        cursor[[W_PAIRS, W_BYTES, W_LAST]] = 0, 0, -1

    def utilities(self, cache: Cache, pages: Ints | Slots, utility: Scores) -> Scores:
        """Return how many tuples wait for each page, a step a page; ``utility`` is what they are written to."""
        lists.list_utilities(self.pool.arrays, cache.place, pages, utility)
        return utility[: pages.size]

    def tally(self, cache: Cache, prefix: int, shift: int, counts: Ints) -> None:
        """Count wanted pages by some bits of their utility, a step a page; see `PageCache.decide`."""
        lists.tally_utilities(self.pool.arrays, cache.place, self._entries.state, prefix, shift, counts)

    @staticmethod
    def pages_went(cursor: Ints) -> None:
        """Amid `serve_cached`: tuples to come may have to wait for pages that the leader found cached."""
        cursor[LEADER] = PAGES_WENT

    def suspend(self, cursor: Ints) -> None:
        """Before a join phase amid `serve_cached`: the tuple at hand will not have met all of its pages by its end."""
        if cursor[RECORD] >= 0:
            self.pool.arrays.halves[2 * cursor[RECORD]] |= np.uint32(PARTIAL)

    def resume(self, cursor: Ints) -> None:
        """After that join phase, before `clear`: the tuple at hand will be put into the buffer again, if need be."""
        if cursor[RECORD] >= 0:
            matched = self.pool.arrays.halves[2 * cursor[RECORD]] & np.uint32(MATCHED)
            cursor[HAS_MATCHED] |= np.int64(matched > 0)
            cursor[RECORD] = -1

    def unmatched(self, place: Ints, most: int) -> Ints:
        """Return where the rows of tuples begin that met no partner; ``place`` is `begin` at first and is moved.

        Up to ``most`` at a time, none at the end; in all, a step for each leader and each tuple found.
        """
        return lists.list_unmatched(self.pool.arrays, self.shape.array, place, most)

    def begin(self) -> Ints:
        """Return the place of the first tuple, for `unmatched`."""
        state = self.buffer.state
        return np.array([state[FRONT] if len(self.buffer) else -1, state[OFFSET], -1], np.int64)

    def clear(self) -> None:
        """Flush the stream buffer, all of whose tuples were joined: time in its frames, not in its tuples."""
        for log in self.logs:
            log.clear()
        self.earliest[0] = np.inf

    def check(self, cache: Cache) -> None:
        """Assert that every wanted page leads to its tuples, and every tuple waits for as many pages as it says.

        Steps of Python for each page of R and each tuple of each list.
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
        """Return how many tuples follow one."""
        halves, count = self.pool.arrays.halves, 0
        follower = int(halves[2 * record + 1])
        while follower != int(NONE):
            follower, count = int(halves[follower]), count + 1
        return count
