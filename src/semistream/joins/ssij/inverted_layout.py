"""Constants shared by the inverted index of SSIJ, its kernels and their callers; `inverted_index` shows the layout.

A pass has a *cursor*, an array with its position, so that it can stop anywhere and continue.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from semistream.core.arrays import Bytes, Ints

__all__ = ["DONE", "ENTRY_BYTES", "FULL", "LINK_BYTES", "NODE_BYTES", "NO_ROOM", "PAIR_BYTES", "Pairs"]


DONE, FULL, NO_ROOM = 0, 1, 2
"""Why a pass ended: nothing left, room for pairs used up, no frame for another waiting tuple."""

ENTRY_BYTES, NODE_BYTES, LINK_BYTES, PAIR_BYTES = 16, 8, 4, 33
NONE = np.uint32(0xFFFFFFFF)

# Places in a cursor of `serve_cached`: tuple, span, page within it, row within the page or -1; the tuple's record in
# the stream buffer, -1 if it has none, -2 if it follows another; whether it has matched, whether a cached page was
# used; the record that tuples of the same key may follow, -1 if none, -2 if pages were evicted during this tuple.
TUPLE, SPAN, PAGE, ROW, RECORD, HAS_MATCHED, HAS_HIT, LEADER = 0, 1, 2, 3, 4, 5, 6, 7
# Places in a cursor of `serve_waiting`: page, node or -1, row or -1, whether the tuple has matched; pairs and bytes of
# rows collected so far, and where the last collected row was read; the next follower, or -1.
W_PAGE, W_NODE, W_ROW, W_MATCHED, W_PAIRS, W_BYTES, W_LAST, W_MEMBER = 0, 1, 2, 3, 4, 5, 6, 7

FOLLOWS, PAGES_WENT = -2, -2
SEARCHED = 8
"""Maximum tuples of a page's list that are checked for the same key."""


class Pairs(NamedTuple):
    """Buffers for pairs: first byte of the stream tuple's row; start, key and flags of R's row in the pages.

    ``kept`` is the position of the copy of R's row, if it must outlive its page.
    """

    tuple_at: Ints
    start: Ints
    key: Ints
    kept: Ints
    flag: Bytes

    @classmethod
    def empty(cls, cap: int) -> Pairs:
        """Return buffers for ``cap`` pairs."""
        numbers = np.empty((4, cap), np.int64)
        return cls(numbers[0], numbers[1], numbers[2], numbers[3], np.empty(cap, np.uint8))
