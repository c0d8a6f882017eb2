"""R-MESHJOIN, the reduced MESHJOIN (cited in X-HYBRIDJOIN §2): the disk buffer is a parameter of its own."""

from __future__ import annotations

from typing import Any

from semistream.core.arguments import check_at_least
from semistream.joins.families.cyclic import CyclicJoin
from semistream.relation.relation import Relation

__all__ = ["RMeshJoin"]

_PAGES_A_SEEK = 8
"""Pages of the disk buffer per page that could be transferred during a seek: a ninth of the disk's time is seeks."""


class RMeshJoin(CyclicJoin):
    """MESHJOIN with a disk buffer that depends only on the disk, and stays the same when R grows.

    MESHJOIN couples disk buffer, number of partitions and queue. Here the disk buffer is chosen first: just enough
    pages to read efficiently. The number of partitions of R, ``k``, and the tuples per iteration, ``w``, follow from
    it, so that all other memory is for waiting tuples.

    Parameters
    ----------
    disk_pages
        Pages of the disk buffer (``d``). A higher value makes reads longer, with fewer seeks, but leaves less memory
        for waiting tuples. By default 8 times ``seek_pages``, so that a ninth of the time is seeks, but at most a
        quarter of the memory.
    seek_pages
        Seek time of the device, in pages of transfer (``S / T``).

    Notes
    -----
    ``k = ceil(N_R / d)``; ``w`` is the capacity of the table divided by ``k + 1``, for the partition that is forming.
    If the memory is too small for ``k`` tuples with the default ``d``, a larger ``d`` is used.

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
