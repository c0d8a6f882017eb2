"""``algorithm="auto"`` on Spark: chosen once on the driver, so that all tasks and all micro-batches agree."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.core.errors import BudgetTooSmallError
from semistream.core.units import parse_bytes
from semistream.costs import costs_of
from semistream.relation.relation import Relation
from semistream.relation.storage.manifest import Manifest
from semistream.tuner import best_split, describe

__all__ = ["AUTO", "choose_join"]

AUTO = "auto"
_CANDIDATES = ("cachejoin", "front+inlj", "front+x_hybridjoin", "front+ssij")
"""Joins whose cache outlives a micro-batch and that read what is waited for, not all of R to drain a batch."""
_CACHE_SHARE = 0.8
"""Few tuples wait when every batch is drained, so the cache gets most of the memory; models know no such drain."""


def choose_join(
    path: Path, manifest: Manifest, memory: int | float | str, schema: pa.Schema, options: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the algorithm with the highest predicted rate, and the options that are left for it.

    ``exponent`` among the options is the stream's Zipf exponent, 1 if it is not known. What was chosen is remembered:
    a query that calls `semistream.join` for each of its batches pays for the choice once.
    """
    left = dict(options)
    exponent = float(left.pop("exponent", 1.0))
    share = float(left.get("cache_share", _CACHE_SHARE))
    algorithm = _fastest(path, manifest.version, memory, schema, exponent, share)
    return algorithm, {"cache_share": share, **left}


@functools.lru_cache(maxsize=64)
def _fastest(
    path: Path, version: int, memory: int | float | str, schema: pa.Schema, exponent: float, cache_share: float
) -> str:
    with Relation.open(path, version=version) as relation:
        total, shards = parse_bytes(memory, of=relation.nbytes), relation.shard_count
        setting = describe(relation, schema, exponent=exponent)
    part = setting.replace(
        rows=max(1, setting.rows // shards), pages=max(1, setting.pages // shards),
        index_bytes=setting.index_bytes // shards,
    )  # fmt: skip
    rates: dict[str, float] = {}
    for name in _CANDIDATES:
        try:
            found = best_split(costs_of(name), part, max(1, total // shards), fixed={"cache_share": cache_share})
        except BudgetTooSmallError:
            continue
        rates[name] = found.rate
    # with memory for none of them, the first one says how much it needs
    return max(rates, key=lambda name: rates[name]) if rates else _CANDIDATES[0]
