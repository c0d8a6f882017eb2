"""Counters of a query's joins, per micro-batch.

A task reports the counters of its join in its last row, as a JSON object. If whole rows pass through Python, this is an
additional row, a *sentinel*, which is NULL in all other columns and is filtered out again. Spark collects the reports
of a micro-batch's tasks (``DataFrame.observe``). So the numbers are correct with task retries and without result rows,
need no second job, and reach any listener. They also work on Spark Connect, where accumulators do not.

Spark evaluates every observed aggregate for every result row, and analyses the plan of a query again for each
micro-batch with all its expressions. So there is only one small aggregate, and the reader adds up (`counters_of`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql import Column, DataFrame, Observation, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from semistream.core.statistics import JoinStatistics
from semistream.joins import Join
from semistream.joins.interface.missing_keys import MissingKeys
from semistream.spark.features import items_of

__all__ = [
    "COUNTERS",
    "SPLIT",
    "StreamStatistics",
    "all_counters",
    "counters",
    "counters_of",
    "counters_of_held",
    "memory_split",
    "observed",
    "sentinel",
    "stream_statistics",
    "with_sentinel",
    "without_counters",
]

_COLUMN = "__semistream"
_COUNTERS = tuple(part.name for part in dataclasses.fields(JoinStatistics))
_HELD, _MEMORY, _TASKS, _ONCE, _CACHE = "bytes_held", "memory", "tasks", "once", "cache"
_GROUPS = {
    "stream": ("stream buffer", "stream table", "wait buffer", "intermediate buffer", "matches", "pages and tuples"),
    "cache": ("arena", "front stage", "pinned pages", "relation"),
    "reading": (
        "disk buffer",
        "second disk buffer",
        "frames",
        "look-up page",
        "INLJ page",
        "read buffer",
        "read plan",
        "look-up",
    ),
    "results": ("results", "results ahead", "results put together", "matched rows"),
    "index": ("index", "page map", "updates of R", "key filter"),
}
"""Groups of a budget's parts; all other parts, such as the join behind a front stage, are in ``other``."""
SPLIT = tuple(f"{group}_bytes" for group in (*_GROUPS, "other"))
_SUMMED = (*_COUNTERS, _HELD, _MEMORY, _TASKS, *SPLIT)
_TOLD, _SHARDS, _MISSING = "join_tasks", "shards", "missing"
_MISSED = 16
"""Maximum number of missing keys that a task reports."""
COUNTERS = pa.field(_COLUMN, pa.string())
"""The column of counters, the last of a task's batches."""


@dataclass
class StreamStatistics:
    """The sum of the counters of a query's micro-batches.

    `totals` adds up the counters of all tasks, including their busy seconds, so its service rate is per core.
    """

    totals: JoinStatistics = field(default_factory=JoinStatistics)
    batches: int = 0
    """Micro-batches in which a join ran."""
    tasks: int = 0
    """Tasks that had rows to join."""
    bytes_held: int = 0
    """Peak bytes that the joins of one micro-batch reserved together."""
    memory: int = 0
    """Largest total budget of the joins of one micro-batch, in bytes."""
    missing: MissingKeys = field(default_factory=MissingKeys)
    """The most frequent keys that R does not have."""

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Add the counters of one micro-batch."""
        if not metrics.get(_TASKS):
            return
        for name in _COUNTERS:
            setattr(self.totals, name, getattr(self.totals, name) + metrics[name])
        self.batches += 1
        self.tasks += metrics[_TASKS]
        self.bytes_held = max(self.bytes_held, metrics[_HELD])
        self.memory = max(self.memory, metrics[_MEMORY])
        self.missing.add_counts(metrics.get(_MISSING) or {})


def stream_statistics(query: StreamingQuery, name: str) -> StreamStatistics:
    """Return the counters so far of the join with ``metrics=name`` in this query.

    Spark keeps the progress of the last 100 micro-batches (``spark.sql.streaming.numRecentProgressUpdates``); for
    longer queries add up the results of `counters_of` in a ``StreamingQueryListener``.
    """
    statistics = StreamStatistics()
    for progress in query.recentProgress:
        if (found := counters_of(progress["observedMetrics"].get(name))) is not None:
            statistics.add(found)
    return statistics


def counters_of(metrics: Any) -> dict[str, Any] | None:
    """Return the counters of one micro-batch from the metrics Spark observed under a name; None if not from a join.

    The counters are sums over all tasks. ``shards`` has the counters of each task, and ``missing`` the most frequent
    keys that R does not have.

    >>> found = counters_of({"join_tasks": ['{"rows_in": 3, "shard": 0}', '{"rows_in": 4, "shard": 1}']})
    >>> found["rows_in"], found["shards"][1], counters_of({"rows": 3}), counters_of(None)
    (7, {'rows_in': 4, 'shard': 1}, None, None)
    """
    found = metrics.asDict() if isinstance(metrics, Row) else metrics
    if not isinstance(found, Mapping) or _TOLD not in found:
        return None
    tasks = [json.loads(task) for task in items_of(found[_TOLD])]
    missing, shared = MissingKeys(), [task.pop(_ONCE, {}) for task in tasks]
    for task in tasks:
        missing.add_counts(task.pop(_MISSING, {}))
    sums = {name: sum(task.get(name, 0) for task in tasks) for name in _SUMMED}
    for name in (_HELD, _MEMORY, *SPLIT):  # all tasks of a machine share what is held whole
        sums[name] += max((one.get(name, 0) for one in shared), default=0)
    return {**sums, _SHARDS: tasks, _MISSING: missing.most(_MISSED)}


def memory_split(join: Join) -> dict[str, int]:
    """Return the bytes of a join's memory by group."""
    split = dict.fromkeys(SPLIT, 0)
    for name, held in join.budget.parts().items():
        group = next((group for group, names in _GROUPS.items() if name in names), "other")
        split[f"{group}_bytes"] += held
    return split


