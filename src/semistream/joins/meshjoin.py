"""MESHJOIN (Polyzotis et al.; restated in CMESHJOIN §2 and HYBRIDJOIN §3): tuples wait for a cyclic scan of R."""

from __future__ import annotations

import math
from typing import Any

from semistream.core.arguments import check_at_least
from semistream.joins.families.cyclic import CyclicJoin
from semistream.relation.relation import Relation

__all__ = ["MeshJoin", "pages_of_partition"]


def pages_of_partition(pages: int, partitions: int) -> int:
    """Return ``b`` for an R that is read in ``partitions`` parts; the last may be shorter.

    >>> pages_of_partition(100, 8), pages_of_partition(3, 8)
    (13, 1)
    """
    return max(1, math.ceil(pages / partitions))


class MeshJoin(CyclicJoin):
    """Scans R cyclically, partition by partition; a tuple leaves when it has been joined with all of R.

    Each iteration adds ``w`` stream tuples to ``H_S``, reads the next ``b`` pages of R, and probes ``H_S`` with all of
    their rows. Then the oldest ``w`` tuples leave, because they have been joined with every page. The join needs no
    index and only sequential reads. Its rate does not depend on skew, and a tuple waits for a whole scan of R.

    Parameters
    ----------
    partition_pages
        ``b``. A higher value makes reads longer, with fewer seeks, but leaves less memory for waiting tuples. By
        default the value that maximises the rate for a device whose seek costs as much as the transfer of
        ``seek_pages``.
    partitions
        ``k``, instead of ``b``: the number of parts in which R is read. This is MESHJOIN as published, whose disk
        buffer grows with R, unlike R-MESHJOIN; for comparison.
    seek_pages
        Seek time of the device, in pages of transfer (``S / T``).

    Notes
    -----
    Memory: ``b·v_P + w·v_S + k·w·(bytes of a waiting tuple)`` with ``k = ceil(N_R / b)``, as in the paper. The
    partition of the queue that is forming is counted in the stream table.
    """

    id = "meshjoin"
    title = "MESHJOIN: cyclic scan of R"
    when = "A disk with very slow random reads, no skew, and no latency limit."
    place = 20

    def __init__(
        self,
        relation: Relation,
        *,
        partition_pages: int | None = None,
        partitions: int | None = None,
        seek_pages: float = 16.0,
        **common: Any,
    ) -> None:
        check_at_least(1, partition_pages=partition_pages, partitions=partitions)
        if partitions is not None:
            if partition_pages is not None:
                raise ValueError(f"give partition_pages={partition_pages} or partitions={partitions}, not both")
            partition_pages = pages_of_partition(relation.page_count, partitions)
        super().__init__(relation, pages=partition_pages, seek_pages=seek_pages, **common)

    def _partition(self) -> int:
        """Return ``b`` that maximises ``h_S·b / (S/T + b)``."""
        room, seek = self.budget.free / self.relation.device.frame_bytes, self._seek_pages
        return int(math.sqrt(seek * seek + seek * room) - seek)
