"""The commit of a Delta or Iceberg table that a version of R equals, as a property of the version's manifest.

The manifest is written atomically, so the rows of a version and the name of its commit can never disagree. `follow`
continues from this name after a restart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

__all__ = ["FOLLOW", "FollowedCommit", "followed_commit", "properties_of_equal_rows"]

FOLLOW = "follow"
"""Property: the source and its commit, as JSON."""


@dataclass(frozen=True)
class FollowedCommit:
    """A commit of a source table, and the version of R that has its rows."""

    format: str
    """``delta`` or ``iceberg``."""
    table: str
    """Path or name of the source, as the user gave it."""
    id: str
    """The id that the source gave itself. A table that replaces another under the same name has a different id."""
    commit: str
    """Version number of a Delta table, or snapshot id of an Iceberg table."""
    committed: float
    """When the source was committed, in seconds since the epoch."""
    version: int
    """The version of R. A later version that keeps this record was changed by something else than `follow`."""

    def to_property(self) -> dict[str, str]:
        """Return the property for a manifest."""
        return {FOLLOW: json.dumps(asdict(self))}


def followed_commit(properties: Mapping[str, str]) -> FollowedCommit | None:
    """Return the commit that a manifest names, or None if its relation follows no table."""
    text = properties.get(FOLLOW)
    return None if text is None else FollowedCommit(**json.loads(text))


def properties_of_equal_rows(properties: Mapping[str, str], before: int, after: int) -> dict[str, str]:
    """Return the properties of version ``after``, which has the same rows as version ``before``.

    If ``before`` equals a commit of the source, so does ``after``.
    """
    followed = followed_commit(properties)
    if followed is None or followed.version != before:
        return dict(properties)
    return {**properties, **replace(followed, version=after).to_property()}
