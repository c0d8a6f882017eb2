"""``algorithm="auto"`` on Spark: chosen once on the driver, so that all tasks and all micro-batches agree."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from semistream.core.errors import BudgetTooSmallError
from semistream.costs import Setting, costs_of
from semistream.joins import Join, algorithms, find
from semistream.joins.families.front_stage import FrontStage
from semistream.relation.relation import Relation
from semistream.relation.storage.shard_files import ShardFiles
from semistream.tuner import best_split, describe

__all__ = ["choose_join"]

_CACHE_SHARE = 0.8
"""Few tuples wait if every batch is drained, so the cache gets most of the memory. The models do not include drains."""
_CLEARLY = 1.5
"""A join that does not keep the stream's order must be predicted to be faster by this factor. The models leave out the
cost of drains, and of encoding waiting rows and decoding them again; a join that keeps the order has neither."""
_REMEMBERED = 64


@dataclass(frozen=True)
class _Question:
    files: ShardFiles
    """Identifies the relation: file names are unique."""
    memory: int
    schema: pa.Schema
    exponent: float
    cache_share: float


_answers: dict[_Question, str] = {}


def choose_join(
    shard: Relation, files: ShardFiles, memory: int, schema: pa.Schema, options: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the algorithm with the highest predicted rate for a shard in ``memory``, and the options left for it.

    ``exponent`` among the options is the stream's Zipf exponent, 1 if it is not known. The choice is remembered because
    it needs a measurement of the device: a query that calls `semistream.join` for each of its batches pays for it once.
    """
    left = dict(options)
    exponent = float(left.pop("exponent", 1.0))
    share = float(left.get("cache_share", _CACHE_SHARE))
    question = _Question(files, memory, schema, exponent, share)
    if question not in _answers:
        while len(_answers) >= _REMEMBERED:
            _answers.pop(next(iter(_answers)), None)
        _answers[question] = _fastest(describe(shard, schema, exponent=exponent), memory, share)
    chosen = _answers[question]
    return chosen, {"cache_share": share, **left} if _has_cache_share(chosen) else left


def _fastest(setting: Setting, memory: int, cache_share: float) -> str:
    rates: dict[str, float] = {}
    candidates = [name for name in algorithms() if _suits_batches(find(name))]
    for name in candidates:
        fixed = {"cache_share": cache_share} if _has_cache_share(name) else {}
        with suppress(BudgetTooSmallError):
            rates[name] = best_split(costs_of(name), setting, memory, fixed=fixed).rate
    first = next(name for name in candidates if find(name).in_order)
    best = max(rates, key=lambda name: rates[name], default=first)
    # if the memory is too small for all of them, the first one raises an error with the size it needs
    return best if rates.get(best, 0.0) > _CLEARLY * rates.get(first, 0.0) else first


def _suits_batches(join: type[Join]) -> bool:
    """Return whether a join keeps its cache between micro-batches, and drains a batch without reading all of R."""
    return join.keeps_cache and join.deterministic and not join.scans


def _has_cache_share(name: str) -> bool:
    return issubclass(find(name), FrontStage)
