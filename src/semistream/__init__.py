"""Exact joins of a fast stream with a large relation on disk, in little memory.

Everything public is reachable from here. Names are loaded when they are first used, so that
``import semistream`` is quick and the parts that need no Spark never import it.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semistream import errors as errors
    from semistream import spark as spark
    from semistream.core.statistics import JoinStatistics as JoinStatistics
    from semistream.joins import Join as Join
    from semistream.joins import algorithms as algorithms
    from semistream.relation.damage.repair import repair as repair
    from semistream.relation.followed.follow import follow as follow
    from semistream.relation.followed.follower import Follower as Follower
    from semistream.relation.relation import Relation as Relation
    from semistream.relation.updates import compact as compact
    from semistream.relation.updates import delete as delete
    from semistream.relation.updates import history as history
    from semistream.relation.updates import update as update
    from semistream.relation.updates import upsert as upsert
    from semistream.relation.versions.vacuum import vacuum as vacuum
    from semistream.relation.versions.version_history import Version as Version
    from semistream.spark import dimension as dimension
    from semistream.spark import enrich as enrich
    from semistream.spark import join as join
    from semistream.spark import register as register
    from semistream.tuner.auto import create as create
    from semistream.tuner.tuning import tune as tune

if sys.version_info < (3, 11):  # noqa: UP036 - installed by force
    raise ImportError(
        f"semistream needs Python 3.11 or newer, but {sys.executable} is {'.'.join(map(str, sys.version_info[:3]))}; "
        "create an environment with a newer Python"
    )

__version__ = "0.2.0"

# Public name -> the module that has it; a module's own name stands for the module itself.
_PUBLIC = {
    "Follower": "semistream.relation.followed.follower",
    "Join": "semistream.joins",
    "JoinStatistics": "semistream.core.statistics",
    "Relation": "semistream.relation.relation",
    "Version": "semistream.relation.versions.version_history",
    "algorithms": "semistream.joins",
    "compact": "semistream.relation.updates",
    "create": "semistream.tuner.auto",
    "delete": "semistream.relation.updates",
    "dimension": "semistream.spark",
    "enrich": "semistream.spark",
    "errors": "semistream.errors",
    "follow": "semistream.relation.followed.follow",
    "history": "semistream.relation.updates",
    "join": "semistream.spark",
    "register": "semistream.spark",
    "repair": "semistream.relation.damage.repair",
    "spark": "semistream.spark",
    "tune": "semistream.tuner.tuning",
    "update": "semistream.relation.updates",
    "upsert": "semistream.relation.updates",
    "vacuum": "semistream.relation.versions.vacuum",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_PUBLIC[name])
    value = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
