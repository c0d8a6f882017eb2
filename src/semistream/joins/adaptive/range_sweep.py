"""ADAPTIVEJOIN on ranges: sweep along R with all intervals of a window, and read each needed page once.

Rows of a range are not cached, because the ranges of a stream share pages rather than rows. So the memory is used for
the window, the frames and the state of the intervals during a sweep. Results are in R's order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import Int, frozen, kernel
from semistream.relation.pages.page_index import ClusteredIndex
from semistream.relation.pages.page_layout import page_keys
from semistream.relation.relation import Relation

__all__ = ["bytes_per_interval", "sweep"]

Pairs = tuple[Ints, Ints, Ints, Bytes]
"""For each pair: the position of the interval, and key, start and flags of the row."""


def bytes_per_interval(relation: Relation) -> int:
    """Return the bytes per interval during a sweep: its ends, order, places in a chunk, and pages of each shard."""
    return 11 * 8 + 40 * len(relation.indexes)


@kernel
def _next_places(first: Ints, end: Ints, segment: int, place: int, listed: Ints) -> tuple[Int, Int, Int]:
    """List places of the segments ``[first, end)`` from ``segment`` and ``place`` on; return how many, and the next."""
    count: Int = 0
    at: Int = segment
    here: Int = place
    while at < first.size and count < listed.size:
        here = max(here, first[at])
        while here < end[at] and count < listed.size:
            listed[count] = here
            here += 1
            count += 1
        if here >= end[at]:
            at += 1
    return count, at, here


def _segments(first: Ints, length: Ints) -> tuple[Ints, Ints]:
    """Merge runs of pages with ascending starts into disjoint segments."""
    some = length > 0
    first, ends = first[some], np.maximum.accumulate(first[some] + length[some])
    if first.size == 0:
        return first, ends
    begins = np.flatnonzero(np.append(True, first[1:] > ends[:-1]))
    return first[begins], np.append(ends[begins[1:] - 1], ends[-1])


def sweep(relation: Relation, low: Ints, high: Ints, frames: Bytes, cap: int) -> Iterator[Pairs]:
    """Yield all pairs of intervals ``[low, high]`` and rows of R within them, at most ``cap`` at a time.

    Reads each page that any interval needs once, at most ``len(frames)`` together. The pages of the yielded pairs are
    in ``frames`` until the next pairs are requested.
    """
    order = np.flatnonzero(low <= high)
    order = order[np.argsort(low[order], kind="stable")]
    low, high = low[order], high[order]
    listed, base = np.empty(len(frames), np.int64), 0
    for index in relation.indexes:
        assert isinstance(index, ClusteredIndex)
        # Within a shard, intervals with ascending ends have ascending runs of pages, and keys of pages ascend.
        first, end = _segments(*index.between(low, high))
        first, end, base = first + base, end + base, base + index.first.size
        begun, at, place = 0, 0, -1
        active = np.empty(0, np.int64)
        while at < first.size:
            count, at, place = (int(one) for one in _next_places(frozen(first), frozen(end), at, place, listed))
            pages = relation.page_order[listed[:count]] if relation.page_order.size else listed[:count]
            relation.read(pages, frames[:count])
            keys, flags, starts = page_keys(frames[:count], relation.layout.stride)
            if keys.size == 0:
                continue
            upto = int(np.searchsorted(low, keys[-1], side="right"))
            active = np.append(active, np.arange(begun, upto))
            begun = max(begun, upto)
            active = active[high[active] >= keys[0]]
            left = np.searchsorted(keys, low[active], side="left")
            ends = np.cumsum(np.searchsorted(keys, high[active], side="right") - left)
            before = np.append(0, ends)
            for begin in range(0, int(before[-1]), cap):
                pair = np.arange(begin, min(begin + cap, int(before[-1])))
                owner = np.searchsorted(ends, pair, side="right")
                row = left[owner] + pair - before[owner]
                yield order[active[owner]], keys[row], starts[row], flags[row]
