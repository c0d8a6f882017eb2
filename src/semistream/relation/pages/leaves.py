"""The leaves of a scattered index: rows ``key64 → u32 page``, in key order, in separate pages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Bools, Ints
from semistream.relation.pages.page_index import ScatteredIndex
from semistream.relation.pages.page_layout import PageLayout, pack_pages, pages_needed
from semistream.relation.rows.row_codec import Rows

__all__ = ["EMPTY_KEY", "leaf_entries", "pack_leaves"]


EMPTY_KEY = int(np.iinfo(np.int64).min)
"""First key of a page without rows, in the index."""


def leaf_entries(keys: Ints, pages: Ints) -> Bools:
    """Return which rows of R, in key order, get an entry in a leaf: one entry for each page of a key."""
    entries = np.ones(keys.size, bool)
    entries[1:] = (keys[1:] != keys[:-1]) | (pages[1:] != pages[:-1])
    return entries


def pack_leaves(keys: Ints, pages: Ints, page_bytes: int) -> tuple[NDArray[np.uint8], Ints, Bools]:
    """Return the leaves for such rows, not yet sealed, and the index entries of the leaves.

    An index entry is the first key of a leaf, and whether the previous leaf also ends with that key.
    """
    layout = PageLayout(page_bytes, ScatteredIndex.STRIDE)
    starts = np.arange(keys.size, dtype=np.int64) * 4
    rows = Rows(pages.astype(np.uint32).view(np.uint8), starts, np.full(keys.size, 4, np.int64))
    breaks = pages_needed(rows.lengths, layout.frame_bytes, layout.stride) if keys.size else np.zeros(2, np.int64)
    frames = pack_pages(layout, keys, np.zeros(keys.size, np.uint8), rows, breaks)
    if keys.size == 0:
        return frames, np.array([EMPTY_KEY]), np.zeros(1, bool)
    heads = breaks[:-1]
    continues = np.zeros(heads.size, bool)
    continues[1:] = keys[heads[1:]] == keys[heads[1:] - 1]
    return frames, keys[heads], continues
