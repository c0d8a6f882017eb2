"""ADAPTIVEJOIN on ranges: the intervals of a window swept along R, each page that any of them wants read once.

Rows of a range are not kept: the ranges of a stream share pages rather than rows. So the memory goes to the window, the
frames and what is known of the intervals while they are swept. Results leave in the order of R.
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
"""Positions of intervals, and key, start and flags of a row for each."""


def bytes_per_interval(relation: Relation) -> int:
    """Return what an interval costs while it is swept: its ends, order, places in a chunk, and pages of each shard."""
    return 11 * 8 + 40 * len(relation.indexes)


@kernel
def _next_places(first: Ints, end: Ints, segment: int, place: int, listed: Ints) -> tuple[Int, Int, Int]:
    """List places of segments ``[first, end)``, from one on; return how many, and where to go on."""
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
    """Return runs of pages, whose starts ascend, as segments that do not touch each other."""
    some = length > 0
    first, ends = first[some], np.maximum.accumulate(first[some] + length[some])
    if first.size == 0:
        return first, ends
    begins = np.flatnonzero(np.append(True, first[1:] > ends[:-1]))
    return first[begins], np.append(ends[begins[1:] - 1], ends[-1])


def sweep(relation: Relation, low: Ints, high: Ints, frames: Bytes, cap: int) -> Iterator[Pairs]:
    """Yield all pairs of intervals ``[low, high]`` and rows of R that lie in them, ``cap`` at a time.

    Reads each page that any interval wants once, as many at a time as there are frames; what was yielded holds until
    the next is asked for.
    """
    order = np.flatnonzero(low <= high)
    order = order[np.argsort(low[order], kind="stable")]
    low, high = low[order], high[order]
    listed, base = np.empty(len(frames), np.int64), 0
    for index in relation.indexes:
        assert isinstance(index, ClusteredIndex)
        # within a shard the runs of ascending intervals ascend, and so do the keys of its pages
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
