"""Rows that vary in length in one array of words, each in one piece, put and freed in any order.

::

    ┌────────────┬────────┬──────────────┬──────────────────┐
    │ 7 · row    │ hole   │ 2 · row      │ not used yet     │     a block: the number of its slot, then the row
    └────────────┴────────┴──────────────┴──────────────────┘     a hole: its size, then the next hole of its kind
                                          tail

A row that goes leaves a hole, and a row that comes takes a hole of its own size if there is one: as many of each length
go as come, so most fit. Else it takes the tail, or a part of a larger hole. When free words are enough but none of
that is, all rows are moved together, and the holes are gone. So what fits is a question of how many words are free, and
of no more; a 64th of them are kept free, so that rows are not moved together for each that comes.
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
"""Bytes of a word, and of what is in a block before the row."""
TAIL, USED, READY = 0, 1, 2
"""Of the state: words up to the last row, words that rows need, and once it is set up 1, and 1 more for each time that
rows were moved together."""
STATE_WORDS = 3
KINDS = 96
"""Kinds of holes: of less than 32 words each size is one, of more a quarter of a power of two."""
_SINGLE, _FIRST_POWER = 32, 5
_TRIES = 8
"""Holes that are looked at of a kind with several sizes."""
_LOW, _HOLE, _WIDER = 0xFFFFFFFF, 0xFFFFFFFF, 1 << 30
"""The half of a word that says whose it is; that of a hole; the bit of a block that is a word longer than its row."""
SPARE = 64
"""Of so many words one is not for rows."""


class RowTable(NamedTuple):
    """The arrays of a store. Fixed rows lie in ``data``, and others are empty; else ``words`` are the same bytes."""

    data: Bytes
    words: Ints
    first: Slots
    holes: Slots
    state: Ints


@inner_kernel
def words_of(length: Int) -> Int:
    """Return how many words a row of so many bytes takes."""
    return max(2, (length + (HEAD + WORD - 1)) // WORD)


@inner_kernel
def free_words(t: RowTable) -> Int:
    """Return how many words there are for more rows."""
    return t.words.size - t.words.size // SPARE - np.int64(t.state[USED])


@inner_kernel
def _size_of(word: Int) -> Int:
    """Return the words of the block, or of the hole, that begins with this word."""
    if word & _LOW == _HOLE:
        return word >> 32
    return words_of(word >> 32) + (1 if word & _WIDER else 0)


@inner_kernel
def _kind_of(size: Int, kinds: int) -> Int:
    """Return the kind of a hole; larger ones are of the same kind or of a later one."""
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
    """Take a hole that is large enough out of those of a kind; return -1 if none is found."""
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
    """Move all rows to the front, in their order, so that all that is free is behind them."""
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
    """Return where so many words are to be had, and how many they are: one more, if that would be left over."""
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
    """Move all rows to the front."""
    _move_together(t)


@inner_kernel
def put_row(t: RowTable, width: int, slot: Int, data: Bytes, start: Int, length: Int) -> None:
    """Copy a row into a free slot; if rows vary, there are enough words."""
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
    """Copy rows into free slots, for all of which there are enough words."""
    for i in range(slots.size):
        put_row(t, width, np.int64(slots[i]), data, starts[i], lengths[i])


@kernel
def free_blocks(t: RowTable, slots: Slots) -> None:
    """Give back what the rows of slots have; slots without a row are passed over."""
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
    """Give the rows of slots to other slots, which have none."""
    for i in range(sources.size):
        at = np.int64(t.first[sources[i]])
        t.first[sources[i]], t.first[targets[i]] = -1, at
        t.words[at] = (t.words[at] & ~(_LOW ^ _WIDER)) | targets[i]


@kernel
def lengths_of(t: RowTable, slots: Slots, more: int) -> Ints:
    """Return the bytes of the rows in slots, and so many more each."""
    lengths = np.empty(slots.size, np.int64)
    for i in range(slots.size):
        lengths[i] = (t.words[t.first[slots[i]]] >> 32) + more
    return lengths


@kernel
def gather_rows(t: RowTable, slots: Slots) -> tuple[Bytes, Ints]:
    """Return copies of the rows in slots, one after the other, and where each starts."""
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


def check_blocks(t: RowTable, used: Slots) -> None:
    """Assert that exactly ``used`` hold rows, and that blocks and holes fill all up to the tail."""
    assert np.array_equal(np.flatnonzero(t.first >= 0), np.sort(used)), "slots in use differ"
    at, needed, found, holes = 0, 0, 0, set()
    while at < t.state[TAIL]:
        word = int(t.words[at])
        size = int(_size_of(word))
        assert size > 1, f"a block of {size} words at {at}"
        if word & _LOW == _HOLE:
            holes.add(at)
        else:
            slot = word & _LOW & ~_WIDER
            assert np.array_equal(t.first[slot : slot + 1], [at]), f"slot {slot} is not at {at}, where its block is"
            needed, found = needed + int(words_of(word >> 32)), found + 1
        at += size
    assert at == t.state[TAIL], f"the last block ends at {at}, not at the tail, {t.state[TAIL]}"
    assert found == used.size, f"{found} rows in blocks, of {used.size}"
    assert needed == t.state[USED], f"{needed} words in blocks, {t.state[USED]} counted"
    listed: set[int] = set()
    for kind in range(t.holes.size):
        at = int(t.holes[kind])
        while at >= 0:
            assert at in holes - listed, f"no hole at {at}, or listed twice"
            assert _kind_of(int(t.words[at]) >> 32, t.holes.size) == kind, f"the hole at {at} is of another kind"
            listed.add(at)
            at = int(t.words[at + 1])
    assert listed == holes, f"{len(holes)} holes, {len(listed)} listed"
