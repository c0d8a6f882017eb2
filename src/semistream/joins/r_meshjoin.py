"""R-MESHJOIN, the reduced MESHJOIN (cited in X-HYBRIDJOIN §2): the disk buffer is a parameter of its own."""

from __future__ import annotations

from typing import Any

from semistream.core.arguments import check_at_least
from semistream.joins.families.cyclic import CyclicJoin
from semistream.relation.relation import Relation

__all__ = ["RMeshJoin"]

_PAGES_A_SEEK = 8
"""With a disk buffer of this many seeks' worth of pages, a ninth of the disk's time goes to seeks."""


class RMeshJoin(CyclicJoin):
    """MESHJOIN whose disk buffer is chosen for the disk alone, and stays the same when R grows.

    MESHJOIN ties disk buffer, number of partitions and queue together. Here the disk buffer comes first: as many pages
    as make reading efficient, and no more. The number of partitions of R, ``k``, and the tuples that enter in a turn,
    ``w``, follow from it, so that all other memory goes to waiting tuples.

    Parameters
    ----------
    disk_pages
        Pages of the disk buffer (``d``). More makes longer reads with fewer seeks, and leaves less memory to waiting
        tuples. By default 8 for each of ``seek_pages``, so that a ninth of the time goes to seeks, but at most a
        quarter of the memory.
    seek_pages
        Seek time of the device, in pages of transfer (``S / T``).

    Notes
    -----
    ``k = ceil(N_R / d)``; ``w`` is what the table can hold, over ``k`` and the partition that is forming. Where the
    memory is so little that ``k`` tuples would not fit beside the default ``d``, a larger one is taken.

    Examples
    --------
    >>> import pyarrow as pa, tempfile, semistream
    >>> products = pa.table({"id": range(1000), "name": [f"product {i}" for i in range(1000)]})
    >>> sales = pa.record_batch({"id": [3, 700, 3, 2000], "amount": [1, 2, 3, 4]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     relation = semistream.Relation.build(products, f"{folder}/products", key="id", page_size=512)
    ...     join = semistream.create("r_meshjoin", relation, on="id", memory="1MB", disk_pages=16)
    ...     result = pa.Table.from_batches(join.process([sales]))
    >>> result.sort_by("amount")["name"].to_pylist()
    ['product 3', 'product 700', 'product 3', None]
    """

    id = "r_meshjoin"
    title = "R-MESHJOIN: cyclic scan, disk buffer independent of R"
    when = "As MESHJOIN, when R grows."
    place = 30

    def __init__(
        self, relation: Relation, *, disk_pages: int | None = None, seek_pages: float = 16.0, **common: Any
    ) -> None:
        check_at_least(1, disk_pages=disk_pages)
        super().__init__(relation, pages=disk_pages, seek_pages=seek_pages, **common)

    def _partition(self) -> int:
        most = self.budget.free // 4 // self.relation.device.frame_bytes
        return min(int(_PAGES_A_SEEK * self._seek_pages), most)
