"""The two compiled passes that join: tuples with cached pages, and pages just read with waiting tuples."""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Bytes, Floats, Ints
from semistream.core.compiled import Int, copy_bytes, inner_kernel, kernel
from semistream.joins.ssij.frame_pool import BYTES, Pool
from semistream.joins.ssij.inverted_layout import (
    DONE,
    FOLLOWS,
    FULL,
    HAS_HIT,
    HAS_MATCHED,
    LEADER,
    LINK_BYTES,
    NONE,
    PAGE,
    PAGES_WENT,
    RECORD,
    ROW,
    SPAN,
    TUPLE,
    W_BYTES,
    W_LAST,
    W_MATCHED,
    W_MEMBER,
    W_NODE,
    W_PAGE,
    W_PAIRS,
    W_ROW,
    Pairs,
)
from semistream.joins.ssij.inverted_lists import follow, row_length, wait, waiting_alike
from semistream.joins.ssij.page_cache import ABSENT, WANTED, Cache, touch
from semistream.joins.ssij.tuple_log import DUE, HEAD, HIGH, MATCHED, ONE_PAGE, PARTIAL, record_bytes
from semistream.relation.pages.page_layout import HEADER, row_start

__all__ = ["serve_cached", "serve_waiting"]


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
    # A follower stores neither the end of a range nor a deadline.
    alike = high_at == 0 and due_at == 0
    found, lonely, hits, finished, waiting, probes, late = 0, 0, 0, 0, 0, 0, 0
    status = DONE
    at, span, page_at, row = cursor[TUPLE], cursor[SPAN], cursor[PAGE], cursor[ROW]
    record, matched, hit, leader = cursor[RECORD], cursor[HAS_MATCHED], cursor[HAS_HIT], cursor[LEADER]
    begin = np.int64(-1)  # row that the last look-up of this key found in its first page
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
                            joined = waiting_alike(
                                words, halves, place, page_order, first, length, low, WANTED - frame,
                                span, bounds[at + 1], page_at,
                            )  # fmt: skip
                        if joined >= 0:
                            status = follow(
                                flat, halves, free, after, used, state, followers, shape, source, joined
                            )  # fmt: skip
                            if status != DONE:
                                break
                            record = np.int64(FOLLOWS)
                            leader = np.int64(joined if leader != PAGES_WENT else leader)
                    if record == FOLLOWS:
                        halves[2 * (WANTED - frame) + 1] += np.uint32(1)
                    else:
                        size = record_bytes(halves, shape, source)
                        status, record = wait(
                            words, halves, free, after, used, state, place, buffer, nodes, entries,
                            size, source, record, page,
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
