"""CACHEJOIN: the front stage before HYBRIDJOIN (P-/OP-CACHEJOIN §2)."""

from __future__ import annotations

from semistream.costs.basis.front_stage import FrontCosts
from semistream.costs.hybridjoin import HybridJoinCosts

__all__ = ["COSTS"]

COSTS = (FrontCosts("cachejoin", HybridJoinCosts()),)
