"""The inverted index of SSIJ: for each page of R that is wanted, the tuples that wait for it.

A wanted page has an entry, a waiting tuple a node for each page it waits for; both lie in logs of frames, so that what
waits takes memory away from cached pages, and gives it back.

::

    entry   0  u32 page | 4  u32 tuples that wait | 8  u32 last node | 12  u32 zero
    node    0  u32 tuple's address                | 4  u32 node before

Two compiled passes do the joining: `serve_cached`, over stream tuples whose page is in memory or not (Algorithm 1,
lines 3 to 20), and `serve_waiting`, over pages just read (Algorithm 2, line 10). Both stop when the room for pairs is
used up, and go on where they stopped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.core.compiled import Int, copy_bytes, inner_kernel, kernel
from semistream.relation.pages import HEADER, row_start
from semistream.structures.frame_pool import BYTES, COUNT, FrameLog, FramePool, Pool, fits, frames_left, reserve
from semistream.structures.page_cache import ABSENT, WANTED, Cache, touch
from semistream.structures.tuple_log import DUE, HIGH, MATCHED, PARTIAL, TupleLog, TupleShape, record_bytes

__all__ = ["DONE", "FULL", "NO_PLAN", "NO_ROOM", "InvertedIndex", "Pairs", "Served"]

Ints = NDArray[np.int64]
Slots = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]
Scores = NDArray[np.float32]
Halves = NDArray[np.uint32]

DONE, FULL, NO_ROOM, NO_PLAN = 0, 1, 2, 3
"""Why a pass ended: nothing left, room for pairs used up, no frame for another waiting tuple, too many wanted pages."""

ENTRY_BYTES, NODE_BYTES, PAIR_BYTES = 16, 8, 33
_NONE = np.uint32(0xFFFFFFFF)

# Places in a cursor of `serve_cached`: tuple, span, page within it, row within the page or -1, the tuple's record in
# the stream buffer or -1, whether it has matched, whether a cached page was used.
TUPLE, SPAN, PAGE, ROW, RECORD, HAS_MATCHED, HAS_HIT = 0, 1, 2, 3, 4, 5, 6
# Places in a cursor of `serve_waiting`: page, node or -1, row or -1, whether the tuple has matched; pairs and bytes of
# rows gathered so far, and where the row gathered last was read.
W_PAGE, W_NODE, W_ROW, W_MATCHED, W_PAIRS, W_BYTES, W_LAST = 0, 1, 2, 3, 4, 5, 6


class Pairs(NamedTuple):
    """Room for pairs: address of the stream tuple; R's row, by its start among the pages, its key and its flags.

    ``kept`` is where the row was copied to, if it has to outlive its page.
    """

    tuple_at: Ints
    start: Ints
    key: Ints
    kept: Ints
    flag: Bytes

    @classmethod
    def empty(cls, cap: int) -> Pairs:
        """Return room for ``cap`` pairs."""
        numbers = np.empty((4, cap), np.int64)
        return cls(numbers[0], numbers[1], numbers[2], numbers[3], np.empty(cap, np.uint8))


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


@inner_kernel
def _first_at_least(words: Ints, begin: Int, count: Int, key: Int) -> Int:
    low, high = np.int64(0), np.int64(count)
    while low < high:
        middle = (low + high) >> 1
        if words[begin + middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@inner_kernel
def row_length(flat: Bytes, start: Int) -> Int:
    """Return the length of a row of varying length, which it begins with."""
    length: Int = np.int64(flat[start]) | np.int64(flat[start + 1]) << 8
    length |= np.int64(flat[start + 2]) << 16 | np.int64(flat[start + 3]) << 24
    return length


@inner_kernel
def _wait(
    words: Ints,
    halves: Halves,
    free: Slots,
    after: Slots,
    used: Slots,
    state: Ints,
    place: Slots,
    buffer: Ints,
    nodes: Ints,
    entries: Ints,
    size: Int,
    source: Int,
    record: Int,
    page: Int,
    most_wanted: int,
) -> tuple[int, Int]:
    """Let a tuple wait for a page; return DONE or what is lacking, and the tuple's record in the stream buffer."""
    new = place[page] == ABSENT
    if new and entries[COUNT] == most_wanted:
        return NO_PLAN, record
    needed = 0 if fits(used, state, nodes, NODE_BYTES) else 1
    if record < 0 and not fits(used, state, buffer, size):
        needed += 1
    if new and not fits(used, state, entries, ENTRY_BYTES):
        needed += 1
    if needed > frames_left(state):
        return NO_ROOM, record
    if record < 0:
        record = reserve(free, after, used, state, buffer, size, 0)
        for word in range(1, size >> 3):
            words[record + word] = words[source + word]
        words[record] = 0
    if new:
        entry = reserve(free, after, used, state, entries, ENTRY_BYTES, 0)
        halves[2 * entry] = page
        halves[2 * entry + 1] = 0
        halves[2 * entry + 2] = _NONE
        halves[2 * entry + 3] = 0
        place[page] = WANTED - entry
    entry = WANTED - np.int64(place[page])
    node = reserve(free, after, used, state, nodes, NODE_BYTES, 0)
    halves[2 * node] = record
    halves[2 * node + 1] = halves[2 * entry + 2]
    halves[2 * entry + 2] = node
    halves[2 * entry + 1] += np.uint32(1)
    halves[2 * record + 1] += np.uint32(1)
    return DONE, record


