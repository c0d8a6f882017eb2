"""Checks that each shard has all of its own keys, in order. No checksum of a page or file can show this.

Updates of several shards by earlier releases could leave intact pages with rows of another shard, pages that are not
in the index, and keys out of order. Pages are checked in any order, each once; the results are then combined.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from semistream.core.arrays import Bytes, Ints
from semistream.relation.open_relation import OpenRelation
from semistream.relation.pages.page_index import ClusteredIndex
from semistream.relation.pages.page_layout import page_keys, page_rows

__all__ = ["KeyOrder"]


class KeyOrder:
    """Collects the keys of the pages of an open relation.

    Parameters
    ----------
    relation
        A relation as opened, without updates in memory.
    """

    def __init__(self, relation: OpenRelation) -> None:
        self._relation = relation
        self._clustered = all(isinstance(index, ClusteredIndex) for index in relation.indexes)
        self._rows = np.zeros(relation.page_count, np.int64)
        self._first, self._last = np.zeros_like(self._rows), np.zeros_like(self._rows)
        self._foreign, self._disorder = np.zeros(self._rows.size, bool), np.zeros(self._rows.size, bool)

    def see(self, pages: Ints, frames: Bytes) -> None:
        """Record pages that were read."""
        relation, rows = self._relation, page_rows(frames)
        keys, _, _ = page_keys(frames, relation.layout.stride)
        self._rows[pages] = rows
        if keys.size == 0:
            return
        place = np.repeat(np.arange(pages.size), rows)
        ends = np.cumsum(rows)
        filled = np.flatnonzero(rows)
        self._first[pages[filled]] = keys[(ends - rows)[filled]]
        self._last[pages[filled]] = keys[ends[filled] - 1]
        shard = np.searchsorted(relation.shard_bases, pages, side="right") - 1
        self._foreign[pages[np.unique(place[relation.home(keys) != shard[place]])]] = True
        if self._clustered:
            falls = np.flatnonzero((keys[1:] < keys[:-1]) & (place[1:] == place[:-1]))
            self._disorder[pages[np.unique(place[falls])]] = True

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the shards, after all of their pages were recorded."""
        relation = self._relation
        stored = [] if relation.manifest is None else [shard.rows for shard in relation.manifest.shards]
        for at, number in enumerate(relation.open_shards):
            expected = stored[number] if stored else None
            for what in self._of_shard(at, expected):
                yield (
                    f"shard {number} of {relation.path} {what}: rows may be lost, and compacting would make that "
                    "permanent; give the data to semistream repair --from, or build the relation again"
                )

    def _of_shard(self, at: int, expected: int | None) -> Iterator[str]:
        relation = self._relation
        base, end = (int(bound) for bound in relation.shard_bases[at : at + 2])
        own = np.arange(base, end)
        if foreign := int(np.count_nonzero(self._foreign[own])):
            yield f"has {foreign:,} pages with keys of other shards, page {own[self._foreign[own]][0] - base} the first"
        if expected is not None and (rows := int(self._rows[own].sum())) != expected:
            yield f"has {rows:,} rows in its pages, and {expected:,} by the manifest"
        index = relation.indexes[at]
        if not isinstance(index, ClusteredIndex):
            return
        order = np.arange(index.first.size) + base if index.ids is None else index.ids
        if order.size and not (order.min() >= base and order.max() < end):
            yield f"has pages of other shards in its index, {int(order.min()) - base} to {int(order.max()) - base}"
            return
        if np.unique(order).size < order.size:
            yield f"has {order.size - np.unique(order).size:,} pages twice in its index"
        if lost := int(np.count_nonzero(self._rows[np.setdiff1d(own, order)])):
            yield f"has {lost:,} pages with rows that are not in its index"
        order = order[self._rows[order] > 0]
        if wrong := int(np.count_nonzero(self._disorder[order])):
            yield f"has {wrong:,} pages whose keys are out of order"
        if wrong := int(np.count_nonzero(self._first[order[1:]] < self._last[order[:-1]])):
            yield f"has {wrong:,} pages whose keys begin before the previous page ends"
        if order.size and self._last[order].max() > index.last_key:
            yield "has keys after the last key in the manifest"
