"""Cost models of the joins: memory and service rate of each, for any Zipf exponent.

==================  ========================================================================================
`Constants`         costs of operations and reads, by name
`Setting`           R, the stream and the machine
`Costs`             the model of one algorithm: ``memory``, ``predict``, ``rate``
`DiskCosts`         base class for authors of models; `serve` returns a `Served`
`simulated_seconds` the time of a join's operations; for models and simulated runs
==================  ========================================================================================

Example
-------
>>> setting = Setting.planned(2_000_000, exponent=1.0, constants=load_constants("disk-2010"))
>>> prediction = costs_of("meshjoin").predict(setting, 50_000_000)
>>> sorted(prediction.parts)
['disk buffer', 'look-up page', 'matches', 'results', 'stream buffer', 'stream table']
"""

from __future__ import annotations

import functools

from semistream.core.arguments import nearest
from semistream.core.errors import SemistreamError
from semistream.core.plugins import modules_of
from semistream.costs.basis.constants import Constants, load_constants, save_constants
from semistream.costs.basis.model import Costs, Memory, Prediction, common_memory
from semistream.costs.basis.popularity import KeyClasses
from semistream.costs.basis.pricing import Operations, simulated_seconds
from semistream.costs.basis.served import DiskCosts, Served, matched_in_passes
from semistream.costs.basis.setting import Setting
from semistream.joins import algorithms

__all__ = [
    "Constants",
    "Costs",
    "DiskCosts",
    "KeyClasses",
    "Memory",
    "Operations",
    "Prediction",
    "Served",
    "Setting",
    "common_memory",
    "costs_of",
    "load_constants",
    "matched_in_passes",
    "modelled",
    "save_constants",
    "simulated_seconds",
]


@functools.cache
def _models() -> dict[str, Costs]:
    """Find the models: the modules' objects ``COSTS``, in the order of the registry of joins."""
    found: dict[str, Costs] = {}
    for module in modules_of(__name__):
        found |= {costs.id: costs for costs in getattr(module, "COSTS", ())}
    return {name: found[name] for name in algorithms() if name in found}


def modelled() -> list[str]:
    """Return the ids of the joins that have a cost model."""
    return list(_models())


def costs_of(algorithm: str) -> Costs:
    """Return the cost model of a join."""
    try:
        return _models()[algorithm]
    except KeyError:
        known = sorted(_models())
        hint = nearest(algorithm, known).replace("did", " Did", 1)
        raise SemistreamError(
            f"there is no cost model of {algorithm!r}; joins with a model: {', '.join(known)}.{hint}"
        ) from None
