"""The compiled passes of `hot_versions.HotVersions`: numbering keys at times, copying versions, merging."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.core.compiled import Int, inner_kernel, kernel
from semistream.relation.pages.page_versions import version_in
from semistream.relation.rows.row_kernels import row_length
from semistream.structures.directory import entry_for, entry_of, erase, home, mix
from semistream.structures.hot.admission import MOST, recall
from semistream.structures.hot.hot_row_going import free_key, free_rows
from semistream.structures.hot.hot_row_kernels import (
    ABSENT,
    AHEAD,
    FREE_KEY,
    FREE_ROW,
    IN_USE,
    KEYS,
    KNOWN,
    PINNED,
    PRESENT,
    ROWS,
    SEEN,
    SOON,
    UNKNOWN,
    HotTable,
)
from semistream.structures.row_blocks import RowTable, free_words, put_row, words_of

__all__ = ["ALIAS", "Spans", "copy_from_page", "copy_versions", "drop", "look_ahead", "merge", "number"]

ALIAS = 4
"""What is known of a request, in addition to the states of a key: another place has its version, named by ``first``."""
_LOW = np.uint64(0xFFFFFFFF)


class Spans(NamedTuple):
    """The first and last time at which the answer of a place holds.

    A request that is still unknown has one time.
    """

    since: Ints
    until: Ints


@inner_kernel
def _covering(t: HotTable, spans: Spans, key: Int, time: Int, settled: bool) -> Int:
    """Return the place of a key whose answer holds at a time, or the free entry for a new one as ``-1 - entry``.

    ``settled`` skips places whose rows have not been read.
    """
    hashed = mix(key)
    size = t.entries.size
    at = home(hashed, size)
    tag = hashed & ~_LOW
    while t.entries[at] != np.uint64(0):
        entry = t.entries[at]
        if (entry & ~_LOW) == tag:
            place = np.int64(entry & _LOW) - 1
            if t.key[place] == key and spans.since[place] <= time and time <= spans.until[place]:
                known = t.known[place] & KNOWN
                if not settled or (known != UNKNOWN and known != ALIAS):
                    return place
        at += 1
        if at == size:
            at = 0
    return -1 - at


@kernel
def number(
    t: HotTable, spans: Spans, keys: Ints, times: Ints, valid: NDArray[np.bool_], sketch: Bytes, numbers: Slots
) -> tuple[Int, Int]:
    """Write the place of each key at its time, -1 for NULLs; new requests are inserted.

    All become pinned. Returns how many keys got a number before all places were used, and for how many of them the
    answer was known.
    """
    table, known, count, entries, first, state = t.key, t.known, t.often, t.entries, t.first, t.state
    size, n, hits = entries.size, keys.size, 0
    near = np.uint64(0)
    for begin in range(0, n, AHEAD):
        end = min(begin + AHEAD, n)
        for i in range(begin, end):  # these reads are independent: they prefetch what the next loop needs
            near += entries[home(mix(keys[i]), size)]
        for i in range(begin, end):
            if not valid[i]:
                numbers[i] = -1
                continue
            place = _covering(t, spans, keys[i], times[i], False)
            if place >= 0:
                what = known[place]
                if (what & KNOWN) != UNKNOWN:
                    hits += 1
                if (what & PINNED) == 0:
                    known[place] = (what | IN_USE) & ~SOON
                    if count[place] < MOST:
                        count[place] += 1
                numbers[i] = place
                continue
            entry = -1 - place
            place = state[FREE_KEY]
            if place < 0:
                if near == np.uint64(1):  # the value does not matter: this keeps the compiler from removing the reads
                    state[SEEN] += 0
                return i, hits
            state[FREE_KEY] = first[place]
            state[KEYS] += 1
            table[place] = keys[i]
            spans.since[place] = times[i]
            spans.until[place] = times[i]
            first[place] = -1
            known[place] = UNKNOWN | IN_USE
            count[place] = 1 + recall(sketch, keys[i])
            entries[entry] = entry_for(keys[i], place)
            numbers[i] = place
    if near == np.uint64(1):
        state[SEEN] += 0
    return n, hits


@kernel
def look_ahead(t: HotTable, spans: Spans, keys: Ints, times: Ints, valid: NDArray[np.bool_], seen: Slots) -> Int:
    """Do the same as `hot_row_kernels.look_ahead` for keys at times."""
    known, bits = t.known, 32 * seen.size
    seen[:] = 0
    absent = 0
    near = np.uint64(0)
    for i in range(keys.size):
        if i % AHEAD == 0:
            for j in range(i, min(i + AHEAD, keys.size)):  # independent reads: prefetch
                near += t.entries[home(mix(keys[j]), t.entries.size)]
        if not valid[i]:
            continue
        place = _covering(t, spans, keys[i], times[i], False)
        if place >= 0:
            if (known[place] & PINNED) == 0:
                known[place] |= SOON
            continue
        bit = home(mix(keys[i] ^ np.int64(mix(times[i]))), bits)
        if (seen[bit >> 5] >> (bit & 31)) & 1 == 0:
            seen[bit >> 5] |= np.int32(1) << np.int32(bit & 31)
            absent += 1
    if near == np.uint64(1):  # the value does not matter: this keeps the compiler from removing the reads
        t.state[SEEN] += 0
    return absent


@inner_kernel
def copy_from_page(
    t: HotTable, spans: Spans, store: RowTable, width: int, flat: Bytes, words: Ints, base: Int, stride: int,
    fields: Ints, pages: Ints, owners: Ints, keys: Ints, following: Ints, numbers: Slots, begin: Int,
) -> tuple[Int, bool]:  # fmt: skip
    """Copy the requested versions of one page, which begins at byte ``base``.

    ``begin`` is the first request of this page. Returns where to continue, and False if there was no room there.
    """
    first, known, after, state = t.first, t.known, t.after, t.state
    capacity, page = after.size, pages[begin]
    i: Int = begin
    while i < pages.size and pages[i] == page:
        key, place = keys[owners[i]], np.int64(numbers[owners[i]])
        time = spans.since[place]
        other = _covering(t, spans, key, time, True)
        if other >= 0:
            known[place] = (known[place] & IN_USE) | ALIAS
            first[place] = other
            known[other] |= known[place] & IN_USE
            i += 1
            continue
        start, since, until = version_in(flat, words, base, stride, fields, key, time, following[owners[i]])
        if start >= 0:
            length = stride
            if stride == 0:
                length = row_length(flat, start)
            if state[ROWS] >= capacity or (stride == 0 and words_of(length) > free_words(store)):
                return i, False
            row = np.int64(state[FREE_ROW])
            state[FREE_ROW] = after[row]
            state[ROWS] += 1
            after[row] = -1
            put_row(store, width, row, flat, start, length)
            first[place] = row
        known[place] = (known[place] & IN_USE) | (PRESENT if start >= 0 else ABSENT)
        spans.since[place] = since
        spans.until[place] = until
        i += 1
    return i, True


@kernel
def copy_versions(
    t: HotTable, spans: Spans, store: RowTable, width: int, flat: Bytes, words: Ints, frame_bytes: int, stride: int,
    fields: Ints, read: Ints, pages: Ints, owners: Ints, keys: Ints, following: Ints, numbers: Slots, begin: int,
) -> tuple[Int, bool]:  # fmt: skip
    """Copy the requested versions from the pages ``read``, ascending, in frames; see `row_search.copy_rows`."""
    frame: Int = 0
    i: Int = begin
    while i < pages.size and pages[i] <= read[-1]:
        while read[frame] < pages[i]:
            frame += 1
        i, fitted = copy_from_page(
            t, spans, store, width, flat, words, frame * frame_bytes, stride, fields,
            pages, owners, keys, following, numbers, i,
        )  # fmt: skip
        if not fitted:
            return i, False
    return i, True


@kernel
def merge(t: HotTable, numbers: Slots) -> None:
    """Replace requests whose version another place has by that place, in ``numbers``, and free their places."""
    for i in range(numbers.size):
        if numbers[i] >= 0 and (t.known[numbers[i]] & KNOWN) == ALIAS:
            numbers[i] = t.first[numbers[i]]
    for place in range(t.key.size):
        if (t.known[place] & KNOWN) == ALIAS:
            erase(t.entries, entry_of(t.entries, t.key[place], place))
            free_key(t.first, t.known, t.often, t.state, place)


@kernel
def drop(t: HotTable, places: Ints) -> Slots:
    """Remove places, pinned or not; return the rows that were freed."""
    freed = np.empty(t.state[ROWS], np.int32)
    at: Int = 0
    for i in range(places.size):
        place = places[i]
        at = free_rows(t.after, t.first, t.state, place, freed, at)
        erase(t.entries, entry_of(t.entries, t.key[place], place))
        free_key(t.first, t.known, t.often, t.state, place)
    return freed[:at].copy()
