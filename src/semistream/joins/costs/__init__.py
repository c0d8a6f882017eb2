"""Cost models of the joins: memory and service rate of each, for any Zipf exponent.

==================  ========================================================================================
`Constants`         what operations and reads cost, by name
`Setting`           R, the stream and the machine
`Costs`             the model of one algorithm: ``memory``, ``predict``, ``rate``
`simulated_seconds` the price of what a join did; for models and simulated runs alike
==================  ========================================================================================

Example
-------
>>> setting = Setting.planned(2_000_000, exponent=1.0, constants=load_constants("disk-2010"))
>>> prediction = costs_of("meshjoin").predict(setting, 50_000_000)
>>> sorted(prediction.parts)
['disk buffer', 'look-up page', 'matches', 'stream buffer', 'stream table']
"""

from __future__ import annotations

from semistream.core.errors import SemistreamError
from semistream.joins.costs.constants import Constants, load_constants, save_constants
from semistream.joins.costs.front import FrontCosts
from semistream.joins.costs.look_up import InljCosts
from semistream.joins.costs.model import Costs, Prediction
from semistream.joins.costs.oldest import HybridJoinCosts, XHybridJoinCosts
from semistream.joins.costs.parallel import ParallelFrontCosts, TwoBufferCosts
from semistream.joins.costs.partitioned import PartitionedJoinCosts
from semistream.joins.costs.pricing import Operations, simulated_seconds
from semistream.joins.costs.scan import MeshJoinCosts, RMeshJoinCosts
from semistream.joins.costs.setting import Setting
from semistream.joins.costs.ssij import SsijCosts

__all__ = [
    "Constants",
    "Costs",
    "Operations",
    "Prediction",
    "Setting",
    "costs_of",
    "load_constants",
    "modelled",
    "save_constants",
    "simulated_seconds",
]

_COSTS: dict[str, Costs] = {
    costs.id: costs
    for costs in (
        InljCosts(),
        MeshJoinCosts(),
        RMeshJoinCosts(),
        PartitionedJoinCosts(),
        HybridJoinCosts(),
        XHybridJoinCosts(),
        FrontCosts("cmeshjoin", MeshJoinCosts(), share=None),
        FrontCosts("cachejoin", HybridJoinCosts()),
        FrontCosts("front+inlj", InljCosts(), share=0.9),
        ParallelFrontCosts("p_cachejoin", HybridJoinCosts()),
        ParallelFrontCosts("op_cachejoin", TwoBufferCosts()),
        SsijCosts(),
        FrontCosts("front+x_hybridjoin", XHybridJoinCosts()),
        FrontCosts("front+ssij", SsijCosts()),
    )
}


def modelled() -> list[str]:
    """Return the ids of the joins that have a cost model."""
    return list(_COSTS)


def costs_of(algorithm: str) -> Costs:
    """Return the cost model of a join."""
    try:
        return _COSTS[algorithm]
    except KeyError:
        raise SemistreamError(
            f"there is no cost model of {algorithm!r}; those with one: {', '.join(sorted(_COSTS))}"
        ) from None
