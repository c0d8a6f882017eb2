"""One shard of R, as a manifest lists it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

__all__ = ["ShardFiles", "ShardFilter", "filters_of", "shards_with"]

_FILTER_NAME, _ADDED_NAME = re.compile(r"[A-Za-z0-9.-]+\.filter"), re.compile(r"[A-Za-z0-9.-]+\.added")
_PLANES = 6


@dataclass(frozen=True)
class ShardFilter:
    """The filter of a shard: which keys the shard does not have. See `relation/filters`."""

    file: str
    of: str
    """Name of the shard's index. Every update of a shard has a new one: a filter of another index is not used."""
    nbytes: int
    """Bytes of the file."""
    keys: int
    """Keys in the file."""
    upper: int
    """Words of high parts of keys."""
    planes: tuple[int, ...]
    """Words of each plane of low bits, the most significant first."""
    hashed: int
    """Keys that are stored as hashes."""
    added: int = 0
    added_file: str | None = None
    """Keys that updates have added since, and their file."""
    form: int = 1
    """Format of the file. Filters of another format are not used."""

    @classmethod
    def of_json(cls, entry: Any) -> ShardFilter | None:
        """Return the filter of an entry of a manifest; None unless this release understands all of it."""
        if not isinstance(entry, Mapping) or entry.get("form") != 1:
            return None
        try:
            found = cls(**{**entry, "planes": tuple(entry["planes"])})
            counts = (found.nbytes, found.keys, found.upper, *found.planes, found.hashed, found.added)
            there = _FILTER_NAME.fullmatch(found.file) and isinstance(found.of, str) and len(found.planes) == _PLANES
            plausible = there and all(type(count) is int and count >= 0 for count in counts) and found.keys > 0
            named = _ADDED_NAME.fullmatch(found.added_file) if found.added_file is not None else found.added == 0
        except (TypeError, LookupError, ValueError):
            return None
        return found if plausible and named else None

    @property
    def files(self) -> list[str]:
        """Names of its files."""
        return [self.file] if self.added_file is None else [self.file, self.added_file]


@dataclass(frozen=True)
class ShardFiles:
    """One shard: its files of pages, its index, and counts of their content."""

    pages_file: str
    index_file: str
    leaves_file: str | None
    rows: int
    pages: int
    leaves: int
    last_key: int
    unique: bool
    deltas: tuple[tuple[str, int], ...] = ()
    """Files with pages that later versions changed, and their numbers of pages."""
    map_file: str | None = None
    """The file of the page map, if there are deltas."""
    indexed: int | None = None
    """Pages in the index, if not all pages are: pages without rows are left out."""

    unbound: tuple[str, ...] = ()
    """Files of the first format, whose checksums do not identify their file."""

    layouts: tuple[int, ...] = ()
    """Number of the row layout of `pages_file`, then of each of `deltas`; empty if all are 0."""

    filter: ShardFilter | None = field(default=None, compare=False)
    """The filter of its keys, if it has one. Nothing depends on it: R is complete without."""

    def __post_init__(self) -> None:
        known = self.filter if isinstance(self.filter, ShardFilter) else ShardFilter.of_json(self.filter)
        # A writer that changes a shard and does not renew its filter leaves it without one.
        known = known if known is not None and known.of == self.index_file else None
        object.__setattr__(self, "filter", known)
        object.__setattr__(self, "layouts", tuple(self.layouts) if any(self.layouts) else ())
        object.__setattr__(self, "deltas", tuple((name, pages) for name, pages in self.deltas))
        object.__setattr__(self, "unbound", tuple(self.unbound))

    @property
    def all_files(self) -> list[str]:
        """Names of all files of the shard, including those of its filter."""
        return self.files if self.filter is None else [*self.files, *self.filter.files]

    @property
    def files(self) -> list[str]:
        """Names of the files of the shard that it cannot be read without."""
        names = [self.pages_file, self.index_file, self.leaves_file, self.map_file, *(name for name, _ in self.deltas)]
        return [name for name in names if name is not None]

    @property
    def page_files(self) -> list[tuple[str, int]]:
        """Names of the files of pages, with their numbers of pages."""
        leaves = [] if self.leaves_file is None else [(self.leaves_file, self.leaves)]
        return [(self.pages_file, self.pages), *leaves, *self.deltas]

    @property
    def page_layouts(self) -> tuple[int, ...]:
        """Numbers of the row layouts of `pages_file` and of each of `deltas`."""
        return self.layouts or (0,) * (1 + len(self.deltas))

    def with_layout(self, number: int) -> ShardFiles:
        """Return the shard with rows of one layout in all of its files."""
        return replace(self, layouts=(number,) * (1 + len(self.deltas)))

    def to_json(self) -> dict[str, Any]:
        """Return what the manifest stores, without the filter: see `filters_of`.

        Releases without row layouts know no entry for them.
        """
        stored = asdict(self)
        del stored["filter"]
        if not self.layouts:
            del stored["layouts"]
        return stored

    @property
    def index_entries(self) -> int:
        """Pages, or leaves, in the index."""
        if self.leaves_file is not None:
            return self.leaves
        return self.pages if self.indexed is None else self.indexed


def filters_of(shards: Iterable[ShardFiles]) -> dict[str, Any]:
    """Return what the manifest stores of filters, by the name of the shard's index. Earlier releases pass over it."""
    return {shard.index_file: asdict(shard.filter) for shard in shards if shard.filter is not None}


def shards_with(shards: Iterable[Mapping[str, Any]], filters: Mapping[str, Any]) -> tuple[ShardFiles, ...]:
    """Return the shards that a manifest stores, with their filters."""
    return tuple(ShardFiles(**shard, filter=filters.get(shard["index_file"])) for shard in shards)
