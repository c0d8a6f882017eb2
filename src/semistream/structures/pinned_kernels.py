"""Compiled kernels of `pinned_pages.PinnedPages`: look up keys, replace a pinned page."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import Int, copy_bytes, kernel
from semistream.relation.pages.page_layout import FIRST, HEADER, WHOLE, row_start
from semistream.structures.directory import erase, find, position_at, put, warm

ENTERED = FIRST | WHOLE
"""Flags of rows in the directory: the first row of a key all of whose rows are in the page."""

_BLOCK = 256


class Pinned(NamedTuple):
    """The arrays of the pinned pages."""

    frames: Bytes  # flat
    words: Ints  # the same bytes, as words: a key in a page is one of them
    page: Ints  # the page in each frame, or -1
    rows: NDArray[np.uint64]  # directory of keys in ``words``
    pages: NDArray[np.uint64]  # directory of ``page``
    uses: NDArray[np.uint32]  # tuples served by each page of R; pages share counters if there are too few


@kernel
def enter(t: Pinned, frame_bytes: int, frame: Int) -> Int:
    """Insert the keys of a frame's page into the directory; return how many."""
    base = frame * frame_bytes
    n = np.int64(t.words[base // 8 + 1] >> 32)
    first = (base + HEADER) // 8
    entered = 0
    for row in range(n):
        if (t.frames[base + HEADER + 8 * n + row] & ENTERED) == ENTERED:
            put(t.rows, t.words, first + row)
            entered += 1
    put(t.pages, t.page, frame)
    return entered


@kernel
def _keys_of(page: Bytes) -> Int:
    """Return how many keys of a page would be inserted."""
    n = np.int64(page[12:16].view(np.uint32)[0])
    count = 0
    for row in range(n):
        if (page[HEADER + 8 * n + row] & ENTERED) == ENTERED:
            count += 1
    return count


@kernel
def withdraw(t: Pinned, frame_bytes: int, frame: Int) -> Int:
    """Remove the keys of a frame's page from the directory; return how many."""
    base = frame * frame_bytes
    n = np.int64(t.words[base // 8 + 1] >> 32)
    first = (base + HEADER) // 8
    withdrawn = 0
    for row in range(n):
        if (t.frames[base + HEADER + 8 * n + row] & ENTERED) == ENTERED:
            erase(t.rows, find(t.rows, t.words, t.words[first + row]))
            withdrawn += 1
    erase(t.pages, find(t.pages, t.page, t.page[frame]))
    t.page[frame] = -1
    return withdrawn


@kernel
def frames_of(t: Pinned, pages: Ints) -> Ints:
    """Return the frame of each page, or -1."""
    frames = np.empty(pages.size, np.int64)
    for i in range(pages.size):
        at = find(t.pages, t.page, pages[i])
        frames[i] = position_at(t.pages, at) if at >= 0 else -1
    return frames


@kernel
def look_up(
    t: Pinned, frame_bytes: int, stride: int, unique: bool, keys: Ints, begin: int, cap: int, held: NDArray[np.bool_]
) -> tuple[Ints, Ints, Bytes, int]:
    """Match ``keys[begin:]`` until ``cap`` pairs are found, without splitting a key; mark the keys in ``held``."""
    positions = np.empty(min(cap, keys.size - begin) + 64, np.int64)
    starts = np.empty(positions.size, np.int64)
    flags = np.empty(positions.size, np.uint8)
    near = np.empty(_BLOCK, np.uint64)
    pairs = 0
    i = begin
    while i < keys.size and pairs < cap:
        if (i - begin) % _BLOCK == 0:
            warm(t.rows, keys[i : i + _BLOCK], near)
        if near[(i - begin) % _BLOCK] != np.uint64(0):
            at = find(t.rows, t.words, keys[i])
            if at >= 0:
                held[i] = True
                word = position_at(t.rows, at)
                frame = word * 8 // frame_bytes
                base = frame * frame_bytes
                if t.uses.size > 0:
                    t.uses[t.page[frame] % t.uses.size] += np.uint32(1)
                n = np.int64(t.words[base // 8 + 1] >> 32)
                first = (base + HEADER) // 8
                for row in range(word - first, n):
                    if t.words[first + row] == keys[i]:
                        if pairs == positions.size:
                            positions = np.append(positions, np.empty(pairs, np.int64))
                            starts = np.append(starts, np.empty(pairs, np.int64))
                            flags = np.append(flags, np.empty(pairs, np.uint8))
                        positions[pairs] = i
                        starts[pairs] = row_start(t.frames, base, n, row, stride)
                        flags[pairs] = t.frames[base + HEADER + 8 * n + row]
                        pairs += 1
                        if unique:
                            break
        i += 1
    return positions[:pairs], starts[:pairs], flags[:pairs], i


@kernel
def uses_of(t: Pinned, frame: Int) -> Int:
    """Return how many tuples the page in a frame has served, -1 for an empty frame."""
    return np.int64(t.uses[t.page[frame] % t.uses.size]) if t.page[frame] >= 0 else np.int64(-1)


@kernel
def consider(
    t: Pinned,
    frame_bytes: int,
    pages: Ints,
    read: Bytes,
    met: Ints,
    victims: Ints,
    had: Ints,
    at: int,
    room: int,
) -> tuple[int, int, int]:
    """Count uses of the pages just read, and pin pages that are used more than the next victims.

    ``victims[at:]`` are frames, least used first, and ``had`` the uses of each when they were sorted; ``room`` is the
    number of keys that still fit into the directory. Returns ``at``, ``room`` and the number of pages pinned.
    """
    pinned = 0
    for i in range(pages.size):
        counter = pages[i] % t.uses.size
        t.uses[counter] += np.uint32(met[i])
        if met[i] == 0 or find(t.pages, t.page, pages[i]) >= 0:
            continue
        # a page that was used since then is no longer at this position
        while at < victims.size and uses_of(t, victims[at]) > had[at]:
            at += 1
        if at == victims.size:
            continue
        uses, least = np.int64(t.uses[counter]), had[at]
        # require a margin: otherwise two pages of equal use would replace each other in turns
        if least >= 0 and uses <= least + least // 4 + 1:
            continue
        frame = victims[at]
        if least >= 0:
            room += withdraw(t, frame_bytes, frame)
        at += 1
        if _keys_of(read[i]) > room:
            continue
        copy_bytes(t.frames, frame * frame_bytes, read[i], 0, frame_bytes)
        t.page[frame] = pages[i]
        room -= enter(t, frame_bytes, frame)
        pinned += 1
    return at, room, pinned


@kernel
def uses_of_all(t: Pinned) -> Ints:
    """Return the uses of every frame."""
    uses = np.empty(t.page.size, np.int64)
    for frame in range(uses.size):
        uses[frame] = uses_of(t, frame)
    return uses
