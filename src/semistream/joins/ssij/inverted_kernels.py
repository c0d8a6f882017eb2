"""The compiled passes over SSIJ's inverted index, and their cursors; how it lies in memory, `inverted_index` says."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from semistream.core.arrays import Bytes, Floats, Halves, Ints, Scores, Slots
from semistream.core.compiled import Int, copy_bytes, inner_kernel, kernel
from semistream.joins.ssij.frame_pool import BYTES, COUNT, Pool, fits, frames_left, reserve, reserve_bytes, walk
from semistream.joins.ssij.page_cache import ABSENT, WANTED, Cache, touch
from semistream.joins.ssij.tuple_log import DUE, HEAD, HIGH, MATCHED, ONE_PAGE, PARTIAL, STRIDE, record_bytes
from semistream.relation.pages.page_layout import HEADER, row_start

__all__ = ["DONE", "FULL", "NO_PLAN", "NO_ROOM", "Pairs", "list_unmatched", "list_utilities"]


DONE, FULL, NO_ROOM, NO_PLAN = 0, 1, 2, 3
"""Why a pass ended: nothing left, room for pairs used up, no frame for another waiting tuple, too many wanted pages."""

ENTRY_BYTES, NODE_BYTES, LINK_BYTES, PAIR_BYTES = 16, 8, 4, 33
NONE = np.uint32(0xFFFFFFFF)

# Places in a cursor of `serve_cached`: tuple, span, page within it, row within the page or -1; the tuple's record in
# the stream buffer, -1 if it has none, -2 if it follows another; whether it has matched, whether a cached page was
# used; the record that tuples of the same key may follow, -1 if none, -2 if pages went while the tuple was at them.
TUPLE, SPAN, PAGE, ROW, RECORD, HAS_MATCHED, HAS_HIT, LEADER = 0, 1, 2, 3, 4, 5, 6, 7
# Places in a cursor of `serve_waiting`: page, node or -1, row or -1, whether the tuple has matched; pairs and bytes of
# rows gathered so far, and where the row gathered last was read; which of the followers is next, or -1.
W_PAGE, W_NODE, W_ROW, W_MATCHED, W_PAIRS, W_BYTES, W_LAST, W_MEMBER = 0, 1, 2, 3, 4, 5, 6, 7

_FOLLOWS, PAGES_WENT = -2, -2
SEARCHED = 8
"""Tuples of a page's list that are looked at for one with the same key."""