def with_sentinel(schema: st.StructType) -> st.StructType:
    """Return ``schema`` with a column for counters; all columns are nullable, because a sentinel is NULL in them."""
    columns = [st.StructField(part.name, part.dataType, True, part.metadata) for part in schema.fields]
    return st.StructType([*columns, st.StructField(_COLUMN, st.StringType())])


def without_counters(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of results with an empty column for counters.

    All its columns become nullable, because a sentinel is NULL in them, and all batches of a task must have the same
    schema.
    """
    counters = pa.nulls(batch.num_rows, COUNTERS.type)
    return pa.RecordBatch.from_arrays([*batch.columns, counters], schema=_counted_schema(batch.schema))


def counters(join: Join, shard: int = 0, **more: int) -> pa.Array:
    """Return the counters of a join, with ``more`` added to some, as an array of one value."""
    values = dataclasses.asdict(join.stats) | {_HELD: join.budget.peak, _MEMORY: join.budget.total, _TASKS: 1}
    values |= memory_split(join) | {"shard": shard, "version": join.relation.version}
    values |= {name: values[name] + count for name, count in more.items()}
    return _counted(values, join.missing)


def counters_of_held(
    stats: JoinStatistics, missing: MissingKeys | None, *, held: int, results: int, memory: int, shard: int,
    version: int,
) -> pa.Array:  # fmt: skip
    """Return the counters of a task that looked up keys in a relation held whole.

    ``held``, ``results`` and ``memory`` are bytes of all tasks of a machine together.
    """
    once = {_HELD: held + results, f"{_CACHE}_bytes": held, "results_bytes": results, _MEMORY: memory}
    values = dataclasses.asdict(stats) | dict.fromkeys((_HELD, _MEMORY, *SPLIT), 0)
    return _counted(values | {_TASKS: 1, _ONCE: once, "shard": shard, "version": version}, missing)


def _counted(values: dict[str, Any], missing: MissingKeys | None) -> pa.Array:
    values[_MISSING] = {} if missing is None else missing.most(_MISSED)
    return pa.array([json.dumps(values, default=int)], COUNTERS.type)


def sentinel(join: Join, schema: pa.Schema, shard: int = 0) -> pa.RecordBatch:
    """Return the last batch of a task: a row that is NULL in all of ``schema``, with the counters of ``join``."""
    nulls = [pa.nulls(1, part.type) for part in schema]
    return pa.RecordBatch.from_arrays([*nulls, counters(join, shard)], schema=_counted_schema(schema))


def _counted_schema(schema: pa.Schema) -> pa.Schema:
    nullable = [pa.field(part.name, part.type) for part in schema]
    return pa.schema([*nullable, COUNTERS])


def observed(df: DataFrame, name: str | Observation) -> DataFrame:
    """Return results without sentinels; their counters are observed under ``name``."""
    return df.observe(name, all_counters(F.col(_COLUMN))).where(F.col(_COLUMN).isNull()).drop(_COLUMN)


def all_counters(counters: Column) -> Column:
    """Return the aggregate to observe over the column of counters, which is NULL in most rows; see `counters_of`."""
    return F.collect_list(counters).alias(_TOLD)
