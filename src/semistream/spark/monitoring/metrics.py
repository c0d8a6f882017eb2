"""What the joins of a query did, batch by batch.

Every task ends with one row more, a *sentinel*: NULL in all columns but one, which holds the counters of its join.
Spark sums the counters of a micro-batch up (``DataFrame.observe``) and the sentinels are filtered out again. So the
numbers are right with task retries and without result rows, cost no second job, and reach any listener; they also
work where accumulators do not, on Spark Connect.

Spark looks at every row of results for every aggregate that is observed. So there is one: it collects the sentinels'
counters, and only the few that were collected are added up. Behind the numbers of a sentinel are the keys that were
missing most often in R, as text.
"""

from __future__ import annotations

import dataclasses
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

__all__ = [
    "COUNTERS",
    "SPLIT",
    "StreamStatistics",
    "counters",
    "counters_of",
    "memory_split",
    "observed",
    "sentinel",
    "stream_statistics",
    "total_of",
    "with_sentinel",
    "without_counters",
]

_COLUMN = "__semistream"
_COUNTERS = {part.name: isinstance(part.default, float) for part in dataclasses.fields(JoinStatistics)}
"""Names, and whether they count seconds."""
_HELD, _MEMORY, _TASKS = "bytes_held", "memory", "tasks"
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
    "index": ("index", "page map", "updates of R"),
}
"""What the parts of a budget are for; all others, such as the join behind a front stage, are ``other``."""
SPLIT = tuple(f"{group}_bytes" for group in (*_GROUPS, "other"))
_SUMMED = {**_COUNTERS, _HELD: False, _MEMORY: False, _TASKS: False, **dict.fromkeys(SPLIT, False)}
_OF_TASK = ("shard", "version")
"""What is told of each task, and makes no sum."""
_PLACES = (*_SUMMED, *_OF_TASK)
_TOTALS, _SHARDS, _MISSING = "totals", "shards", "missing"
_MISSED = 16
"""Missing keys that a task tells."""
# One NULL for a row of results, where a struct would send a value of every counter to the JVM. Numbers are text, as the
# missing keys behind them are, and exact up to 2 to the 53.
_SPARK_TYPE = st.ArrayType(st.StringType())
_ARROW_TYPE = pa.list_(pa.string())
COUNTERS = pa.field(_COLUMN, _ARROW_TYPE)
"""The column of counters, the last of a task's batches."""


@dataclass
class StreamStatistics:
    """The counters of a query's micro-batches, together.

    `totals` adds up what all tasks counted, their busy seconds too: its service rate is that of one core.
    """

    totals: JoinStatistics = field(default_factory=JoinStatistics)
    batches: int = 0
    """Micro-batches in which a join ran."""
    tasks: int = 0
    """Tasks that had rows to join."""
    bytes_held: int = 0
    """The most that the joins of one micro-batch reserved together."""
    memory: int = 0
    """The most that the joins of one micro-batch might have reserved together."""
    missing: MissingKeys = field(default_factory=MissingKeys)
    """Keys that R does not have, the most frequent of them."""

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
    """Return what the join that was given ``metrics=name`` did in this query so far.

    Spark keeps the progress of the last 100 micro-batches (``spark.sql.streaming.numRecentProgressUpdates``); for
    longer queries add the metrics up in a ``StreamingQueryListener``.
    """
    statistics = StreamStatistics()
    for progress in query.recentProgress:
        if (found := counters_of(progress["observedMetrics"].get(name))) is not None:
            statistics.add(found)
    return statistics


def counters_of(metrics: Any) -> dict[str, Any] | None:
    """Return the counters of one micro-batch from what Spark has observed under a name; None if they are not a join's.

    >>> counters_of({"totals": {"rows_in": 3}}), counters_of({"rows": 3}), counters_of(None)
    ({'rows_in': 3}, None, None)
    """
    found = metrics.asDict(recursive=True) if isinstance(metrics, Row) else metrics
    totals = found.get(_TOTALS) if isinstance(found, dict) else None
    totals = totals.asDict(recursive=True) if isinstance(totals, Row) else totals
    if totals is None or _SHARDS not in totals:
        return totals
    tasks = [dict(zip(_PLACES, task, strict=True)) for task in totals[_SHARDS] or ()]
    missing = MissingKeys()
    for told in totals.get(_MISSING) or ():
        count, _, key = told.partition(" ")
        missing.add_counts({key: int(count)})
    return {
        **totals,
        _SHARDS: [{name: _plain(name, task[name]) for name in task} for task in tasks],
        _MISSING: missing.most(_MISSED),
    }


