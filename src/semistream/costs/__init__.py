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
from semistream.costs.basis.constants import Constants, load_constants, save_constants
from semistream.costs.basis.model import Costs, Prediction
from semistream.costs.basis.pricing import Operations, simulated_seconds
from semistream.costs.basis.setting import Setting
from semistream.costs.front_stage import FrontCosts
from semistream.costs.hybridjoin import HybridJoinCosts, XHybridJoinCosts
from semistream.costs.inlj import InljCosts
from semistream.costs.meshjoin import MeshJoinCosts, RMeshJoinCosts
from semistream.costs.parallel_front import ParallelFrontCosts, TwoBufferCosts
from semistream.costs.partitioned_join import PartitionedJoinCosts
from semistream.costs.ssij import SsijCosts

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
