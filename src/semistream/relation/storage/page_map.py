"""Where the pages of a shard are, once updates have moved some of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semistream.core.arrays import Ints

__all__ = ["PageMap"]


@dataclass(frozen=True)
class PageMap:
    """Where the pages of one shard are.

    Parameters
    ----------
    page_count
        Pages by id.
    file_pages
        Pages of the shard's first file. Lower ids are in that file unless the map says otherwise.
    changed, places
        Ids of pages that are elsewhere, ascending, and their places among the pages of the shard's other files,
        numbered across all these files.
    """

    page_count: int
    file_pages: int
    changed: Ints
    places: Ints

    @classmethod
    def plain(cls, pages: int) -> PageMap:
        """Return the map of a shard without updates."""
        none = np.empty(0, np.int64)
        return cls(pages, pages, none, none)

    def check(self) -> None:
        """Assert that every id has a place."""
        assert np.all(np.diff(self.changed) > 0), "changed ids are not ascending"
        assert np.isin(np.arange(self.file_pages, self.page_count), self.changed).all(), "a page is nowhere"
        assert self.changed.size == self.places.size