@kernel
def _serve_cached(
    pool: Pool,
    cache: Cache,
    logs: Ints,
    shape: Ints,
    stride: int,
    ordered: bool,
    page_order: Ints,
    tuples: Ints,
    bounds: Ints,
    first: Ints,
    length: Ints,
    most_wanted: int,
    now: float,
    cursor: Ints,
    pairs: Pairs,
    alone: Ints,
    earliest: Floats,
) -> tuple[int, int, int, int, int, int, int, int]:
    flat, words, halves, reals = pool.flat, pool.words, pool.halves, pool.reals
    free, after, used, state = pool.free, pool.after, pool.used, pool.state
    place, score, cache_state = cache.place, cache.score, cache.state
    buffer, nodes, entries = logs[0], logs[1], logs[2]
    pair_tuple, pair_start, pair_key, pair_flag = pairs.tuple_at, pairs.start, pairs.key, pairs.flag
    high_at, due_at, frame_bytes, cap = shape[HIGH], shape[DUE], state[BYTES], pair_tuple.size
    found, lonely, hits, finished, waiting, probes, late = 0, 0, 0, 0, 0, 0, 0
    status = DONE
    at, span, page_at, row = cursor[TUPLE], cursor[SPAN], cursor[PAGE], cursor[ROW]
    record, matched, hit = cursor[RECORD], cursor[HAS_MATCHED], cursor[HAS_HIT]
    while at < tuples.size and status == DONE:
        source = tuples[at]
        low = words[source + 1]
        high = words[source + high_at] if high_at > 0 else low
        while span < bounds[at + 1] and status == DONE:
            while page_at < length[span]:
                page = first[span] + page_at
                if page_order.size > 0:
                    page = page_order[page]
                frame = np.int64(place[page])
                if frame < 0:
                    size = record_bytes(halves, shape, source)
                    status, record = _wait(
                        words, halves, free, after, used, state, place, buffer, nodes, entries,
                        size, source, record, page, most_wanted,
                    )  # fmt: skip
                    if status != DONE:
                        break
                else:
                    base = frame * frame_bytes
                    rows = np.int64(halves[(base >> 2) + 3])
                    keys = (base + HEADER) >> 3
                    if row < 0:
                        touch(score, cache_state, frame)
                        probes += 1
                        hit = 1
                        row = _first_at_least(words, keys, rows, low) if ordered else np.int64(0)
                    while row < rows:
                        key = words[keys + row]
                        if low <= key <= high:
                            if found == cap:
                                status = FULL
                                break
                            pair_tuple[found] = source
                            pair_start[found] = row_start(flat, base, rows, row, stride)
                            pair_key[found] = key
                            pair_flag[found] = flat[base + HEADER + 8 * rows + row]
                            found += 1
                            matched = 1
                        elif ordered:
                            break
                        row += 1
                    if status != DONE:
                        break
                    row = np.int64(-1)
                page_at += 1
            if status == DONE:
                span += 1
                page_at = np.int64(0)
        if status != DONE:
            break
        if record >= 0:
            halves[2 * record] |= np.uint32(MATCHED if matched else 0)
            waiting += 1
            if due_at > 0:
                earliest[0] = min(earliest[0], reals[record + due_at])
        else:
            finished += 1
            hits += hit
            if due_at > 0 and reals[source + due_at] < now:
                late += 1
            if matched == 0:
                alone[lonely] = source
                lonely += 1
        at += 1
        row, record, matched, hit = np.int64(-1), np.int64(-1), np.int64(0), np.int64(0)
    cursor[TUPLE], cursor[SPAN], cursor[PAGE], cursor[ROW] = at, span, page_at, row
    cursor[RECORD], cursor[HAS_MATCHED], cursor[HAS_HIT] = record, matched, hit
    return status, found, lonely, hits, finished, waiting, probes, late


