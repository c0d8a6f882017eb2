"""Repacking of pages: which pages change together, how rows are spread over them, and their ids and index entries.

A key that spans pages binds these pages into a group. Everything here works on arrays of keys, flags and ids, not on
pages. Each function takes time proportional to the pages and rows given; `splice_index` also to the pages of the shard.
"""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Bools, Bytes, Ints
from semistream.core.compiled import kernel
from semistream.relation.pages.page_index import ClusteredIndex
from semistream.relation.pages.page_layout import FIRST, HEADER, LAST, WHOLE

__all__ = [
    "assign_ids",
    "ends_of_runs",
    "groups_of_pages",
    "row_lengths",
    "set_whole",
    "splice_index",
    "spread_rows",
]


def groups_of_pages(begin: Ints, count: Ints, pages: int) -> tuple[Ints, Ints]:
    """Return the positions of the pages that changed keys touch, ascending, and the group of each."""
    if pages == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    home = np.minimum(begin, pages - 1)
    more = np.repeat(begin + 1, np.maximum(count - 1, 0))
    within = np.arange(more.size) - np.repeat(
        np.cumsum(np.maximum(count - 1, 0)) - np.maximum(count - 1, 0), np.maximum(count - 1, 0)
    )
    linked = np.unique(more + within)  # pages into which a changed key continues from the previous page
    touched = np.union1d(home, linked)
    return touched, np.cumsum(~np.isin(touched, linked, assume_unique=True)) - 1


@kernel
def _pages_for(lengths: Ints, begin: int, end: int, room: int) -> int:
    """Return how many pages rows of varying length need if ``room`` bytes of each page are used."""
    pages, used = 0, 0
    for i in range(begin, end):
        if pages == 0 or HEADER + 7 + used + lengths[i] + 13 > room:
            pages += 1
            used = 0
        used += lengths[i] + 13
    return pages