def _plain(name: str, value: float) -> float:
    return value if _SUMMED.get(name) else int(value)


def memory_split(join: Join) -> dict[str, int]:
    """Return what the memory of a join is held for, in bytes by group."""
    split = dict.fromkeys(SPLIT, 0)
    for name, held in join.budget.parts().items():
        group = next((group for group, names in _GROUPS.items() if name in names), "other")
        split[f"{group}_bytes"] += held
    return split


def with_sentinel(schema: st.StructType) -> st.StructType:
    """Return ``schema`` with room for counters; all columns may be NULL, as they are in a sentinel."""
    columns = [st.StructField(part.name, part.dataType, True, part.metadata) for part in schema.fields]
    return st.StructType([*columns, st.StructField(_COLUMN, _SPARK_TYPE)])


def without_counters(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of results with the column for counters, empty.

    Columns that are never NULL in results are in a sentinel, and all batches of a task must have one schema.
    """
    counters = pa.nulls(batch.num_rows, _ARROW_TYPE)
    return pa.RecordBatch.from_arrays([*batch.columns, counters], schema=_counted_schema(batch.schema))


def counters(join: Join, shard: int = 0, **more: int) -> pa.Array:
    """Return what a join counted, and ``more`` of some, as an array of one value."""
    values = dataclasses.asdict(join.stats) | {_HELD: join.budget.peak, _MEMORY: join.budget.total, _TASKS: 1}
    values |= memory_split(join) | {"shard": shard, "version": join.relation.version or 0}
    numbers = [repr(float(values[name] + more.get(name, 0))) for name in _PLACES]
    missing = {} if join.missing is None else join.missing.most(_MISSED)
    return pa.array([[*numbers, *(f"{count} {key}" for key, count in missing.items())]], _ARROW_TYPE)


def sentinel(join: Join, schema: pa.Schema, shard: int = 0) -> pa.RecordBatch:
    """Return the last batch of a task: a row that is NULL in all of ``schema``, and what ``join`` counted."""
    nulls = [pa.nulls(1, part.type) for part in schema]
    return pa.RecordBatch.from_arrays([*nulls, counters(join, shard)], schema=_counted_schema(schema))


def _counted_schema(schema: pa.Schema) -> pa.Schema:
    nullable = [pa.field(part.name, part.type) for part in schema]
    return pa.schema([*nullable, COUNTERS])


def observed(df: DataFrame, name: str | Observation) -> DataFrame:
    """Return results without sentinels, whose counters are summed up under ``name``."""
    return df.observe(name, total_of(F.col(_COLUMN))).where(F.col(_COLUMN).isNull()).drop(_COLUMN)


def total_of(counters: Column) -> Column:
    """Return the sums of counters, which most rows have none of, to be observed."""
    nothing = F.array(*[F.lit(0.0)] * len(_PLACES))

    def parted(tasks: Column) -> Column:
        numbers = F.transform(tasks, lambda task: F.slice(task, 1, len(_PLACES)).cast("array<double>"))
        missing = F.flatten(F.transform(tasks, lambda task: F.slice(task, len(_PLACES) + 1, _MISSED)))
        return F.struct(numbers.alias("each"), missing.alias(_MISSING))

    def with_sum(found: Column) -> Column:
        added = F.aggregate(
            found["each"], nothing, lambda total, task: F.zip_with(total, task, lambda one, more: one + more)
        )
        return F.struct(added.alias("sum"), found["each"].alias("each"), found[_MISSING].alias(_MISSING))

    # through arrays of one, for their elements are named by a function and worked out once
    both = F.transform(F.transform(F.array(F.collect_list(counters)), parted), with_sum)
    named = F.transform(
        both,
        lambda found: F.struct(*_named(found["sum"]), found["each"].alias(_SHARDS), found[_MISSING].alias(_MISSING)),
    )
    return F.get(named, F.lit(0)).alias(_TOTALS)


def _named(total: Column) -> list[Column]:
    values = [F.get(total, F.lit(place)) for place in range(len(_SUMMED))]
    return [
        (value if seconds else value.cast("bigint")).alias(counter)
        for value, (counter, seconds) in zip(values, _SUMMED.items(), strict=True)
    ]
