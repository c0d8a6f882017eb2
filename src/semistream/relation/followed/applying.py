"""Commits what one commit of the source changed as one version of R, within a memory budget.

An update is computed in memory, with all pages that it changes. A large commit is therefore applied in parts, in key
order. Each part writes its own files of changed pages, on top of the parts before. Only the manifest that follows the
last part is committed, so no reader ever sees some of the parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from semistream.core.arrays import Ints
from semistream.relation import builder
from semistream.relation.followed.difference import ChangedKeys, Difference, not_unique
from semistream.relation.followed.source_table import FollowError
from semistream.relation.open_relation import OpenRelation
from semistream.relation.pages.page_index import ClusteredIndex
from semistream.relation.storage.manifest import Manifest
from semistream.relation.versions.leases import Writer
from semistream.relation.writing_shards import write_shard

__all__ = ["Applied", "TooManyPagesError", "apply_difference", "pages_in_memory"]

_PAGE_COPIES = 6
"""Copies of a changed page in memory: as read, with the new rows, packed, in the overlay with room to grow, sealed."""
_LEAST_PAGES = 64


class TooManyPagesError(Exception):
    """More pages change than are worth changing; R is built again instead."""


@dataclasses.dataclass
class Applied:
    """What was written for one commit."""

    manifest: Manifest
    upserted: int = 0
    deleted: int = 0
    pages: int = 0
    """Pages written."""


def pages_in_memory(memory: int, page_bytes: int) -> int:
    """Return how many pages may change in one part."""
    return max(_LEAST_PAGES, memory // (_PAGE_COPIES * page_bytes))


def apply_difference(
    relation: OpenRelation, difference: Difference, writer: Writer, *, memory: int, most_pages: float
) -> Applied:
    """Write all changed pages; return the manifest to commit, which has the version and properties of ``relation``.

    Raises `TooManyPagesError` once more than ``most_pages`` pages were written.
    """
    applied = Applied(relation.stored)
    current, number, more_rows = relation, 0, 0
    try:
        for changed in difference.changed():
            for part in _parts(current, changed, pages_in_memory(memory, relation.page_bytes)):
                patch = current.prepare(part.upserts, part.deletes)
                shards = tuple(
                    write_shard(current, shard, patch, builder.shard_name(shard, f"{writer.run}-{number}"))
                    for shard in range(len(applied.manifest.shards))
                )
                applied.upserted += part.upserts.num_rows
                applied.deleted += part.deletes.num_rows
                applied.pages += patch.pages.size
                applied.manifest = dataclasses.replace(applied.manifest, shards=shards)
                more_rows += sum(patch.more_rows)
                number += 1
                if applied.pages > most_pages:
                    raise TooManyPagesError
                following = OpenRelation.of_files(relation.place, applied.manifest, None, **relation.options)
                if current is not relation:
                    current.close()
                current = following
    finally:
        if current is not relation:
            current.close()
    if more_rows < difference.more_rows:
        raise not_unique(relation.key.names)
    if more_rows > difference.more_rows:
        raise FollowError(
            f"the commit removes {more_rows - difference.more_rows:,} rows that {relation.place} does not have, so the "
            "relation did not equal the table before; nothing was committed: rebuild the relation"
        )
    return applied


def spill_directory(made: Path, writer: Writer) -> Path:
    """Return where to spill while a commit is compared. Vacuum removes it if the writer dies."""
    return made / f".sorting-{writer.run}-difference"


def _parts(relation: OpenRelation, changed: ChangedKeys, most_pages: int) -> Iterator[ChangedKeys]:
    """Divide changes, in key order, so that each part changes at most about ``most_pages`` pages."""
    keys = np.union1d(changed.upsert_keys, changed.delete_keys)
    if not keys.size:
        return
    first_of_page = np.zeros(keys.size, np.int64)
    first_of_page[_first_in_page(relation, keys)] = 1
    part = (np.cumsum(first_of_page) - 1) // most_pages
    begins = keys[np.flatnonzero(np.diff(part, prepend=-1))]
    for at, low in enumerate(begins):
        yield changed.between(int(low), int(begins[at + 1]) if at + 1 < begins.size else None)


def _first_in_page(relation: OpenRelation, keys: Ints) -> Ints:
    """Return the positions of the keys that are the first of all keys in their page."""
    homes = relation.home(keys).astype(np.int64)
    pages = np.empty(keys.size, np.int64)
    for number, index in enumerate(relation.indexes):
        assert isinstance(index, ClusteredIndex)
        mine = np.flatnonzero(homes == number)
        pages[mine], _ = index.between(keys[mine], keys[mine])
    return np.unique(homes * (pages.max(initial=0) + 1) + pages, return_index=True)[1]