class Pairs(NamedTuple):
    """Room for pairs: the row of the stream tuple, by its first byte; R's, by its start among the pages, key and flags.

    ``kept`` is where R's row was copied to, if it has to outlive its page.
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
        halves[2 * record] = 0
        halves[2 * record + 1] = NONE
    if new:
        entry = reserve(free, after, used, state, entries, ENTRY_BYTES, 0)
        halves[2 * entry] = page
        halves[2 * entry + 1] = 0
        halves[2 * entry + 2] = NONE
        halves[2 * entry + 3] = 0
        place[page] = WANTED - entry
    entry = WANTED - np.int64(place[page])
    node = reserve(free, after, used, state, nodes, NODE_BYTES, 0)
    halves[2 * node] = record
    halves[2 * node + 1] = halves[2 * entry + 2]
    halves[2 * entry + 2] = node
    halves[2 * entry + 1] += np.uint32(1)
    halves[2 * record] += np.uint32(ONE_PAGE)
    return DONE, record


@inner_kernel
def _follow(
    flat: Bytes,
    halves: Halves,
    free: Slots,
    after: Slots,
    used: Slots,
    state: Ints,
    followers: Ints,
    shape: Ints,
    source: Int,
    leader: Int,
) -> int:
    """Let a tuple wait along with another of the same key; return DONE or NO_ROOM."""
    row = (source + shape[HEAD]) * 8
    length = shape[STRIDE] if shape[STRIDE] > 0 else row_length(flat, row)
    at = reserve_bytes(free, after, used, state, followers, (LINK_BYTES + length + 3) >> 2 << 2, 0)
    if at < 0:
        return NO_ROOM
    copy_bytes(flat, at + LINK_BYTES, flat, row, length)
    halves[at >> 2] = halves[2 * leader + 1]
    halves[2 * leader + 1] = at >> 2
    return DONE


@inner_kernel
def _waiting_alike(
    words: Ints,
    halves: Halves,
    place: Slots,
    page_order: Ints,
    first: Ints,
    length: Ints,
    key: Int,
    entry: Int,
    span: Int,
    end: Int,
    page_at: Int,
) -> Int:
    """Return a tuple in the list of a page that has the same key and waits for the same pages, or -1."""
    node, steps = halves[2 * entry + 2], 0
    while node != NONE and steps < SEARCHED:
        record = np.int64(halves[2 * node])
        if words[record + 1] == key:
            lacking = np.int64(0)
            for at in range(span, end):
                for i in range(page_at if at == span else 0, length[at]):
                    page = first[at] + i
                    if place[page_order[page] if page_order.size > 0 else page] < 0:
                        lacking += 1
            # pages only go until the next join phase: it waits for as many, or for fewer if some have gone since
            return record if np.int64(halves[2 * record]) // ONE_PAGE == lacking else np.int64(-1)
        node = halves[2 * node + 1]
        steps += 1
    return np.int64(-1)


@kernel
def serve_cached(
    pool: Pool,
    cache: Cache,
    logs: Ints,
    shape: Ints,
    stride: int,
    ordered: bool,
    searches: bool,
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
    """Join tuples with cached pages, and let them wait for the others."""
    flat, words, halves, reals = pool.flat, pool.words, pool.halves, pool.reals
    free, after, used, state = pool.free, pool.after, pool.used, pool.state
    place, score, cache_state = cache.place, cache.score, cache.state
    buffer, nodes, entries, followers = logs[0], logs[1], logs[2], logs[3]
    pair_tuple, pair_start, pair_key, pair_flag = pairs.tuple_at, pairs.start, pairs.key, pairs.flag
    high_at, due_at, frame_bytes, cap = shape[HIGH], shape[DUE], state[BYTES], pair_tuple.size
    row_at = shape[HEAD] * 8
    # a follower has neither an end of its range nor a deadline of its own
    alike = high_at == 0 and due_at == 0
    found, lonely, hits, finished, waiting, probes, late = 0, 0, 0, 0, 0, 0, 0
    status = DONE
    at, span, page_at, row = cursor[TUPLE], cursor[SPAN], cursor[PAGE], cursor[ROW]
    record, matched, hit, leader = cursor[RECORD], cursor[HAS_MATCHED], cursor[HAS_HIT], cursor[LEADER]
    begin = np.int64(-1)  # the row at which the last look-up of a key found its first page
    while at < tuples.size and status == DONE:
        source = tuples[at]
        low = words[source + 1]
        high = words[source + high_at] if high_at > 0 else low
        again = alike and at > 0 and words[tuples[at - 1] + 1] == low
        if not again:
            begin = np.int64(-1)
        while span < bounds[at + 1] and status == DONE:
            while page_at < length[span]:
                page = first[span] + page_at
                if page_order.size > 0:
                    page = page_order[page]
                frame = np.int64(place[page])
                if frame < 0:
                    if record == -1 and alike:
                        joined: Int = np.int64(-1)
                        if again and leader >= 0 and words[leader + 1] == low:
                            joined = leader
                        elif searches and frame != ABSENT:
                            joined = _waiting_alike(
                                words, halves, place, page_order, first, length, low, WANTED - frame,
                                span, bounds[at + 1], page_at,
                            )  # fmt: skip
                        if joined >= 0:
                            status = _follow(
                                flat, halves, free, after, used, state, followers, shape, source, joined
                            )  # fmt: skip
                            if status != DONE:
                                break
                            record = np.int64(_FOLLOWS)
                            leader = np.int64(joined if leader != PAGES_WENT else leader)
                    if record == _FOLLOWS:
                        halves[2 * (WANTED - frame) + 1] += np.uint32(1)
                    else:
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
                        hit = 1
                        if not ordered:
                            row = np.int64(0)
                            probes += 1
                        elif begin >= 0 and page_at == 0 and span == bounds[at]:
                            row = begin
                        elif again and rows > 0 and words[keys] >= low:
                            row = np.int64(0)
                        else:
                            row = _first_at_least(words, keys, rows, low)
                            probes += 1
                        if page_at == 0 and span == bounds[at]:
                            begin = row
                    while row < rows:
                        key = words[keys + row]
                        if low <= key <= high:
                            if found == cap:
                                status = FULL
                                break
                            pair_tuple[found] = source * 8 + row_at
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
        if record != -1:
            waiting += 1
            if record >= 0:
                halves[2 * record] |= np.uint32(MATCHED if matched else 0)
                if due_at > 0:
                    earliest[0] = min(earliest[0], reals[record + due_at])
                leader = record if leader != PAGES_WENT else leader
        else:
            finished += 1
            hits += hit
            if due_at > 0 and reals[source + due_at] < now:
                late += 1
            if matched == 0:
                alone[lonely] = source * 8 + row_at
                lonely += 1
        if leader == PAGES_WENT:
            leader = np.int64(-1)
        at += 1
        row, record, matched, hit = np.int64(-1), np.int64(-1), np.int64(0), np.int64(0)
    cursor[TUPLE], cursor[SPAN], cursor[PAGE], cursor[ROW] = at, span, page_at, row
    cursor[RECORD], cursor[HAS_MATCHED], cursor[HAS_HIT], cursor[LEADER] = record, matched, hit, leader
    return status, found, lonely, hits, finished, waiting, probes, late


@kernel
def serve_waiting(
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
    """Join pages just read with the tuples that wait for them."""
    records, halves, reals, place = pool.words, pool.halves, pool.reals, cache.place
    pair_tuple, pair_start, pair_key, pair_flag = pairs.tuple_at, pairs.start, pairs.key, pairs.flag
    pair_kept = pairs.kept
    high_at, due_at, cap, row_at = shape[HIGH], shape[DUE], pair_tuple.size, shape[HEAD] * 8
    flat = frames.reshape(-1)
    words, counts = flat.view(np.int64), flat.view(np.uint32)
    finished, probes, late = 0, 0, 0
    at, node, row, matched = cursor[W_PAGE], cursor[W_NODE], cursor[W_ROW], cursor[W_MATCHED]
    found, copied, last, member = cursor[W_PAIRS], cursor[W_BYTES], cursor[W_LAST], cursor[W_MEMBER]
    none = np.int64(NONE)
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
                    while True:
                        if found == cap or (start != last and copied + size > copies.size):
                            full = True
                            break
                        if start != last:
                            copy_bytes(copies, copied, flat, start, size)
                            last = start
                            copied += size
                        pair_tuple[found] = record * 8 + row_at if member < 0 else member * 4 + LINK_BYTES
                        pair_start[found] = start
                        pair_key[found] = key
                        pair_kept[found] = copied - size
                        pair_flag[found] = flat[base + HEADER + 8 * rows + row]
                        found += 1
                        matched = np.int64(1)
                        member = np.int64(halves[2 * record + 1 if member < 0 else member])
                        if member == none:
                            member = np.int64(-1)
                            break
                    if full:
                        break
                elif ordered:
                    break
                row += 1
            if full:
                break
            bits = (halves[2 * record] | np.uint32(MATCHED if matched else 0)) - np.uint32(ONE_PAGE)
            halves[2 * record] = bits
            if bits < np.uint32(ONE_PAGE) and (bits & np.uint32(PARTIAL)) == 0:
                finished += 1
                if due_at > 0 and reals[record + due_at] < now:
                    late += 1
                follower = halves[2 * record + 1]
                while follower != NONE:
                    finished += 1
                    follower = halves[follower]
            row = np.int64(-1)
            node = np.int64(halves[2 * node + 1])
        if full:
            break
        node = np.int64(-1)
        at += 1
    cursor[W_PAGE], cursor[W_NODE], cursor[W_ROW], cursor[W_MATCHED] = at, node, row, matched
    cursor[W_PAIRS], cursor[W_BYTES], cursor[W_LAST], cursor[W_MEMBER] = found, copied, last, member
    return FULL if full else DONE, found, 0, 0, finished, 0, probes, late


@kernel
def list_unmatched(pool: Pool, shape: Ints, place: Ints, most: int) -> Ints:
    """Return rows of tuples without a match, from ``place`` on, which is moved; the partial one is not finished yet.

    ``place`` is the frame and offset of a record, and the follower that is next, or -1.
    """
    halves, after, used, frame_bytes = pool.halves, pool.after, pool.used, pool.state[BYTES]
    found = np.empty(most, np.int64)
    count = 0
    frame, offset, member = place[0], place[1], place[2]
    none = np.int64(NONE)
    while count < most:
        if member >= 0:
            found[count] = member * 4 + LINK_BYTES
            count += 1
            member = np.int64(halves[member])
        else:
            frame, offset = walk(after, used, frame, offset)
            if frame < 0:
                break
            at = (frame * frame_bytes + offset) >> 3
            offset += record_bytes(halves, shape, at)
            if halves[2 * at] & np.uint32(MATCHED | PARTIAL) == 0:
                found[count] = (at + shape[HEAD]) * 8
                count += 1
                member = np.int64(halves[2 * at + 1])
        if member == none:
            member = np.int64(-1)
    place[0], place[1], place[2] = frame, offset, member
    return found[:count]


@kernel
def list_utilities(pool: Pool, place: Slots, pages: Ints | Slots, utility: Scores) -> None:
    """Write how many tuples wait for each page."""
    halves = pool.halves
    for i in range(pages.size):
        entry = WANTED - np.int64(place[pages[i]])
        utility[i] = halves[2 * entry + 1] if entry >= 0 else np.uint32(0)
