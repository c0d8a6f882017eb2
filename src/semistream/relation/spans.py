"""Locates intervals of keys in R as runs of pages, instead of one entry per page.

So a key that fills a thousand pages, or a range over half of R, is only two numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from semistream.core.arrays import Ints
from semistream.relation.pages.page_index import ClusteredIndex
from semistream.relation.relation import Relation

__all__ = ["Spans", "Versions", "locate_spans", "locate_versions"]


class Spans(NamedTuple):
    """Runs of pages of many intervals, as compressed rows: interval i has the runs ``bounds[i]:bounds[i + 1]``.

    A run is ``length`` positions from ``first`` on. A position counts pages in key order; `Relation.page_order` maps
    it to a page id, and is empty if both are the same.
    """

    bounds: Ints
    first: Ints
    length: Ints


def locate_spans(relation: Relation, low: Ints, high: Ints) -> Spans:
    """Return the pages that may hold keys in ``[low[i], high[i]]``, in one pass over the index.

    If ``low`` ascends, the pass moves only forward. In a relation that is not clustered, every interval must be a
    single key, ``low == high``.
    """
    if not relation.clustered:
        located = relation.locate(low)
        return Spans(located.bounds, located.pages, np.ones(located.pages.size, np.int64))
    indexes = [index for index in relation.indexes if isinstance(index, ClusteredIndex)]
    if len(indexes) == 1:
        return Spans(np.arange(low.size + 1), *indexes[0].between(low, high))
    bases = np.cumsum([0, *(index.first.size for index in indexes)])
    if np.array_equal(low, high):
        return _of_keys(relation, indexes, bases, low)
    # Keys are distributed over shards by hash, so an interval has a run in each shard.
    firsts, counts = zip(*(index.between(low, high) for index in indexes), strict=True)
    first = np.stack(firsts, axis=1) + bases[:-1]
    return Spans(np.arange(low.size + 1) * len(indexes), first.reshape(-1), np.stack(counts, axis=1).reshape(-1))


class Versions(NamedTuple):
    """The page of each of many versions, -1 if there is none, and when the first row of the key's next page begins."""

    pages: Ints
    following: Ints


def locate_versions(relation: Relation, keys: Ints, times: Ints) -> Versions:
    """Return the page of a history that may hold the row of each key that is valid at its time."""
    indexes = [index for index in relation.indexes if isinstance(index, ClusteredIndex)]
    bases = np.cumsum([0, *(index.first.size for index in indexes)])
    if len(indexes) == 1:
        positions, following = indexes[0].at(keys, times)
    else:
        home = relation.home(keys)
        positions, following = np.full(keys.size, -1), np.zeros(keys.size, np.int64)
        for number, index in enumerate(indexes):
            here = np.flatnonzero(home == number)
            found, following[here] = index.at(keys[here], times[here])
            positions[here] = np.where(found >= 0, found + bases[number], -1)
    order = relation.page_order
    if order.size:
        positions = np.where(positions >= 0, order[positions], -1)
    return Versions(positions, following)


def _of_keys(relation: Relation, indexes: list[ClusteredIndex], bases: Ints, keys: Ints) -> Spans:
    home = relation.home(keys)
    first, count = np.zeros(keys.size, np.int64), np.zeros(keys.size, np.int64)
    for number, index in enumerate(indexes):
        here = np.flatnonzero(home == number)
        first[here], count[here] = index.between(keys[here], keys[here])
        first[here] += bases[number]
    return Spans(np.arange(keys.size + 1), first, count)
