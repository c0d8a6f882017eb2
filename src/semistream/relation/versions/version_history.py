"""The list of versions of R."""

from __future__ import annotations

import os
from dataclasses import dataclass

from semistream.core.errors import NotARelationError
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.followed_commit import followed_commit
from semistream.relation.storage.manifest import OPERATION
from semistream.relation.storage.map_file import load_map
from semistream.relation.stores.store_path import place_of

__all__ = ["Version", "history"]


@dataclass(frozen=True)
class Version:
    """One version of a relation."""

    number: int
    rows: int
    pages: int
    changed_pages: int
    """Pages changed since the last build or `compact`. They are in separate files, so each costs a scan one seek."""
    committed: float
    """Seconds since the epoch."""
    operation: str | None = None
    """What created it: build, upsert, delete, follow, compact or repair; None if the version does not record it."""
    commit: str | None = None
    """The commit of the followed table that it equals; None if R follows no table."""


def history(path: str | os.PathLike[str]) -> list[Version]:
    """Return all versions that can still be opened, oldest first; see also `Relation.history`."""
    path = place_of(path)
    numbers = manifests.versions(path)
    if not numbers:
        raise NotARelationError(manifests.why_not(path))
    result = []
    for number in numbers:
        try:
            manifest = manifests.load(path, number)
            committed = (path / manifests.name_of(number)).stat().st_mtime
        except (NotARelationError, FileNotFoundError):
            if number in manifests.versions(path):
                raise
            continue  # removed meanwhile
        changed = sum(pages for shard in manifest.shards for _, pages in shard.deltas)
        pages = sum(
            shard.pages if shard.map_file is None else load_map(path, shard)[1].page_count for shard in manifest.shards
        )
        operation = manifest.properties.get(OPERATION)
        followed = followed_commit(manifest.properties)
        commit = followed.commit if followed is not None and followed.version == number else None
        result.append(Version(number, manifest.rows, pages, changed, committed, operation, commit))
    return result
