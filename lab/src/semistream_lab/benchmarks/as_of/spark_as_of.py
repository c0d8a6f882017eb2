"""``semistream bench spark --as-of``: our as-of join of a stream with a history, and three others, in one run.

All read the same files, one per micro-batch, and discard the results (``noop``), in one session:

* *ours*: `semistream.join` with ``as_of``, within ``memory``;
* *equality*: our equality join with the same rows, by number, within the same memory;
* *spark_as_of*: Spark's ``LEFT ASOF JOIN`` of the stream with R as Parquet;
* *spark_filter*: Spark's equality join with a filter on the interval; the micro-batch is broadcast and R is scanned.

A rate is the rows of a micro-batch divided by the median of ``triggerExecution``. The queries take turns. The rows of
all outputs are counted, as every event has exactly one match.
"""

from __future__ import annotations

import datetime
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from semistream.core.machine import describe_machine
from semistream.core.units import parse_bytes
from semistream.relation.relation import Relation
from semistream.spark.joining.stream_join import join
from semistream_lab.benchmarks.as_of.as_of_data import AsOfPlan
from semistream_lab.benchmarks.fed_query import FedQuery, Note, Transform, times
from semistream_lab.benchmarks.join_rates import code_version

__all__ = ["bench_as_of"]

_TURNS = 2
_COLUMNS = ["since", "until", "price", "name"]
_ENABLED = "spark.sql.join.asofJoin.enabled"


def bench_as_of(
    spark: SparkSession, plan: AsOfPlan, directory: Path, note: Note = lambda *_: None, *, only: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Measure all joins on existing files, or ``only`` some.

    Returns
    -------
    dict
        Ready for JSON: rates in rows per second; ``ratio``, ours over the faster of Spark's; ``over_equality``; and the
        raw times behind them.
    """
    joins = _Joins(spark, plan, directory)
    contestants: dict[str, Transform] = {
        "ours": joins.ours, "equality": joins.equality, "spark_as_of": joins.by_spark,
        "spark_filter": joins.by_spark_filter,
    }  # fmt: skip
    contestants = {name: join for name, join in contestants.items() if name in (only or contestants)}
    files = sorted(plan.stream(directory).glob("part-*.parquet"))[: len(plan.file_rows)]
    schema = spark.read.parquet(str(files[0])).schema
    start = len(plan.file_rows) - max(plan.batches, plan.spark_batches + 1)
    before: dict[str, list[dict[str, Any]]] = {}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
    spark.conf.set(_ENABLED, "true")
    try:
        with tempfile.TemporaryDirectory(dir=plan.place(directory)) as temporary, ExitStack() as stack:
            queries = {
                name: stack.enter_context(FedQuery(spark, schema, name, transform, Path(temporary), note))
                for name, transform in contestants.items()
            }
            for name, query in queries.items():
                # Spark's own joins keep only compiled code between micro-batches.
                some = range(start) if name in ("ours", "equality") else range(start, start + 1)
                before[name] = query.feed([files[at] for at in some], [plan.file_rows[at] for at in some])
            for turn in range(_TURNS):
                for name, query in queries.items():
                    own = name in ("ours", "equality")
                    first, count = (start, plan.batches) if own else (start + 1, plan.spark_batches)
                    part = files[first + turn * count // _TURNS : first + (turn + 1) * count // _TURNS]
                    found[name] += query.feed(part, [plan.batch_rows] * len(part))
    finally:
        spark.conf.unset(_ENABLED)
    measured = {name: times(progress, before[name], plan.batch_rows) for name, progress in found.items()}
    rates = {name: one["rows_per_second"] for name, one in measured.items()}
    with Relation.open(plan.relation(directory, "history")) as relation:
        described = {"bytes": relation.nbytes, "pages": relation.page_count, "index_bytes": relation.index_bytes}
    theirs = [rate for name, rate in rates.items() if name.startswith("spark")]
    return {
        **rates,
        "ratio": rates["ours"] / max(theirs) if theirs and "ours" in rates else None,
        "over_equality": rates["ours"] / rates["equality"] if {"ours", "equality"} <= rates.keys() else None,
        "joins": measured, "plan": asdict(plan), "relation": described, "machine": describe_machine(directory),
        "spark": spark.version, "commit": code_version(),
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


class _Joins:
    """The same join in four ways."""

    def __init__(self, spark: SparkSession, plan: AsOfPlan, directory: Path) -> None:
        self._spark, self._plan, self._directory = spark, plan, directory

    def _memory(self, path: Path) -> int:
        with Relation.open(path) as relation:
            return parse_bytes(self._plan.memory, of=relation.nbytes)  # exact even for a small R

    def ours(self, events: DataFrame) -> DataFrame:
        path = self._plan.relation(self._directory, "history")
        return join(events, path, on="id", as_of="at", memory=self._memory(path), columns=_COLUMNS, metrics="join")

    def equality(self, events: DataFrame) -> DataFrame:
        path = self._plan.relation(self._directory, "rows")
        return join(events, path, on="row", memory=self._memory(path), columns=_COLUMNS, metrics="join")

    def _master(self) -> DataFrame:
        return self._spark.read.parquet(str(self._plan.master(self._directory))).select("id", *_COLUMNS)

    def by_spark(self, events: DataFrame) -> DataFrame:
        events.createOrReplaceTempView("bench_events")
        self._master().createOrReplaceTempView("bench_history")
        columns = ", ".join(f"r.{name}" for name in _COLUMNS)
        return self._spark.sql(
            f"SELECT s.*, {columns} FROM bench_events s LEFT ASOF JOIN bench_history r "
            "MATCH_CONDITION (s.at >= r.since) ON s.id = r.id"
        )

    def by_spark_filter(self, events: DataFrame) -> DataFrame:
        s, r = F.broadcast(events).alias("s"), self._master().alias("r")
        valid = (F.col("s.at") >= F.col("r.since")) & (F.col("r.until").isNull() | (F.col("s.at") < F.col("r.until")))
        joined = s.join(r, (F.col("s.id") == F.col("r.id")) & valid)
        return joined.select("s.*", *(f"r.{name}" for name in _COLUMNS))
