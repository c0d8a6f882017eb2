"""Finds the keys whose rows differ between two versions of R. A warm cache must forget these keys, and no others.

A version that follows another by updates has all files of the earlier version, and one more file for each update.
Pages that were not written in between are unchanged. So only pages that were written, or that no longer have rows, are
read, in both versions. A row that only moved to another page has not changed, nor has a row that was replaced by an
equal one.
"""

from __future__ import annotations

import os

import numpy as np

from semistream.core.arrays import Ints
from semistream.core.errors import NotARelationError, UnknownIndexError
from semistream.relation.changes.repacking import row_lengths
from semistream.relation.keys.xxhash import hash_bytes, start
from semistream.relation.open_relation import OpenRelation
from semistream.relation.pages.page_layout import page_keys
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.manifest import Manifest
from semistream.relation.storage.map_file import load_map
from semistream.relation.storage.page_map import PageMap
from semistream.relation.storage.shard_files import ShardFiles
from semistream.relation.stores.store_path import Place, place_of

__all__ = ["changed_between", "changed_keys", "differing_keys", "pages_written_between"]

_PAGES_AT_ONCE = 256  # maximum pages read at a time


def changed_keys(
    path: str | os.PathLike[str], before: int, after: int, *, shard: int = 0, most_pages: int | None = None
) -> Ints | None:
    """Return the key64, ascending, of the keys of a shard whose rows differ between versions ``before`` and ``after``.

    It reads each page written in between, and its earlier content, through 2 MB of frames.

    Parameters
    ----------
    path
        A relation.
    before, after
        Versions of the relation; ``after`` is the later one.
    shard
        Number of the shard.
    most_pages
        Return None if more pages than this must be read.

    Returns
    -------
    array or None
        None if the keys cannot be determined, so that any key may have changed: ``before`` was removed, R was built
        again, compacted or evolved in between, or more than ``most_pages`` pages must be read.

    Examples
    --------
    >>> import pyarrow as pa, tempfile
    >>> from semistream import Relation
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     relation = Relation.build(pa.table({"id": [1, 2], "name": ["apple", "fig"]}), f"{folder}/r", key="id")
    ...     second = relation.upsert(pa.table({"id": [1, 2, 3], "name": ["apple", "date", "pear"]}))
    ...     changed_keys(f"{folder}/r", 1, second).tolist()
    [2, 3]
    """
    path = place_of(path)
    try:
        earlier, later = manifests.load(path, before), manifests.load(path, after)
    except NotARelationError:  # removed
        return None
    return changed_between(path, earlier, later, shard, most_pages)


def changed_between(
    path: Place, earlier: Manifest, later: Manifest, shard: int, most_pages: int | None = None
) -> Ints | None:
    """Do the same as `changed_keys`, with manifests that are already read."""
    try:
        pages = pages_written_between(path, earlier, later, shard)
        if pages is None:
            return None
        were, are = pages
        if were.size + are.size == 0:
            return np.empty(0, np.int64)
        if most_pages is not None and were.size + are.size > most_pages:
            return None
        with (
            OpenRelation.open(path, version=earlier.version, shards=[shard], by=earlier.by) as first,
            OpenRelation.open(path, version=later.version, shards=[shard], by=later.by) as second,
        ):
            return differing_keys(first, were, second, are)
    except (NotARelationError, UnknownIndexError, FileNotFoundError):  # removed, or being removed
        return None


def pages_written_between(path: Place, earlier: Manifest, later: Manifest, shard: int) -> tuple[Ints, Ints] | None:
    """Return the pages of a shard to compare, by their ids in each version; None if all pages were written again."""
    if max(len(earlier.shards), len(later.shards)) <= shard or len(earlier.shards) != len(later.shards):
        return None
    if earlier.key != later.key or not earlier.row_layouts.current.equals(later.row_layouts.current):
        return None  # equal files may show other values: a dropped column was added again under its name
    if earlier.packing != later.packing:
        return None  # equal rows have other bytes
    old, new = earlier.shards[shard], later.shards[shard]
    if old == new:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if not _follows(old, new):
        return None
    return _written_between(path, old, new)


def differing_keys(first: OpenRelation, were: Ints, second: OpenRelation, are: Ints) -> Ints:
    """Return the key64, ascending, of the keys whose rows differ between pages of one version and of another."""
    return _differing(_rows_of(first, were), _rows_of(second, are))


def _follows(old: ShardFiles, new: ShardFiles) -> bool:
    """Whether shard ``new`` has all files of ``old``, and possibly more files of changed pages."""
    same = (old.pages_file, old.pages, old.leaves_file) == (new.pages_file, new.pages, new.leaves_file)
    return same and new.leaves_file is None and new.deltas[: len(old.deltas)] == old.deltas


def _written_between(path: Place, old: ShardFiles, new: ShardFiles) -> tuple[Ints, Ints]:
    """Return the ids of the pages to compare: those in the old version, and those in the new version."""
    old_order, old_map = _map_of(path, old)
    new_order, new_map = _map_of(path, new)
    written = new_map.changed[new_map.places >= sum(pages for _, pages in old.deltas)]
    were = np.union1d(np.intersect1d(written, old_order), np.setdiff1d(old_order, new_order))
    assert old_map.page_count <= new_map.page_count
    return were, np.union1d(np.intersect1d(written, new_order), np.setdiff1d(new_order, old_order))


def _map_of(path: Place, shard: ShardFiles) -> tuple[Ints, PageMap]:
    if shard.map_file is None:
        return np.arange(shard.pages), PageMap.plain(shard.pages)
    return load_map(path, shard)


def _rows_of(relation: OpenRelation, pages: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the keys of pages, ascending; the number of rows of each key; and the sum of the rows' hashes."""
    keys, hashes = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
    frames = relation.frames(min(_PAGES_AT_ONCE, max(1, pages.size)))
    for begin in range(0, pages.size, len(frames)):
        part = pages[begin : begin + len(frames)]
        relation.read(part, frames[: part.size])
        found, _, starts = page_keys(frames[: part.size], relation.layout.stride)
        data, running = frames.reshape(-1), start(found.size)
        hash_bytes(data, starts, row_lengths(data, starts, relation.layout.stride), None, running)
        keys.append(found)
        hashes.append(running)
    # A key may have several rows, in several pages, in any order.
    distinct, number, count = np.unique(np.concatenate(keys), return_inverse=True, return_counts=True)
    total = np.zeros(distinct.size, np.uint64)
    np.add.at(total, number, np.concatenate(hashes))
    return distinct, count, total.view(np.int64)


def _differing(old: tuple[Ints, Ints, Ints], new: tuple[Ints, Ints, Ints]) -> Ints:
    """Return the keys whose rows differ between the two."""
    both, at, to = np.intersect1d(old[0], new[0], assume_unique=True, return_indices=True)
    same = both[(old[1][at] == new[1][to]) & (old[2][at] == new[2][to])]
    return np.setdiff1d(np.union1d(old[0], new[0]), same, assume_unique=True)
