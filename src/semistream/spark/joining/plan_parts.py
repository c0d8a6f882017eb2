"""What a planned join consists of: the stream, R, columns, memory, the missing rule and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql import DataFrame, Observation

from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.storage.manifest import Manifest
from semistream.relation.stores.store_path import Place
from semistream.spark.joining.missing import Marker, MissingRule
from semistream.spark.joining.spreading.range_routing import RangeRouting
from semistream.spark.joining.spreading.routing import Routing
from semistream.spark.joining.task_relation import TaskRelation
from semistream.spark.relations.types import arrow_schema

__all__ = [
    "PlannedAlgorithm",
    "PlannedColumns",
    "PlannedJoin",
    "PlannedMemory",
    "PlannedMetrics",
    "PlannedMissing",
    "PlannedRelation",
    "PlannedStream",
]


@dataclass(frozen=True)
class PlannedStream:
    """The stream that is joined."""

    before: DataFrame
    """The stream as the caller gave it."""
    frame: DataFrame
    """The stream with the column of marks, if this join or an earlier one has one."""
    schema: pa.Schema
    on: tuple[str, ...]
    """Its key columns."""
    as_of: str | None = None
    """Its column of times, for an as-of join."""

    @property
    def sent(self) -> tuple[str, ...]:
        """The columns that determine a row's match."""
        return self.on if self.as_of is None else (*self.on, self.as_of)


@dataclass(frozen=True)
class PlannedRelation:
    """R, at the version that the driver saw."""

    path: Place
    manifest: Manifest
    key: KeyCodec
    groups: int
    """Maximum number of shards that R ever had: parked rows may be in this many groups."""
    longest: int
    """Maximum bytes of a row of R."""
    stripe: int
    """Values of key64 per stripe; see `Routing`."""
    pins: str | None
    """Directory for pins; None is the relation's own directory."""
    local: int | float | str | None
    """What a machine may keep on its disk of a relation that is in a store."""

    def for_tasks(self) -> TaskRelation:
        """Return what a task needs to know about R."""
        manifest = self.manifest
        return TaskRelation(
            str(self.path), manifest.version, manifest.schema, manifest.key, self.pins, self.local, manifest.by,
            manifest.row_layouts,
        )  # fmt: skip


@dataclass(frozen=True)
class PlannedAlgorithm:
    """The algorithm and its arguments."""

    name: str
    settings: dict[str, Any]
    """Arguments of the algorithm, including ``on``, ``how``, ``suffix`` and ``columns``."""
    given: pa.Schema
    """The columns of the stream that the join receives."""
    by_key: bool
    """Whether each row has exactly one answer, which depends only on its key. Then other columns stay in the JVM."""
    held: bool
    """Whether R is held whole on each machine, and the stream is not shuffled."""
    cache: str | None
    """Name of the cache that is kept between micro-batches. Joins that would fill it equally have the same name."""


@dataclass(frozen=True)
class PlannedMemory:
    """The budget of a join on one machine, in bytes."""

    total: int
    tasks: int
    """Number of tasks for the stream: a multiple of R's shards. If R is held whole: tasks that run in parallel."""
    share: int
    """Memory of one task; if R is held whole, memory for its results."""
    least: int
    """Minimum memory of one task."""
    parked: int
    """Memory of one task for parked rows."""


@dataclass(frozen=True)
class PlannedColumns:
    """The columns of the result."""

    result: st.StructType
    """The stream's columns, then R's."""
    values: tuple[pa.Field, ...]
    """R's columns, as R names them."""
    prefix: str
    """Prefix of the names of R's columns in the result."""
    surrogate: str | None
    """The column of R that replaces the stream's key."""
    unknown: Any
    """The surrogate key of rows without a match."""


@dataclass(frozen=True)
class PlannedMissing:
    """What happens to rows without a match."""

    rule: MissingRule
    park_idle: bool
    marker: Marker | None
    keep_mark: bool
    """Whether the column of marks is part of the result."""


@dataclass(frozen=True)
class PlannedMetrics:
    """What the join reports."""

    name: str | Observation | None
    missing_keys: bool
    """Whether counters list keys that R does not have."""


@dataclass(frozen=True)
class PlannedJoin:
    """A join of a stream with a version of R, after all checks."""

    stream: PlannedStream
    relation: PlannedRelation
    algorithm: PlannedAlgorithm
    memory: PlannedMemory
    columns: PlannedColumns
    missing: PlannedMissing
    metrics: PlannedMetrics

    @property
    def routing(self) -> Routing | RangeRouting:
        """Return which task each row goes to."""
        if self.algorithm.settings["condition"] == "between":
            return RangeRouting(self.memory.tasks, self.relation.stripe)
        return Routing(len(self.relation.manifest.shards), self.memory.tasks, self.relation.stripe)

    @property
    def label(self) -> str:
        """Name of the join, used to mark dead letters and to find counters."""
        return label_of(self.relation.path, self.metrics.name)

    @property
    def added_fields(self) -> list[st.StructField]:
        """R's columns in the result."""
        return list(self.columns.result.fields[len(self.stream.schema) :])

    @property
    def added(self) -> dict[str, str]:
        """Requested columns of R, and their names in the result."""
        names = [part.name for part in self.added_fields]
        return dict(zip((part.name for part in self.columns.values), names, strict=True))

    @property
    def added_schema(self) -> pa.Schema:
        """R's columns in the result, as an Arrow schema."""
        return arrow_schema(st.StructType(self.added_fields))


def label_of(path: Place, metrics: str | Observation | None) -> str:
    """Return the name of a join with the relation at ``path``."""
    return metrics if isinstance(metrics, str) else path.name
