"""A secondary index of R, as a manifest lists it: a copy of R's rows, sorted by other columns than the key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from semistream.core.arguments import listed
from semistream.core.errors import RelationBuildError
from semistream.relation.storage.shard_files import ShardFiles

__all__ = ["Columns", "SecondaryIndex", "named_indexes"]

Columns = str | Sequence[str]
"""Columns of an index: one name, or several."""


@dataclass(frozen=True)
class SecondaryIndex:
    """The files of a covering copy of R. Rows with a NULL in ``key`` are left out: nothing can match them."""

    key: tuple[str, ...]
    shards: tuple[ShardFiles, ...]
    version: int
    """The version of R whose rows the copy has."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", tuple(self.key))

    @property
    def files(self) -> list[str]:
        """Names of all files."""
        return [name for shard in self.shards for name in shard.files]


def named_indexes(indexes: Iterable[Columns], key: Columns) -> list[tuple[str, ...]]:
    """Return the columns of each index; raise if two are equal, or one is R's key.

    >>> named_indexes(["email", ("last", "first")], "id")
    [('email',), ('last', 'first')]
    """
    found = [listed(columns) for columns in ([indexes] if isinstance(indexes, str) else indexes)]
    for at, columns in enumerate(found):
        if columns == listed(key):
            raise RelationBuildError(f"{', '.join(columns)} is R's key, which needs no index; leave it out")
        if columns in found[:at]:
            raise RelationBuildError(f"an index on {', '.join(columns)} is asked for twice; leave one out")
    return found
