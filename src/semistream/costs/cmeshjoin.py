"""CMESHJOIN: the front stage before MESHJOIN (CMESHJOIN §3)."""

from __future__ import annotations

from semistream.costs.basis.front_stage import FrontCosts
from semistream.costs.meshjoin import MeshJoinCosts

__all__ = ["COSTS"]

COSTS = (FrontCosts("cmeshjoin", MeshJoinCosts(), share=None),)
