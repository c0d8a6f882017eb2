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
    """As the caller gave it."""
    frame: DataFrame
    """With the column of marks, if this join or one before it has one."""
    schema: pa.Schema
    on: tuple[str, ...]
    """Its key columns."""


@dataclass(frozen=True)
class PlannedRelation:
    """R, at the version that the driver saw."""

    path: Place
    manifest: Manifest
    key: KeyCodec
    groups: int
    """The most shards that R ever had: parked rows may be in this many groups."""
    longest: int
    """Bytes that a row of R has at most."""
    stripe: int
    """Values of key64 in a stripe; see `Routing`."""
    pins: str | None
    """Where pins are written if not into the relation's own directory."""
    local: int | float | str | None
    """What a machine may keep of a relation that is in a store."""

    def for_tasks(self) -> TaskRelation:
        """Return what a task needs to know of it."""
        manifest = self.manifest
        return TaskRelation(str(self.path), manifest.version, manifest.schema, manifest.key, self.pins, self.local)


@dataclass(frozen=True)
class PlannedAlgorithm:
    """How the join is done."""

    name: str
    settings: dict[str, Any]
    """Arguments of the algorithm, ``on``, ``how``, ``suffix`` and ``columns`` among them."""
    given: pa.Schema
    """What the join sees of the stream."""
    by_key: bool
    """Whether each row has one answer, which depends on its key alone: then all other columns stay in the JVM."""
    held: bool
    """Whether R is held whole on each machine, and the stream is not shuffled."""
    cache: str | None
    """Name of the cache that is kept between micro-batches; joins that would fill it alike have the same name."""


@dataclass(frozen=True)
class PlannedMemory:
    """The budget of a join on one machine, in bytes."""

    total: int
    tasks: int
    """Tasks that the stream is divided among: a multiple of R's shards. If R is held whole: tasks at a time."""
    share: int
    """What one task gets; of a relation that is held whole, for its results."""
    least: int
    """The least that one task needs."""
    parked: int
    """What one task gets for parked rows."""


@dataclass(frozen=True)
class PlannedColumns:
    """The columns of the result."""

    result: st.StructType
    """The stream's columns, then R's."""
    values: tuple[pa.Field, ...]
    """R's columns, as R names them."""
    prefix: str
    """What stands before the names of R's columns in the result."""
    surrogate: str | None
    """The one of them that replaces the stream's key."""
    unknown: Any
    """The surrogate key of rows without a partner."""


@dataclass(frozen=True)
class PlannedMissing:
    """What happens to rows without a partner."""

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
    """Whether counters name keys that R does not have."""


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
    def routing(self) -> Routing:
        """Which task a row goes to."""
        return Routing(len(self.relation.manifest.shards), self.memory.tasks, self.relation.stripe)

    @property
    def label(self) -> str:
        """Name of the join, by which dead letters are marked and counters are found."""
        return label_of(self.relation.path, self.metrics.name)

    @property
    def added_fields(self) -> list[st.StructField]:
        """R's columns as they are in the result."""
        return list(self.columns.result.fields[len(self.stream.schema) :])

    @property
    def added(self) -> dict[str, str]:
        """R's columns that are asked for, and what they are called in the result."""
        names = [part.name for part in self.added_fields]
        return dict(zip((part.name for part in self.columns.values), names, strict=True))

    @property
    def added_schema(self) -> pa.Schema:
        """R's columns as Arrow has them in the result."""
        return arrow_schema(st.StructType(self.added_fields))


def label_of(path: Place, metrics: str | Observation | None) -> str:
    """Return the name of a join with the relation at ``path``."""
    return metrics if isinstance(metrics, str) else path.name
