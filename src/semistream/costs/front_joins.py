"""The front stage before joins; no paper names these combinations."""

from __future__ import annotations

from semistream.costs.basis.front_stage import FrontCosts
from semistream.costs.inlj import InljCosts
from semistream.costs.ssij import SsijCosts
from semistream.costs.x_hybridjoin import XHybridJoinCosts

__all__ = ["COSTS"]

COSTS = (
    FrontCosts("front+inlj", InljCosts(), share=0.9),
    FrontCosts("front+x_hybridjoin", XHybridJoinCosts()),
    FrontCosts("front+ssij", SsijCosts()),
)
