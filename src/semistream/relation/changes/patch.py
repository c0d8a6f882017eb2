"""An update of R that is worked out and not yet installed."""

from __future__ import annotations

from dataclasses import dataclass

from semistream.core.arrays import Ints
from semistream.core.errors import SemistreamError
from semistream.relation.changes.overlay import Overlay
from semistream.relation.pages.page_index import ClusteredIndex

__all__ = ["Patch"]


@dataclass(frozen=True)
class Patch:
    """An update that is worked out and not yet installed."""

    of_version: int
    """Version of R that it applies to."""
    keys: Ints
    pages: Ints
    overlay: Overlay
    indexes: list[ClusteredIndex]
    page_order: Ints
    index_bytes: int
    """`Relation.index_bytes` once this is installed."""
    row_count: int
    more_rows: tuple[int, ...]
    """By how many rows each shard grows."""
    unique: bool

    def check_applies_to(self, version: int) -> None:
        """Refuse to be installed in another version of R than it was prepared for."""
        if self.of_version != version:
            raise SemistreamError(
                f"the update was prepared for version {self.of_version} of R, which has version {version} now; "
                "prepare it again"
            )

    @property
    def nbytes(self) -> int:
        """Bytes that R holds in memory once this is installed: changed pages, and the index."""
        return self.overlay.nbytes + self.index_bytes

    @property
    def page_count(self) -> int:
        """Pages of R once this is installed."""
        return self.overlay.page_count
