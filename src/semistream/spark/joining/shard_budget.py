"""The memory of a join on Spark, divided among its tasks.

All tasks get equal parts, enough for the largest shard. Rows go to task ``hash % tasks``, and a key is in shard
``hash % shards``. If the number of tasks is a multiple of the number of shards, a task needs only one shard. So a join
can have more tasks than R has shards, and can use more cores without a rebuild of R.
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
"""If rows are parked: parts of the memory for joining new rows, and for joining parked rows again."""
_ROOMY = 1 << 22
"""Bytes of a task's memory. Below this, a cache gets less than its tuned share, and the join behind it gets more."""
_AMPLE = 4
"""More tasks than shards are used only if each still gets this many times the minimum memory of the join."""


def parallelism_of(session: SparkSession) -> int:
    """Return how many tasks a session runs in parallel; 1 if it does not say, as on Spark Connect."""
    try:
        return max(1, int(session.sparkContext.defaultParallelism))
    except (PySparkException, AttributeError):
        said = str(session.conf.get("spark.default.parallelism", "1"))
        return max(1, int(said)) if said.isdecimal() else 1


@dataclass(frozen=True)
class ShardBudget:
    """Memory of all tasks, and what one task needs."""

    largest: Relation
    """The largest shard."""
    path: Place
    tasks: int
    """R's shards, or a multiple of them."""
    total: int
    may_grow: bool = False
    """Whether the memory is a share of R. A share is raised to the minimum that the join needs."""

    @classmethod
    def of(
        cls, largest: Relation, path: Place, manifest: Manifest, memory: int | float | str, *, tasks: int | None = None
    ) -> ShardBudget:
        """Return the budget of a join with ``memory``, which may be a share of R; by default one task per shard."""
        total = memory_bytes(memory, manifest.nbytes, manifest.rows)
        return cls(largest, path, tasks or len(manifest.shards), total, is_share(memory))

    def enough_for(self, kind: type[Join], settings: dict[str, Any], schemas: Mapping[float, pa.Schema]) -> ShardBudget:
        """Return a budget of which each part is enough for a stream of its schema; only a share of R is raised."""
        enough = self
        for part, schema in schemas.items() if self.may_grow else ():
            try:
                enough.share(kind, schema, settings, part)
            except BudgetTooSmallError as error:
                enough = replace(self, total=error.minimum)
        return enough

    @property
    def roomy(self) -> bool:
        """Whether a task has more memory than the iterations of a join behind a cache need."""
        return self.of_task(1.0) >= _ROOMY

    def of_task(self, part: float) -> int:
        """Return one task's share of a part of the total memory."""
        return max(1, int(self.total * part) // self.tasks)

    def for_session(self, stream: DataFrame, least: int) -> ShardBudget:
        """Return a budget for as many tasks as the session runs in parallel, if each then gets ample memory."""
        if least == 0:  # an unbounded join: each task would hold a copy of its shard
            return self
        most = min(parallelism_of(stream.sparkSession), self.total // (_AMPLE * least))
        return replace(self, tasks=self.tasks * max(1, most // self.tasks))

    def share(self, kind: type[Join], schema: pa.Schema, settings: dict[str, Any], part: float) -> tuple[int, int]:
        """Return one task's part of the memory and the minimum it needs; raise if the largest shard needs more."""
        share = self.of_task(part)
        if not kind.bounded:
            kind(self.largest, memory=1, **settings)  # only for its checks; with a schema it would read the whole shard
            return share, 0
        minimum = kind.minimum_memory(self.largest, schema, **settings)
        if share < minimum:
            parking = "" if part == 1.0 else f", {part:.0%} being for {'new' if part == NEW_ROWS else 'parked'} rows"
            needed = math.ceil(minimum * self.tasks / part)
            raise BudgetTooSmallError(
                f"memory of {format_bytes(self.total)} is too small for {self.path}: {format_bytes(share)} for each of "
                f"its {self.tasks} shards{parking}, but {kind.id} needs at least {minimum:,} B per shard, so "
                f"{needed:,} B in all; give at least that, or build the relation with fewer shards or larger pages"
                if self.tasks > 1
                else f"memory of {format_bytes(self.total)} is too small for {self.path}{parking}: {kind.id} needs at "
                f"least {needed:,} B; give at least that",
                needed,
            )
        return share, minimum
