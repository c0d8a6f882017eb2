"""How rows get from pages to the arena: find the wanted keys in pages that were read, and copy their rows.

Keys and pages are ascending, so one pass over both is enough: within a page the search for a key begins where the last
search ended.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.core.compiled import Int, frozen, inner_kernel, kernel
from semistream.relation.pages.page_layout import HEADER, PageLayout
from semistream.relation.rows.row_kernels import row_length
from semistream.structures.hot.hot_row_kernels import FREE_ROW, IN_USE, PRESENT, ROWS, HotTable
from semistream.structures.row_blocks import RowTable, free_words, put_row, words_of
from semistream.structures.row_store import RowStore

__all__ = ["WantedRows", "copy_from_page", "copy_rows"]

_WORD = 8


class WantedRows(NamedTuple):
    """Keys, and the pages that may hold their rows, ascending, each with the position of the key that needs it."""

    keys: Ints
    pages: Ints
    owners: Ints
    layout: PageLayout
    ordered: bool
    """Whether pages are ordered by key; then keys ascend too."""
    versions: tuple[Ints, Ints] | None = None
    """For a history: for each key the time at which its next page begins, or `OPEN`; and the `TimeFields` of rows."""


@inner_kernel
def _first_from(words: Ints, begin: Int, end: Int, key: Int) -> Int:
    """Return the first word from ``begin`` to ``end`` that is not below ``key``; the search is fast if it is near."""
    step = 1
    low: Int = begin
    while low + step <= end and words[low + step - 1] < key:
        low += step
        step *= 2
    high: Int = min(low + step - 1, end)
    while low < high:
        middle = (low + high) >> 1
        if words[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@inner_kernel
def _start_of(words: Ints, page: Int, rows_base: Int, row: Int) -> Int:
    """Return the start of a variable-length row; its page stores the starts, half a word per row."""
    word = np.int64(words[rows_base // _WORD + row // 2])
    return page + ((word >> (32 * (row & 1))) & 0xFFFFFFFF)


@inner_kernel
def _length_at(frames: Bytes, start: Int) -> Int:
    """Return the length of the row at ``start``; 0 if it would extend beyond the frames."""
    if start > frames.size - 4:
        return 0
    length = row_length(frames, start)
    return length if start + length <= frames.size else 0


@inner_kernel
def copy_from_page(
    t: HotTable, store: RowTable, width: int, frames: Bytes, words: Ints, base: Int, stride: int, ordered: bool,
    pages: Ints, owners: Ints, keys: Ints, numbers: Slots, begin: Int,
) -> tuple[Int, bool]:  # fmt: skip
    """Copy the wanted rows of one page, which begins at byte ``base`` of the frames.

    ``begin`` is the first wanted entry of this page. Returns where to continue, and False if there was no room there.
    """
    first, known, after, state = t.first, t.known, t.after, t.state
    capacity, page = after.size, pages[begin]
    rows = np.int64(words[base // _WORD + 1]) >> 32
    top = (base + HEADER) // _WORD
    end = top + rows
    rows_base = base + ((HEADER + 9 * rows + 7) & ~7)
    at: Int = top
    i: Int = begin
    while i < pages.size and pages[i] == page:
        key, number = keys[owners[i]], np.int64(numbers[owners[i]])
        if ordered:
            at = _first_from(words, at, end, key)
        matches = 0
        needed: Int = 0
        here = at
        while here < end and (words[here] == key or not ordered):
            if words[here] == key:
                matches += 1
                if stride == 0:
                    start = _start_of(words, base, rows_base, here - top)
                    needed += words_of(_length_at(frames, start))
            here += 1
        if matches > capacity - state[ROWS] or (stride == 0 and needed > free_words(store)):
            return i, False
        last = np.int64(first[number])
        if matches > 0 and last >= 0:  # rows of an earlier page
            while after[last] >= 0:
                last = np.int64(after[last])
        here = at
        while matches > 0:
            if words[here] == key:
                row = np.int64(state[FREE_ROW])
                state[FREE_ROW] = after[row]
                state[ROWS] += 1
                after[row] = -1
                if stride > 0:
                    put_row(store, width, row, frames, rows_base + (here - top) * stride, stride)
                else:
                    start = _start_of(words, base, rows_base, here - top)
                    put_row(store, width, row, frames, start, _length_at(frames, start))
                if last < 0:
                    first[number] = row
                else:
                    after[last] = row
                last = row
                known[number] = (known[number] & IN_USE) | PRESENT
                matches -= 1
            here += 1
        i += 1
    return i, True


@kernel
def _copy_rows(
    t: HotTable, store: RowTable, width: int, frames: Bytes, words: Ints, frame_bytes: int, stride: int, read: Ints,
    ordered: bool, pages: Ints, owners: Ints, keys: Ints, numbers: Slots, begin: int,
) -> tuple[Int, bool]:  # fmt: skip
    frame: Int = 0
    i: Int = begin
    while i < pages.size and pages[i] <= read[-1]:
        while read[frame] < pages[i]:
            frame += 1
        i, fitted = copy_from_page(
            t, store, width, frames, words, frame * frame_bytes, stride, ordered, pages, owners, keys, numbers, i
        )
        if not fitted:
            return i, False
    return i, True


def copy_rows(
    t: HotTable, rows: RowStore, numbers: Slots, wanted: WantedRows, begin: int, read: Ints, frames: Bytes
) -> tuple[int, bool]:
    """Copy rows into the slots of an arena; return where to continue, and whether there was room for all."""
    flat, layout = frames.reshape(-1), wanted.layout
    after, fitted = _copy_rows(
        t, rows.table, rows.width, flat, flat.view(np.int64), layout.frame_bytes, layout.stride, frozen(read),
        wanted.ordered, frozen(wanted.pages), frozen(wanted.owners), frozen(wanted.keys), frozen(numbers), begin,
    )  # fmt: skip
    return int(after), bool(fitted)
