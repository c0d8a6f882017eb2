"""Variable-length rows in one array of words.

Each row is contiguous; rows are put and freed in any order.

::

    ┌────────────┬────────┬──────────────┬──────────────────┐
    │ 7 · row    │ hole   │ 2 · row      │ not used yet     │     a block: its slot number, then the row
    └────────────┴────────┴──────────────┴──────────────────┘     a hole: its size, then the next hole of its kind
                                          tail

A freed row leaves a hole, and a new row uses a hole of its own size if there is one. Rows of each length are freed
about as often as they are added, so most new rows fit into a hole. Otherwise the row goes to the tail, or into a part
of a larger hole. If neither is large enough although enough words are free, all rows are compacted and the holes
disappear. So only the number of free words decides whether a row fits. One word in 64 is kept free, so that rows are
not compacted for every new row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.core.compiled import Int, copy_bytes, inner_kernel, kernel

__all__ = [
    "HEAD",
    "KINDS",
    "READY",
    "SPARE",
    "STATE_WORDS",
    "TAIL",
    "USED",
    "WORD",
    "RowTable",
    "check_blocks",
    "close_holes",
    "free_blocks",
    "free_words",
    "gather_rows",
    "lengths_of",
    "put_row",
    "put_rows",
    "rename_blocks",
    "words_of",
]

WORD, HEAD = 8, 4
"""Bytes of a word, and of a block's head: the slot number before the row."""
TAIL, USED, READY = 0, 1, 2
"""Places in ``state``: words up to the end of the last row; words that rows need; 0 before the arrays are set up, then
1 plus the number of compactions."""
STATE_WORDS = 3
KINDS = 96
"""Kinds of holes: one for each size below 32 words, then four for each power of two."""
_SINGLE, _FIRST_POWER = 32, 5
_TRIES = 8
"""Holes to check in a kind with several sizes."""
_LOW, _HOLE, _WIDER = 0xFFFFFFFF, 0xFFFFFFFF, 1 << 30
"""Mask of the half word with the slot number; its value for a hole; bit set if a block is one word longer than its
row."""
SPARE = 64
"""One word in this many is not used for rows."""


class RowTable(NamedTuple):
    """The arrays of a row store; ``words`` is a view of ``data``.

    For fixed-width rows only ``data`` is not empty.
    """

    data: Bytes
    words: Ints
    first: Slots
    holes: Slots
    state: Ints


