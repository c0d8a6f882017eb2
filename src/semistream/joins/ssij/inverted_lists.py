"""The lists of SSIJ's inverted index: kernels that add tuples, and that find, count and list them.

`inverted_index` describes their layout in memory. All lists are freed together, by clearing their logs.
"""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Bytes, Halves, Ints, Scores, Slots
from semistream.core.compiled import Int, copy_bytes, inner_kernel, kernel
from semistream.joins.ssij.frame_pool import (
    BYTES,
    COUNT,
    FRONT,
    OFFSET,
    Pool,
    fits,
    frames_left,
    reserve,
    reserve_bytes,
    walk,
)
from semistream.joins.ssij.inverted_layout import (
    DONE,
    ENTRY_BYTES,
    LINK_BYTES,
    NO_ROOM,
    NODE_BYTES,
    NONE,
    SEARCHED,
)
from semistream.joins.ssij.page_cache import ABSENT, WANTED
from semistream.joins.ssij.tuple_log import HEAD, MATCHED, ONE_PAGE, PARTIAL, STRIDE, record_bytes

__all__ = ["follow", "list_unmatched", "list_utilities", "row_length", "tally_utilities", "wait", "waiting_alike"]


@inner_kernel
def row_length(flat: Bytes, start: Int) -> Int:
    """Return the length of a variable-length row, which is its first field."""
    length: Int = np.int64(flat[start]) | np.int64(flat[start + 1]) << 8
    length |= np.int64(flat[start + 2]) << 16 | np.int64(flat[start + 3]) << 24
    return length


@inner_kernel
def wait(
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
) -> tuple[int, Int]:
    """Let a tuple wait for a page; return DONE or NO_ROOM, and the tuple's record in the stream buffer."""
    new = place[page] == ABSENT
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
def follow(
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
    """Let a tuple wait together with another of the same key; return DONE or NO_ROOM."""
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
def waiting_alike(
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
            # Until the next join phase pages are only evicted: the other tuple waits for the same number of pages, or
            # for fewer if some were evicted since.
            return record if np.int64(halves[2 * record]) // ONE_PAGE == lacking else np.int64(-1)
        node = halves[2 * node + 1]
        steps += 1
    return np.int64(-1)


@kernel
def list_unmatched(pool: Pool, shape: Ints, place: Ints, most: int) -> Ints:
    """Return rows of tuples without a match, starting at ``place``, which is updated; skips the partial tuple.

    ``place`` is the frame and offset of a record, and the next follower, or -1.
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


@kernel
def tally_utilities(pool: Pool, place: Slots, entries: Ints, prefix: int, shift: int, tally: Ints) -> None:
    """Count wanted pages by eight bits of their utility, a float, above ``shift``; all higher bits are ``prefix``.

    After a failed phase, entries of pages that were already read remain. These pages are not wanted, and not counted.
    """
    halves, after, used, frame_bytes = pool.halves, pool.after, pool.used, pool.state[BYTES]
    utility = np.empty(1, np.float32)
    bits = utility.view(np.uint32)
    frame, offset = entries[FRONT], entries[OFFSET]
    for _ in range(entries[COUNT]):
        frame, offset = walk(after, used, frame, offset)
        entry = (frame * frame_bytes + offset) >> 3
        utility[0] = halves[2 * entry + 1]
        offset += ENTRY_BYTES
        pattern = np.int64(bits[0])
        if pattern >> (shift + 8) == prefix and place[halves[2 * entry]] == WANTED - entry:
            tally[(pattern >> shift) & 255] += 1
