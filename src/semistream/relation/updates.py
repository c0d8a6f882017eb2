"""Changes to a relation that is not open, by its path.

`upsert`, `delete`, `update` and `compact` are kept for one release: `Relation.upsert` and the other methods do the same
with an open relation. `history` and `vacuum` also work on a relation that cannot be opened.
"""

from __future__ import annotations

import os
from typing import Any

from semistream.relation.committing import commit_compacted, commit_update
from semistream.relation.rows.arrow_input import read_whole
from semistream.relation.versions.vacuum import vacuum
from semistream.relation.versions.version_history import Version, history

__all__ = ["Version", "compact", "delete", "history", "update", "upsert", "vacuum"]

PathLike = str | os.PathLike[str]


def upsert(path: PathLike, data: Any, *, at: Any = None) -> int:
    """Insert keys, or replace their rows; return the number of the version. Use `Relation.upsert` in new code."""
    return update(path, upserts=data, at=at)


def delete(path: PathLike, keys: Any, *, at: Any = None) -> int:
    """Remove keys with all their rows; return the number of the version. Use `Relation.delete` in new code."""
    return update(path, deletes=keys, at=at)


def update(path: PathLike, *, upserts: Any = None, deletes: Any = None, at: Any = None) -> int:
    """Delete, then upsert, in one version; return its number. Use `Relation.update` in new code."""
    return commit_update(path, read_whole(upserts), read_whole(deletes), at=at).version


def compact(path: PathLike) -> int:
    """Rewrite R as if freshly built; return the number of the version. Use `Relation.compact` in new code."""
    return commit_compacted(path).version
