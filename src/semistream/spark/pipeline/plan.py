"""The content of a pipeline file.

::

    [[follow]] Delta or Iceberg table ──▶ relation
    [source] ──▶ [source.derive] ──▶ [filter] before ──▶ [deduplicate] ──▶ [[join]] … [[join]]
             ──▶ [derive] ──▶ [filter] after ──▶ [sink]

``docs/pipeline.md`` describes every key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from semistream.core.units import memory_bytes, parse_bytes
from semistream.joins import How
from semistream.joins.interface.conditions import ConditionName
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.manifest import Manifest
from semistream.relation.stores.store_path import StorePath
from semistream.spark.joining.missing import After, OnMissing
from semistream.spark.joining.star.star_budget import Use, shares
from semistream.spark.pipeline.document import Place
from semistream.spark.pipeline.follow_reading import FollowPlan

__all__ = [
    "DeduplicatePlan",
    "JoinPlan",
    "OnMalformed",
    "PipelinePlan",
    "SinkPlan",
    "SourcePlan",
    "StatisticsPlan",
    "Trigger",
    "with_budgets",
]

TEXTS = ("kafka", "csv", "json")
"""Formats whose rows are texts, which may not match the schema."""
FILES = ("parquet", "csv", "json", "orc", "text")
SOURCES = ("kafka", *FILES, "semistream-sales", "rate")
ONCE = ("parquet", "delta", "postgresql", "mariadb")
"""Sinks that contain each batch exactly once, even if a query is killed."""
SINKS = (*ONCE, "relation", "kafka", "spark", "console")
AVAILABLE_NOW = "available now"

OnMalformed = Literal["fail", "dead_letter", "drop", "null"]

Trigger = str | None
"""``available now``, an interval such as ``10 seconds``, or None for batches without a pause."""


@dataclass(frozen=True)
class SourcePlan:
    """The source of the stream."""

    place: Place
    format: str
    path: str | None = None
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    derive: Mapping[str, str] = field(default_factory=dict)
    on_malformed: OnMalformed | None = None
    """What to do with rows that do not fit the schema; None for formats that have their own schema."""


@dataclass(frozen=True)
class DeduplicatePlan:
    """Which columns identify duplicate rows, and how much later a duplicate may arrive."""

    place: Place
    columns: tuple[str, ...]
    watermark: str
    within: str


@dataclass(frozen=True)
class JoinPlan:
    """A join with one relation."""

    place: Place
    name: str
    relation: Path | StorePath
    on: tuple[str, ...]
    how: How | None = "left"
    on_missing: OnMissing | None = None
    park_for: str | None = None
    after_park: After | None = None
    algorithm: str | None = None
    condition: ConditionName = "equal"
    as_of: str | None = None
    memory: int | str | None = None
    columns: tuple[str, ...] | None = None
    prefix: str = ""
    suffix: str = "_right"
    surrogate: str | None = None
    unknown: str | float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    local: str | int | None = None
    """Size of each machine's local disk cache for a relation in an object store."""
    by: tuple[str, ...] | None = None
    """Columns of a secondary index to join on, instead of the relation's key."""

    def manifest(self) -> Manifest:
        """Return the newest manifest of the relation, in the order in which it is joined."""
        found = manifests.load(self.relation)
        return found if self.by is None else found.in_order_of(self.by, self.relation)

    @property
    def use(self) -> Use:
        """How this join uses its relation."""
        return Use.of(
            self.relation, as_of=self.as_of, condition=self.condition, on_missing=self.on_missing,
            algorithm=self.algorithm, cached=not self.options and self.by is None,
        )  # fmt: skip

    @property
    def has_dead_letters(self) -> bool:
        """Whether rows without a match become dead letters, immediately or after they were parked."""
        return "dead_letter" in (self.on_missing, self.after_park)


@dataclass(frozen=True)
class SinkPlan:
    """The sink of the rows."""

    place: Place
    format: str
    path: str | None = None
    url: str | None = field(default=None, repr=False)
    table: str | None = None
    key: tuple[str, ...] = ()
    password: str | None = field(default=None, repr=False)
    partition_by: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    source: str | None = None
    """Spark's name of the sink, for the format ``spark``."""


@dataclass(frozen=True)
class StatisticsPlan:
    """Where the statistics of each micro-batch are written."""

    file: Path | None = None
    port: int | None = None
    missing_keys: bool = True
    """Whether they list keys that are missing in relations."""


@dataclass(frozen=True)
class PipelinePlan:
    """A pipeline; parts with errors in the file are None."""

    name: str
    checkpoint: Path | None
    trigger: Trigger
    source: SourcePlan | None
    deduplicate: DeduplicatePlan | None
    joins: tuple[JoinPlan, ...]
    derive: Mapping[str, str]
    sink: SinkPlan | None
    dead_letters: SinkPlan | None
    statistics: StatisticsPlan
    spark: Mapping[str, str]
    master: str = "local[*]"
    heap: str = "2g"
    filter: Mapping[str, str] = field(default_factory=dict)
    """Conditions that rows must meet, ``before`` and ``after`` the joins."""
    follows: tuple[FollowPlan, ...] = ()
    """Relations that follow a table while the pipeline runs."""

    @property
    def has_dead_letters(self) -> bool:
        """Whether rows of the source or of a join can become dead letters."""
        malformed = self.source is not None and self.source.on_malformed == "dead_letter"
        return malformed or any(plan.has_dead_letters for plan in self.joins)


def with_budgets(joins: Sequence[JoinPlan], memory: int | None, sizes: Mapping[Place, Manifest]) -> list[JoinPlan]:
    """Return the joins, each with its budget; raise `ValueError` if those in the file exceed ``memory``.

    What the file leaves open is divided as `semistream.enrich` divides it: small relations get enough to be held whole,
    and the cost model divides the rest among large ones. A relation that is held for several joins counts once. If the
    memory is not enough for small relations whose budget is a share of R, these shares are exact.
    """
    if memory is None:
        return list(joins)
    given = [plan for plan in joins if plan.memory is not None]
    whole = {plan.place: memory_bytes(plan.memory or 0, *_size(sizes[plan.place])) for plan in given}
    exact = {plan.place: parse_bytes(plan.memory or 0, of=sizes[plan.place].nbytes) for plan in given}
    owns = whole if sum(whole.values()) <= memory else exact
    own = sum(owns.values())
    if own > memory:
        raise ValueError(
            f"memory is {memory:,} B, but the joins' budgets add up to {own:,} B; give more, or give them less"
        )
    open_ones = [plan for plan in joins if plan.memory is None]
    parts = shares(memory - own, [plan.use for plan in open_ones]) if open_ones else {}
    return [replace(plan, memory=parts[plan.relation] if plan.memory is None else owns[plan.place]) for plan in joins]


def _size(manifest: Manifest) -> tuple[int, int]:
    """Return the bytes and rows of a relation."""
    return manifest.nbytes, manifest.rows