@kernel
def spread_rows(lengths: Ints, bounds: Ints, pages: Ints, frame_bytes: int, stride: int) -> tuple[Ints, Ints]:
    """Spread the rows of each group evenly over its pages, or over the fewest additional pages that they need.

    Returns the first row of each page followed by the number of rows, and the number of pages of each group.
    """
    breaks = np.empty(lengths.size + 1, np.int64)
    counts = np.zeros(pages.size, np.int64)
    total = 0
    for group in range(pages.size):
        begin, end = bounds[group], bounds[group + 1]
        if begin == end:
            continue
        if stride > 0:
            capacity = max(1, (frame_bytes - HEADER - 7) // (9 + stride))
            target = max(pages[group], -(-(end - begin) // capacity))
            each = -(-(end - begin) // target)
            for first in range(begin, end, each):
                breaks[total] = first
                total += 1
                counts[group] += 1
            continue
        target = max(pages[group], _pages_for(lengths, begin, end, frame_bytes))
        least, most = 0, frame_bytes
        while least < most:
            middle = (least + most) >> 1
            if _pages_for(lengths, begin, end, middle) <= target:
                most = middle
            else:
                least = middle + 1
        used = 0
        for i in range(begin, end):
            if i == begin or HEADER + 7 + used + lengths[i] + 13 > most:
                breaks[total] = i
                total += 1
                counts[group] += 1
                used = 0
            used += lengths[i] + 13
    breaks[total] = lengths.size
    return breaks[: total + 1], counts


def ends_of_runs(keys: Ints) -> Bytes:
    """Return the FIRST and LAST flags of rows in key order, which include all rows of their keys."""
    starts = np.ones(keys.size, bool)
    np.not_equal(keys[1:], keys[:-1], out=starts[1:])
    ends = np.append(starts[1:], True)[: keys.size]
    return (np.where(starts, FIRST, 0) | np.where(ends, LAST, 0)).astype(np.uint8)


def set_whole(keys: Ints, groups: Ints, flags: Bytes, breaks: Ints) -> None:
    """Mark the rows of keys that begin and end within one page."""
    if keys.size == 0:
        return
    starts = np.ones(keys.size, bool)
    starts[1:] = (keys[1:] != keys[:-1]) | (groups[1:] != groups[:-1])
    heads = np.flatnonzero(starts)
    tails = np.append(heads[1:], keys.size) - 1
    page = np.repeat(np.arange(breaks.size - 1), np.diff(breaks))
    whole = ((flags[heads] & FIRST) > 0) & ((flags[tails] & LAST) > 0) & (page[heads] == page[tails])
    flags |= np.where(whole[np.cumsum(starts) - 1], WHOLE, 0).astype(np.uint8)


def row_lengths(data: Bytes, starts: Ints, stride: int) -> Ints:
    """Return the bytes of rows: ``stride`` if it is not 0, otherwise the number in each row's first four bytes."""
    if stride:
        return np.full(starts.size, stride, np.int64)
    words = np.empty((starts.size, 4), np.uint8)
    for byte in range(4):
        words[:, byte] = data[starts + byte]
    return words.view(np.uint32).reshape(-1).astype(np.int64)


def assign_ids(
    old: Ints, group_of: Ints, active: Bools, new_pages: Ints, spare: Ints, page_count: int
) -> tuple[Ints, Ints]:
    """Return the id of each new page, group after group, and the ids that are left over.

    A group keeps the ids that it needs. Additional ids come first from ``spare``, pages of the same shard without
    rows, then from past the end.
    """
    rank = np.arange(group_of.size) - np.searchsorted(group_of, group_of)
    mine = active[group_of] if group_of.size else np.empty(0, bool)
    keeps = mine & (rank < new_pages[group_of] if group_of.size else mine)
    emptied = old[mine & ~keeps]
    new_group = np.repeat(np.arange(new_pages.size), new_pages)
    new_rank = np.arange(new_group.size) - np.repeat(np.cumsum(new_pages) - new_pages, new_pages)
    old_counts = np.bincount(group_of, minlength=new_pages.size)
    inherits = new_rank < old_counts[new_group]
    ids = np.empty(new_group.size, np.int64)
    ids[inherits] = old[keeps]
    wanted = int(np.count_nonzero(~inherits))
    fresh = np.arange(page_count, page_count + max(0, wanted - spare.size))
    ids[~inherits] = np.concatenate([spare, fresh])[:wanted]
    return ids, emptied


def splice_index(
    index: ClusteredIndex,
    ids: Ints,
    touched: Ints,
    group_of: Ints,
    active: Bools,
    new_pages: Ints,
    first: Ints,
    continues: Bools,
    new_ids: Ints,
    last_key: int,
    base: int,
    times: Ints | None = None,
) -> ClusteredIndex:
    """Return the index with the pages of active groups replaced by their new pages."""
    if ids.size == 0:
        return ClusteredIndex(first, continues, last_key, new_ids, times)
    counts = np.ones(ids.size, np.int64)
    head = np.searchsorted(group_of, np.arange(new_pages.size))
    counts[touched[active[group_of]]] = 0
    counts[touched[head[active]]] = new_pages[active]
    places = np.cumsum(counts) - counts
    group = np.repeat(np.arange(new_pages.size), new_pages)
    rank = np.arange(group.size) - np.repeat(np.cumsum(new_pages) - new_pages, new_pages)
    at = places[touched[head[group]]] + rank
    all_first, all_ids = np.repeat(index.first, counts), np.repeat(ids, counts)
    all_continues = np.repeat(index.continues, counts)
    all_first[at], all_continues[at], all_ids[at] = first, continues, new_ids
    plain = index.ids is None and np.array_equal(all_ids, np.arange(ids.size) + base)
    all_times = None
    if index.times is not None and times is not None:
        all_times = np.repeat(index.times, counts)
        all_times[at] = times
    return ClusteredIndex(all_first, all_continues, last_key, None if plain else all_ids, all_times)
