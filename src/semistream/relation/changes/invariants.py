"""Invariants of every relation that can be updated: every page belongs to one shard.

Page ids continue across shards. A page past the files belongs to the shard that claimed it. Each shard is also read
separately by its own task, so a page must never move from one shard to another.
"""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Ints
from semistream.relation.changes.updatable import Updatable
from semistream.relation.pages.page_index import ClusteredIndex

__all__ = ["check_relation", "pages_of_shard"]


def pages_of_shard(relation: Updatable, number: int) -> Ints:
    """Return the ids of a clustered shard's pages, in key order."""
    index = relation.indexes[number]
    assert isinstance(index, ClusteredIndex)
    return np.arange(index.first.size) + relation.shard_bases[number] if index.ids is None else index.ids


def check_relation(relation: Updatable) -> None:
    """Assert that overlay and indexes are consistent, and that each page belongs to one shard only."""
    relation.overlay.check()
    if not all(isinstance(index, ClusteredIndex) for index in relation.indexes):
        return
    owned = [np.empty(0, np.int64)]
    for number, spare in enumerate(relation.overlay.spare):
        index = relation.indexes[number]
        assert isinstance(index, ClusteredIndex)
        index.check()
        mine = np.concatenate([pages_of_shard(relation, number), spare])
        base, end = relation.shard_bases[number : number + 2]
        own = ((mine >= base) & (mine < end)) | (mine >= relation.overlay.file_pages)
        assert own.all(), f"shard {number} has pages {mine[~own][:5]} of another: its own are {base} to {end - 1}"
        owned.append(mine)
    every = np.concatenate(owned)
    assert np.unique(every).size == every.size, "a page is used twice"
    assert every.size == 0 or int(every.max()) < relation.page_count
    added = np.arange(relation.overlay.file_pages, relation.page_count)
    assert np.isin(added, every).all(), "an added page belongs to no shard"