@kernel
def _serve_waiting(
    pool: Pool,
    cache: Cache,
    shape: Ints,
    stride: int,
    ordered: bool,
    pages: Ints,
    frames: Bytes,
    now: float,
    cursor: Ints,
    pairs: Pairs,
    copies: Bytes,
) -> tuple[int, int, int, int, int, int, int, int]:
    records, halves, reals, place = pool.words, pool.halves, pool.reals, cache.place
    pair_tuple, pair_start, pair_key, pair_flag = pairs.tuple_at, pairs.start, pairs.key, pairs.flag
    pair_kept = pairs.kept
    high_at, due_at, cap = shape[HIGH], shape[DUE], pair_tuple.size
    flat = frames.reshape(-1)
    words, counts = flat.view(np.int64), flat.view(np.uint32)
    finished, probes, late = 0, 0, 0
    at, node, row, matched = cursor[W_PAGE], cursor[W_NODE], cursor[W_ROW], cursor[W_MATCHED]
    found, copied, last = cursor[W_PAIRS], cursor[W_BYTES], cursor[W_LAST]
    none = np.int64(_NONE)
    full = False
    while at < pages.size:
        entry = WANTED - np.int64(place[pages[at]])
        if entry < 0:
            at += 1
            continue
        base = at * frames.shape[1]
        rows = np.int64(counts[(base >> 2) + 3])
        keys = (base + HEADER) >> 3
        if node < 0:
            node = np.int64(halves[2 * entry + 2])
        while node != none:
            record = np.int64(halves[2 * node])
            low = records[record + 1]
            high = records[record + high_at] if high_at > 0 else low
            if row < 0:
                probes += 1
                matched = np.int64(0)
                row = _first_at_least(words, keys, rows, low) if ordered else np.int64(0)
            while row < rows:
                key = words[keys + row]
                if low <= key <= high:
                    start = row_start(flat, base, rows, row, stride)
                    size = stride if stride > 0 else row_length(flat, start)
                    if found == cap or (start != last and copied + size > copies.size):
                        full = True
                        break
                    if start != last:
                        copy_bytes(copies, copied, flat, start, size)
                        last = start
                        copied += size
                    pair_tuple[found] = record
                    pair_start[found] = start
                    pair_key[found] = key
                    pair_kept[found] = copied - size
                    pair_flag[found] = flat[base + HEADER + 8 * rows + row]
                    found += 1
                    matched = np.int64(1)
                elif ordered:
                    break
                row += 1
            if full:
                break
            bits = halves[2 * record] | np.uint32(MATCHED if matched else 0)
            left = halves[2 * record + 1] - np.uint32(1)
            halves[2 * record] = bits
            halves[2 * record + 1] = left
            if left == 0 and (bits & np.uint32(PARTIAL)) == 0:
                finished += 1
                if due_at > 0 and reals[record + due_at] < now:
                    late += 1
            row = np.int64(-1)
            node = np.int64(halves[2 * node + 1])
        if full:
            break
        node = np.int64(-1)
        at += 1
    cursor[W_PAGE], cursor[W_NODE], cursor[W_ROW], cursor[W_MATCHED] = at, node, row, matched
    cursor[W_PAIRS], cursor[W_BYTES], cursor[W_LAST] = found, copied, last
    return FULL if full else DONE, found, 0, 0, finished, 0, probes, late


@kernel
def _utilities(pool: Pool, place: Slots, pages: Ints | Slots, utility: Scores) -> None:
    halves = pool.halves
    for i in range(pages.size):
        entry = WANTED - np.int64(place[pages[i]])
        utility[i] = halves[2 * entry + 1] if entry >= 0 else np.uint32(0)


