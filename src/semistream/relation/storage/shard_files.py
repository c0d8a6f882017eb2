"""One shard of R, as a manifest lists it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

__all__ = ["ShardFiles"]


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "layouts", tuple(self.layouts) if any(self.layouts) else ())
        object.__setattr__(self, "deltas", tuple((name, pages) for name, pages in self.deltas))
        object.__setattr__(self, "unbound", tuple(self.unbound))

    @property
    def files(self) -> list[str]:
        """Names of all files of the shard."""
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
        """Return what the manifest stores. Releases without row layouts know no entry for them."""
        stored = asdict(self)
        if not self.layouts:
            del stored["layouts"]
        return stored

    @property
    def index_entries(self) -> int:
        """Pages, or leaves, in the index."""
        if self.leaves_file is not None:
            return self.leaves
        return self.pages if self.indexed is None else self.indexed