@inner_kernel
def words_of(length: Int) -> Int:
    """Return how many words a row of ``length`` bytes needs."""
    return max(2, (length + (HEAD + WORD - 1)) // WORD)


@inner_kernel
def free_words(t: RowTable) -> Int:
    """Return how many words are available for more rows."""
    return t.words.size - t.words.size // SPARE - np.int64(t.state[USED])


@inner_kernel
def _size_of(word: Int) -> Int:
    """Return the size in words of the block or hole that begins with this word."""
    if word & _LOW == _HOLE:
        return word >> 32
    return words_of(word >> 32) + (1 if word & _WIDER else 0)


@inner_kernel
def _kind_of(size: Int, kinds: int) -> Int:
    """Return the kind of a hole of ``size`` words; a larger hole has the same or a higher kind."""
    if kinds == 1:
        return 0
    if size < _SINGLE:
        return size
    power: Int = _FIRST_POWER
    while size >> (power + 1) > 0:
        power += 1
    return min(kinds - 1, _SINGLE + 4 * (power - _FIRST_POWER) + ((size >> (power - 2)) & 3))


@inner_kernel
def _leave(t: RowTable, at: Int, size: Int) -> None:
    """Make a hole."""
    kind = _kind_of(size, t.holes.size)
    t.words[at] = (np.int64(size) << 32) | _HOLE
    t.words[at + 1] = t.holes[kind]
    t.holes[kind] = at


@inner_kernel
def _hole_of_kind(t: RowTable, kind: Int, need: Int) -> Int:
    """Unlink a hole of this kind that is large enough and return it; return -1 if none is found."""
    before: Int = -1
    at = np.int64(t.holes[kind])
    tries = _TRIES if t.holes.size > 1 else t.words.size
    while at >= 0 and tries > 0:
        after = np.int64(t.words[at + 1])
        if t.words[at] >> 32 >= need:
            if before < 0:
                t.holes[kind] = after
            else:
                t.words[before + 1] = after
            return at
        before, at = at, after
        tries -= 1
    return -1


@inner_kernel
def _move_together(t: RowTable) -> None:
    """Compact: move all rows to the front, in their order, so that all free words are behind them."""
    words, at, to, tail = t.words, 0, 0, np.int64(t.state[TAIL])
    while at < tail:
        word = np.int64(words[at])
        size = _size_of(word)
        if word & _LOW != _HOLE:
            needed = words_of(word >> 32)
            word &= ~_WIDER
            words[to] = word
            for k in range(1, needed):
                words[to + k] = words[at + k]
            t.first[word & _LOW] = to
            to += needed
        at += size
    for kind in range(t.holes.size):
        t.holes[kind] = -1
    t.state[TAIL] = to
    t.state[READY] += 1


@inner_kernel
def _take(t: RowTable, need: Int) -> tuple[Int, Int]:
    """Allocate ``need`` words; return their position and number, which is one more if one word would be left over."""
    kind = _kind_of(need, t.holes.size)
    at: Int = _hole_of_kind(t, kind, need)
    if at < 0:
        tail = np.int64(t.state[TAIL])
        if tail + need <= t.words.size:
            t.state[TAIL] = tail + need
            return tail, need
        kind += 1
        while kind < t.holes.size and t.holes[kind] < 0:
            kind += 1
        if kind >= t.holes.size:
            _move_together(t)
            tail = np.int64(t.state[TAIL])
            t.state[TAIL] = tail + need
            return tail, need
        at = np.int64(t.holes[kind])
        t.holes[kind] = t.words[at + 1]
    size = np.int64(t.words[at] >> 32)
    if size - need > 1:
        _leave(t, at + need, size - need)
        size = np.int64(need)
    return at, size


@kernel
def close_holes(t: RowTable) -> None:
    """Compact: move all rows to the front."""
    _move_together(t)


@inner_kernel
def put_row(t: RowTable, width: int, slot: Int, data: Bytes, start: Int, length: Int) -> None:
    """Copy a row into a free slot; for variable-length rows the caller has checked that enough words are free."""
    if t.words.size == 0:
        copy_bytes(t.data, slot * width, data, start, width)
        return
    need = words_of(length)
    at, size = _take(t, need)
    copy_bytes(t.data, at * WORD + HEAD, data, start, length)
    # a row begins with its length
    t.words[at] = (np.int64(length) << 32) | slot | (_WIDER if size > need else 0)
    t.first[slot] = at
    t.state[USED] += need


@kernel
def put_rows(t: RowTable, width: int, slots: Slots, data: Bytes, starts: Ints, lengths: Ints) -> None:
    """Copy rows into free slots; the caller has checked that enough words are free for all."""
    for i in range(slots.size):
        put_row(t, width, np.int64(slots[i]), data, starts[i], lengths[i])


@kernel
def free_blocks(t: RowTable, slots: Slots) -> None:
    """Free the blocks of slots; slots without a row are skipped."""
    for i in range(slots.size):
        at = np.int64(t.first[slots[i]])
        if at < 0:
            continue
        t.first[slots[i]] = -1
        word = np.int64(t.words[at])
        size = _size_of(word)
        t.state[USED] -= words_of(word >> 32)
        if at + size == t.state[TAIL]:
            t.state[TAIL] = at
        else:
            _leave(t, at, size)


@kernel
def rename_blocks(t: RowTable, sources: Slots, targets: Slots) -> None:
    """Assign the rows of ``sources`` to the slots ``targets``, which have none."""
    for i in range(sources.size):
        at = np.int64(t.first[sources[i]])
        t.first[sources[i]], t.first[targets[i]] = -1, at
        t.words[at] = (t.words[at] & ~(_LOW ^ _WIDER)) | targets[i]


@kernel
def lengths_of(t: RowTable, slots: Slots, more: int) -> Ints:
    """Return the bytes of the row in each slot, plus ``more``; slot -1 has no row."""
    lengths = np.empty(slots.size, np.int64)
    for i in range(slots.size):
        at = np.int64(t.first[slots[i]]) if slots[i] >= 0 else np.int64(-1)
        lengths[i] = more + (t.words[at] >> 32 if at >= 0 else 0)
    return lengths


@kernel
def gather_rows(t: RowTable, slots: Slots) -> tuple[Bytes, Ints]:
    """Return copies of the rows in slots, concatenated, and the start of each."""
    starts = np.empty(slots.size, np.int64)
    total = 0
    for i in range(slots.size):
        starts[i] = total
        total += t.words[t.first[slots[i]]] >> 32
    data = np.empty(total, np.uint8)
    for i in range(slots.size):
        at = np.int64(t.first[slots[i]])
        copy_bytes(data, starts[i], t.data, at * WORD + HEAD, t.words[at] >> 32)
    return data, starts


@kernel
def _list_blocks(t: RowTable) -> tuple[Ints, Ints, Ints]:
    """Return begin, size in words and slot of each block and hole; the slot of a hole is -1."""
    tail = np.int64(t.state[TAIL])
    begins, sizes, slots = np.empty(tail, np.int64), np.empty(tail, np.int64), np.empty(tail, np.int64)
    count, at = 0, np.int64(0)
    while at < tail:
        word = np.int64(t.words[at])
        begins[count], sizes[count] = at, _size_of(word)
        slots[count] = -1 if word & _LOW == _HOLE else word & (_LOW ^ _WIDER)
        at += max(2, sizes[count])
        count += 1
    return begins[:count], sizes[:count], slots[:count]


def check_blocks(t: RowTable, used: Slots) -> None:
    """Assert that exactly the slots ``used`` hold rows, and that blocks and holes fill all words up to the tail."""
    assert np.array_equal(np.flatnonzero(t.first >= 0), np.sort(used)), "slots in use differ"
    begins, sizes, slots = _list_blocks(t)
    assert np.all(sizes > 1), "a block has less than two words"
    end = int(begins[-1] + sizes[-1]) if sizes.size else 0
    assert end == t.state[TAIL] <= t.words.size, f"the last block ends at {end}, the tail is {t.state[TAIL]}"
    rows = slots >= 0
    held = slots[rows]
    assert np.array_equal(np.sort(held), np.sort(used)), "blocks are of other slots than those in use"
    assert np.array_equal(t.first[held], begins[rows]), "a slot is not where its block is"
    needed = sum(map(words_of, lengths_of(t, used, 0).tolist()))
    assert needed == t.state[USED], f"{needed} words in blocks, {t.state[USED]} counted"
    holes, listed = dict(zip(begins[~rows].tolist(), sizes[~rows].tolist(), strict=True)), 0
    for kind in range(t.holes.size):
        at = int(t.holes[kind])
        while at >= 0:
            assert at in holes, f"no hole at {at}, or listed twice"
            assert _kind_of(holes.pop(at), t.holes.size) == kind, f"the hole at {at} is of another kind"
            at, listed = int(t.words[at + 1]), listed + 1
    assert not holes, f"{listed + len(holes)} holes, {listed} listed"
