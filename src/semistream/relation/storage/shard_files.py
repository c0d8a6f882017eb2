"""One shard of R, as a manifest lists it."""

from __future__ import annotations

from dataclasses import dataclass

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

    def __post_init__(self) -> None:
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
    def index_entries(self) -> int:
        """Pages, or leaves, in the index."""
        if self.leaves_file is not None:
            return self.leaves
        return self.pages if self.indexed is None else self.indexed