class InvertedIndex:
    """Stream tuples that wait (the stream buffer), and what they wait for.

    Parameters
    ----------
    pool, cache
        Where memory comes from, and where it is known which pages are cached.
    shape
        Layout of the stream's tuples.
    stride, ordered
        Of R's pages: bytes of a row, and whether its rows are in the order of their keys.
    """

    def __init__(self, pool: FramePool, shape: TupleShape, stride: int, ordered: bool) -> None:
        self.pool = pool
        self.shape = shape
        self._stride = stride
        self._ordered = ordered
        self._nodes = FrameLog(pool)
        self._entries = FrameLog(pool)
        self.buffer = TupleLog(pool, shape)
        # kernels get the three as rows of one array
        self._states = np.stack([self.buffer.state, self._nodes.state, self._entries.state])
        for row, log in enumerate((self.buffer, self._nodes, self._entries)):
            log.state = self._states[row]
        self.earliest = np.array([np.inf])
        """The first deadline of the tuples that wait."""

    def __len__(self) -> int:
        """Return the number of tuples that wait."""
        return len(self.buffer)

    @property
    def wanted(self) -> int:
        """Pages that tuples wait for."""
        return len(self._entries)

    @property
    def logs(self) -> list[FrameLog]:
        """The logs that hold it all."""
        return [self.buffer, self._nodes, self._entries]

    def serve_cached(
        self,
        cache: Cache,
        page_order: Ints,
        tuples: Ints,
        spans: tuple[Ints, Ints, Ints],
        most_wanted: int,
        now: float,
        cursor: Ints,
        pairs: Pairs,
        alone: Ints,
    ) -> Served:
        """Join tuples with cached pages, and let them wait for the others.

        Parameters
        ----------
        cache, page_order
            Which pages are cached; page ids in key order, if they are not in order themselves.
        tuples, spans
            Addresses of the tuples, and the pages of each (`Spans`).
        most_wanted
            Wanted pages at most.
        now
            What deadlines are compared with.
        cursor
            `start` to begin with; moved.
        pairs, alone
            Filled with the pairs found, and with tuples that have no partner.
        """
        return Served(
            *_serve_cached(
                self.pool.arrays, cache, self._states, self.shape.array, self._stride, self._ordered,
                page_order, tuples, *spans, most_wanted, now, cursor, pairs, alone, self.earliest,
            )
        )  # fmt: skip

    def serve_waiting(
        self, cache: Cache, pages: Ints, frames: Bytes, now: float, cursor: Ints, pairs: Pairs, copies: Bytes
    ) -> Served:
        """Join pages just read with the tuples that wait for them; others among them are passed over.

        Pairs of several calls may be gathered, since R's rows are copied to ``copies``: ``pairs`` of what is returned
        counts all of them. `next_pages` moves the cursor on to other pages, `next_pairs` forgets the pairs.
        """
        return Served(
            *_serve_waiting(
                self.pool.arrays, cache, self.shape.array, self._stride, self._ordered,
                pages, frames, now, cursor, pairs, copies,
            )
        )  # fmt: skip

    @staticmethod
    def start() -> Ints:
        """Return a cursor for `serve_cached`."""
        return np.array([0, 0, 0, -1, -1, 0, 0], np.int64)

    @staticmethod
    def start_waiting() -> Ints:
        """Return a cursor for `serve_waiting`."""
        return np.array([0, -1, -1, 0, 0, 0, -1], np.int64)

    @staticmethod
    def next_pages(cursor: Ints) -> None:
        """Move a cursor of `serve_waiting` to the first of other pages."""
        cursor[[W_PAGE, W_NODE, W_ROW, W_LAST]] = 0, -1, -1, -1

    @staticmethod
    def next_pairs(cursor: Ints) -> None:
        """Begin to gather pairs anew."""
        cursor[[W_PAIRS, W_BYTES, W_LAST]] = 0, 0, -1

    def utilities(self, cache: Cache, pages: Ints | Slots, utility: Scores) -> Scores:
        """Return how many tuples wait for each page."""
        _utilities(self.pool.arrays, cache.place, pages, utility)
        return utility[: pages.size]

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

    def clear(self) -> None:
        """Flush the stream buffer, all of whose tuples were joined."""
        for log in self.logs:
            log.clear()
        self.earliest[0] = np.inf

    def check(self, cache: Cache) -> None:
        """Assert that every wanted page leads to its tuples, and every tuple waits for as many pages as it says."""
        self.buffer.check()
        halves = self.pool.arrays.halves
        waits: dict[int, int] = {}
        pages = np.flatnonzero(cache.place <= WANTED)
        assert pages.size == self.wanted, f"{pages.size} pages are wanted, {self.wanted} have an entry"
        nodes = 0
        for page in pages:
            entry = WANTED - int(cache.place[page])
            assert halves[2 * entry] == page, "an entry belongs to another page"
            node, count = int(halves[2 * entry + 2]), 0
            while node != int(_NONE):
                record = int(halves[2 * node])
                waits[record] = waits.get(record, 0) + 1
                node, count = int(halves[2 * node + 1]), count + 1
            assert count == halves[2 * entry + 1], f"{count} tuples wait for page {page}, not {halves[2 * entry + 1]}"
            nodes += count
        assert nodes == len(self._nodes), f"{nodes} nodes are in lists, of {len(self._nodes)}"
        records = set(self.buffer.front(len(self)).tolist())
        assert set(waits) == records, "tuples that wait and tuples in the buffer differ"
        assert all(halves[2 * record + 1] == count for record, count in waits.items())
