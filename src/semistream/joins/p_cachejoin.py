"""P-CACHEJOIN (Figure 2): the two phases of CACHEJOIN in parallel."""

from __future__ import annotations

from semistream.joins.families.parallel_front import ParallelFrontStage
from semistream.joins.hybridjoin import HybridJoin

__all__ = ["PCacheJoin"]


class PCacheJoin(ParallelFrontStage):
    """CACHEJOIN with stream probing and disk probing in parallel, and ``I_B`` between them.

    Stream probing stops only when ``I_B`` is full, disk probing only when it is empty.
    """

    id = "p_cachejoin"
    title = "P-CACHEJOIN: CACHEJOIN with both phases in parallel"
    when = "As CACHEJOIN, with a core to spare."
    place = 110
    calibrated = True
    behind = HybridJoin
