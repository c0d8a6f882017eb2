"""P-CACHEJOIN: both phases run in parallel (P-/OP-CACHEJOIN, Eq. 1 and 2)."""

from __future__ import annotations

from semistream.costs.basis.parallel_front import ParallelFrontCosts
from semistream.costs.hybridjoin import HybridJoinCosts

__all__ = ["COSTS"]

COSTS = (ParallelFrontCosts("p_cachejoin", HybridJoinCosts()),)
