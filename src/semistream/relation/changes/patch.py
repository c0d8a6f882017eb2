"""An update of R that is prepared and not yet installed."""

from __future__ import annotations

from dataclasses import dataclass

from semistream.core.arrays import Ints
from semistream.core.errors import SemistreamError
from semistream.relation.changes.overlay import Overlay
from semistream.relation.pages.page_index import ClusteredIndex

__all__ = ["Patch"]


@dataclass(frozen=True)
class Patch:
    """An update that is prepared and not yet installed."""

    of_revision: int
    """The `Relation.revision` to which it applies."""
    keys: Ints
    pages: Ints
    overlay: Overlay
    indexes: list[ClusteredIndex]
    page_order: Ints
    index_bytes: int
    """`Relation.index_bytes` after the update is installed."""
    row_count: int
    more_rows: tuple[int, ...]
    """Number of rows by which each shard grows."""
    unique: bool
    null_keys: int = 0
    """Rows of the update left out because their key is NULL."""
    new_keys: tuple[Ints, ...] = ()
    """The keys that the update adds to each shard, as key64; empty if they are not known."""

    def check_applies_to(self, revision: int) -> None:
        """Raise if R is at a different revision from the one the update was prepared for."""
        if self.of_revision != revision:
            raise SemistreamError(
                f"the update was prepared for revision {self.of_revision} of R, which has revision {revision} now; "
                "prepare it again"
            )

    @property
    def nbytes(self) -> int:
        """Bytes that R holds in memory after the update is installed: changed pages and the index."""
        return self.overlay.nbytes + self.index_bytes

    @property
    def page_count(self) -> int:
        """Pages of R after the update is installed."""
        return self.overlay.page_count
