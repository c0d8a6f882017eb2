"""The memory of a join on Spark, divided among its tasks: each gets the same part, and the largest shard must fit.

Rows are sent to task ``hash % tasks``, and a key is in shard ``hash % shards``. If the tasks are a multiple of the
shards, a task needs one shard. So a join can have more tasks than R has shards, and R need not be built again to use
more cores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from semistream.core.errors import BudgetTooSmallError
from semistream.core.units import format_bytes, is_share, memory_bytes
from semistream.joins import Join
from semistream.relation.relation import Relation
from semistream.relation.storage.manifest import Manifest
from semistream.relation.stores.store_path import Place

__all__ = ["NEW_ROWS", "WAITING_ROWS", "ShardBudget", "parallelism_of"]

NEW_ROWS, WAITING_ROWS = 0.75, 0.25
"""Where rows are parked: parts of the memory for joining new rows, and for joining parked ones again."""
_ROOMY = 1 << 22
"""Bytes of a task's memory below which a cache leaves more to the join behind than a share that was tuned for more."""
_AMPLE = 4
"""More tasks than shards are used only if each still gets this many times the least memory that a join needs."""


def parallelism_of(session: SparkSession) -> int:
    """Return how many tasks a session runs at once; 1 where it does not say, as on Spark Connect."""
    try:
        return max(1, int(session.sparkContext.defaultParallelism))
    except (PySparkException, AttributeError):
        said = str(session.conf.get("spark.default.parallelism", "1"))
        return max(1, int(said)) if said.isdecimal() else 1


@dataclass(frozen=True)
class ShardBudget:
    """Memory of all tasks, and what one of them needs."""

    largest: Relation
    """The largest shard."""
    path: Place
    tasks: int
    """R's shards, or a multiple of them."""
    total: int
    may_grow: bool = False
    """Whether the memory is a share of R, which is raised to the least that the join needs."""

    @classmethod
    def of(cls, largest: Relation, path: Place, manifest: Manifest, memory: int | float | str) -> ShardBudget:
        """Return the budget of a join that is given ``memory``, which may be a share of R."""
        total = memory_bytes(memory, manifest.nbytes, manifest.rows)
        return cls(largest, path, len(manifest.shards), total, is_share(memory))

    def enough_for(self, kind: type[Join], settings: dict[str, Any], schemas: Mapping[float, pa.Schema]) -> ShardBudget:
        """Return this, or if it is a share of R, one that is enough for streams of these schemas in parts of it."""
        enough = self
        for part, schema in schemas.items() if self.may_grow else ():
            try:
                enough.share(kind, schema, settings, part)
            except BudgetTooSmallError as error:
                enough = replace(self, total=error.minimum)
        return enough

    @property
    def roomy(self) -> bool:
        """Whether a task has memory for more than the turns of a join behind a cache."""
        return self.of_task(1.0) >= _ROOMY

    def of_task(self, part: float) -> int:
        """Return one task's share of a part of all memory."""
        return max(1, int(self.total * part) // self.tasks)

    def for_session(self, stream: DataFrame, least: int) -> ShardBudget:
        """Return the budget of as many tasks as the stream's session runs at once, if each gets ample memory."""
        if least == 0:  # of a join without a bound: each task would hold a copy of its shard
            return self
        most = min(parallelism_of(stream.sparkSession), self.total // (_AMPLE * least))
        return replace(self, tasks=self.tasks * max(1, most // self.tasks))

    def share(self, kind: type[Join], schema: pa.Schema, settings: dict[str, Any], part: float) -> tuple[int, int]:
        """Return one task's part of the memory and the least that would do, or raise if the largest needs more."""
        share = self.of_task(part)
        if not kind.bounded:
            kind(self.largest, memory=1, **settings)  # for the checks; with the schema it would read all of the shard
            return share, 0
        minimum = kind.minimum_memory(self.largest, schema, **settings)
        if share < minimum:
            parking = "" if part == 1.0 else f", {part:.0%} being for {'new' if part == NEW_ROWS else 'parked'} rows"
            needed = math.ceil(minimum * self.tasks / part)
            raise BudgetTooSmallError(
                f"memory of {format_bytes(self.total)} is too small for {self.path}: {format_bytes(share)} for each of "
                f"its {self.tasks} shards{parking}, of which {kind.id} needs at least {minimum:,} B for one, so "
                f"{needed:,} B in all; give at least that, or build the relation with fewer shards or larger pages"
                if self.tasks > 1
                else f"memory of {format_bytes(self.total)} is too small for {self.path}{parking}: {kind.id} needs at "
                f"least {needed:,} B; give at least that",
                needed,
            )
        return share, minimum
