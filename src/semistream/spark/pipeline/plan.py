"""What a pipeline file says.

::

    [source] ──▶ [source.derive] ──▶ [filter] before ──▶ [deduplicate] ──▶ [[join]] … [[join]]
             ──▶ [derive] ──▶ [filter] after ──▶ [sink]

``docs/pipeline.md`` describes every key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from semistream.joins import How
from semistream.relation.stores.store_path import StorePath
from semistream.spark.joining.missing import After, OnMissing
from semistream.spark.pipeline.document import Place

__all__ = [
    "DeduplicatePlan",
    "JoinPlan",
    "OnMalformed",
    "PipelinePlan",
    "SinkPlan",
    "SourcePlan",
    "StatisticsPlan",
    "Trigger",
]

TEXTS = ("kafka", "csv", "json")
"""Formats whose rows are texts, which may not fit the schema."""
FILES = ("parquet", "csv", "json", "orc", "text")
SOURCES = ("kafka", *FILES, "semistream-sales", "rate")
ONCE = ("parquet", "delta", "postgresql", "mariadb")
"""Sinks that have a batch once, whenever a query is stopped."""
SINKS = (*ONCE, "relation", "kafka", "spark", "console")
AVAILABLE_NOW = "available now"

OnMalformed = Literal["fail", "dead_letter", "drop", "null"]

Trigger = str | None
"""``available now``, an interval such as ``10 seconds``, or None for one batch right after the other."""


@dataclass(frozen=True)
class SourcePlan:
    """Where the stream comes from."""

    place: Place
    format: str
    path: str | None = None
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    derive: Mapping[str, str] = field(default_factory=dict)
    on_malformed: OnMalformed | None = None
    """What becomes of rows that do not fit the schema; None of formats that have a schema of their own."""


@dataclass(frozen=True)
class DeduplicatePlan:
    """Which rows are the same row come twice, and how much later it may come."""

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
    memory: int | str | None = None
    columns: tuple[str, ...] | None = None
    prefix: str = ""
    suffix: str = "_right"
    surrogate: str | None = None
    unknown: str | float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    local: str | int | None = None
    """What a machine may keep of a relation that is in a store."""

    @property
    def has_dead_letters(self) -> bool:
        """Whether rows without a partner become dead letters, at once or later."""
        return "dead_letter" in (self.on_missing, self.after_park)


@dataclass(frozen=True)
class SinkPlan:
    """Where the rows go."""

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
    """Of the format ``spark``: the name that Spark knows the sink by."""


@dataclass(frozen=True)
class StatisticsPlan:
    """Where the statistics of each micro-batch go."""

    file: Path | None = None
    port: int | None = None
    missing_keys: bool = True
    """Whether keys that relations do not have are named in them."""


@dataclass(frozen=True)
class PipelinePlan:
    """A pipeline; parts that the file has wrong are None."""

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

    @property
    def has_dead_letters(self) -> bool:
        """Whether any rows become dead letters, of the source or of a join."""
        malformed = self.source is not None and self.source.on_malformed == "dead_letter"
        return malformed or any(plan.has_dead_letters for plan in self.joins)
