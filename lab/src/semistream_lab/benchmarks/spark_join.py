"""``semistream bench spark``: compare our join of a streaming DataFrame with Spark's own, in one run.

Both read the same files, one per micro-batch, and discard the results (``noop``). Both run in one session, with the
same cores and heap:

* *ours*: `semistream.spark.join` with a relation, within ``memory``, by default with `adaptivejoin`;
* *stream-static*: Spark's join of the stream with R as Parquet, with its best plan: the micro-batch is broadcast and R
  is scanned, which inner joins allow. The benchmark checks the plan and stops if Spark chose another.

A rate is the rows of a micro-batch divided by the median of ``triggerExecution``, which Spark reports: all of a
micro-batch from listing files to the commit. The first micro-batches are not counted: they compile code and fill our
cache. The measured ones run in three turns, some of ours and some of Spark's in each, because the speed of a machine
varies. The rows of both outputs are counted, as every row has exactly one match.

The fixed cost of a micro-batch is measured with empty and very small micro-batches: through our join, through
``mapInArrow`` with a function that does nothing (with and without a shuffle), and without Python.
"""

from __future__ import annotations

import datetime
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from semistream.core.machine import describe_machine
from semistream.core.units import parse_bytes
from semistream.relation.relation import Relation
from semistream.spark.joining.stream_join import join
from semistream.spark.monitoring.metrics import StreamStatistics, counters_of
from semistream.spark.sessions import session
from semistream_lab.benchmarks.fed_query import FedQuery, Note, Transform, counted_progress, times, writer
from semistream_lab.benchmarks.join_rates import BenchError, code_version
from semistream_lab.benchmarks.spark_data import (
    FEW_ROWS,
    TURNS,
    BenchPlan,
    build_relation,
    of_turn,
    write_files,
    write_small,
)

__all__ = ["BenchPlan", "bench_session", "bench_spark", "build_relation", "our_join", "write_files"]

_OURS = "join"


@contextmanager
def bench_session(plan: BenchPlan) -> Iterator[SparkSession]:
    """Start the session for all measurements, and stop it at the end."""
    spark = session(
        "bench", master=f"local[{plan.cores}]", memory=plan.heap,
        settings={
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.streaming.numRecentProgressUpdates": str(2 * len(plan.file_rows) + 200),
            # Rows of this stream have one size, so Spark need not limit the bytes of batches to Python row by row.
            "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
            # Over TCP a task waits 40 ms for its last keys, until the worker has acknowledged the data before them.
            "spark.python.unix.domain.socket.enabled": "true",
            # Otherwise a query deletes old metadata of its source in every micro-batch after the 100th. Only our query
            # runs that long, because Spark's join is a new query in each turn.
            "spark.sql.streaming.fileSource.log.deletion": "false",
            # a micro-batch is broadcast because of our hint, whatever its size
            "spark.sql.autoBroadcastJoinThreshold": "1g",
            "spark.sql.shuffle.partitions": str(plan.cores),
        },
    )  # fmt: skip
    try:
        yield spark
    finally:
        spark.stop()


def bench_spark(spark: SparkSession, plan: BenchPlan, directory: Path, note: Note = lambda *_: None) -> dict[str, Any]:
    """Measure both joins on existing files.

    Parameters
    ----------
    spark
        The session of `bench_session`.
    plan, directory
        The same as for `write_files` and `build_relation`.
    note
        Called with the current step, and with 1 each time a micro-batch has ended.

    Returns
    -------
    dict
        Ready for JSON: ``ours`` and ``stream_static`` in rows per second; their ``ratio``; ``fixed``, the seconds of an
        empty or small micro-batch; and the raw times behind them.
    """
    with tempfile.TemporaryDirectory(dir=plan.place(directory)) as temporary:
        bench = _Bench(spark, plan, directory, Path(temporary), note)
        ours, static = bench.in_turns()
        fixed = bench.fixed_costs()
    with Relation.open(plan.relation(directory)) as relation:
        described = {"bytes": relation.nbytes, "pages": relation.page_count, "index_bytes": relation.index_bytes}
    return {
        "ours": ours["rows_per_second"],
        "stream_static": static["rows_per_second"],
        "ratio": ours["rows_per_second"] / static["rows_per_second"],
        "fixed": fixed,
        "joins": {"ours": ours, "stream_static": static},
        "plan": asdict(plan),
        "relation": described,
        "machine": describe_machine(directory),
        "spark": spark.version,
        "commit": code_version(),
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


class _Bench:
    """Runs the queries: the two joins in turns, the others one after another."""

    def __init__(self, spark: SparkSession, plan: BenchPlan, directory: Path, work: Path, note: Note) -> None:
        self.spark = spark
        self.plan = plan
        self.work = work
        self.note = note
        self._place = plan.place(directory)
        self._directory = directory
        self._master = plan.master(directory)
        self._files = sorted(plan.stream(directory).glob("part-*.parquet"))[: len(plan.file_rows)]
        self._key = plan.workload(1).stream_key
        self._schema = spark.read.parquet(str(self._files[0])).schema

    def in_turns(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run our join and Spark's own in turns, so that changes of the machine's speed affect both equally.

        Our query keeps running during the turns of the other, and keeps its cache.
        """
        plan = self.plan
        before = plan.filling + plan.warm_up
        mine, theirs = self._files[before : before + plan.batches], self._files[-plan.static_batches :]
        first = self._files[-plan.static_warm_up - plan.static_batches :][: plan.static_warm_up]
        ours: list[dict[str, Any]] = []
        static: list[dict[str, Any]] = []
        static_warm_up: list[dict[str, Any]] = []
        explained = ""
        with FedQuery(self.spark, self._schema, "our join", self._joined, self.work, self.note) as query:
            warm_up = query.feed(self._files[:before], plan.file_rows[:before])
            for turn in range(TURNS):
                part = of_turn(mine, turn)
                ours += query.feed(part, [plan.batch_rows] * len(part))
                part = of_turn(theirs, turn)
                if part:
                    unmeasured = first[:1] if static else first
                    found, explained = self._stream_static(f"static-{turn}", [*unmeasured, *part])
                    static_warm_up += found[: len(unmeasured)]
                    static += found[len(unmeasured) :]
        last = StreamStatistics()
        for progress in ours:
            last.add(counters_of(progress["observedMetrics"][_OURS]) or {})
        totals = last.totals
        return times(ours, warm_up, plan.batch_rows) | {
            "hit_ratio": totals.hit_ratio,
            "pages_read": totals.pages_read / last.batches,
            "io_seconds": totals.io_seconds / last.batches,
            "busy_seconds": totals.busy_seconds / last.batches,
            "bytes_held": last.bytes_held,
            "memory": last.memory,
        }, times(static, static_warm_up, plan.batch_rows) | {"explained": explained}

    def _stream_static(self, name: str, files: list[Path]) -> tuple[list[dict[str, Any]], str]:
        """Run Spark's own join; return the progress of its micro-batches and its plan."""
        master = self.spark.read.parquet(str(self._master))

        def joined(stream: DataFrame) -> DataFrame:
            return F.broadcast(stream).join(master, self._key)

        rows = [self.plan.batch_rows] * len(files)
        found, explained = self._run("Spark's join", self._linked(name, files), joined, rows)
        if "BroadcastHashJoin" not in explained or "BuildLeft" not in explained:
            raise BenchError(f"Spark does not broadcast the micro-batch; its plan is:\n{explained}")
        return found, explained

    def fixed_costs(self) -> dict[str, Any]:
        """Measure micro-batches with no rows and with few rows."""
        contestants: dict[str, Transform] = {
            "no_python": lambda stream: stream,
            "identity": lambda stream: stream.mapInArrow(_same, stream.schema),
            "shuffled_identity": lambda stream: stream.repartition(self.plan.shards, self._key).mapInArrow(
                _same, stream.schema
            ),
            "ours": self._joined,
        }
        fixed: dict[str, Any] = {}
        for name, rows in (("empty", 0), (f"{FEW_ROWS}_rows", FEW_ROWS)):
            source = self.work / name
            count = self.plan.small_warm_up + self.plan.small_batches
            write_small(self.plan, source, rows, count)
            raw = {}
            for key, transform in contestants.items():
                found, _ = self._run(f"{name.replace('_', ' ')}: {key}", source, transform, [rows] * count)
                raw[key] = times(found[-self.plan.small_batches :], [], rows)["seconds"]
            medians = {key: statistics.median(seconds) for key, seconds in raw.items()}
            fixed[name] = medians | {"over_identity": medians["ours"] / medians["identity"], "seconds": raw}
        return fixed

    def _joined(self, stream: DataFrame) -> DataFrame:
        return our_join(stream, self.plan, self._directory)

    def _linked(self, name: str, files: list[Path]) -> Path:
        """Return a directory with only these files."""
        folder = self.work / name
        folder.mkdir()
        for file in files:
            os.link(file, folder / file.name)
        return folder

    def _run(self, title: str, source: Path, transform: Transform, rows: list[int]) -> tuple[list[dict[str, Any]], str]:
        """Run a query over all files of a directory, with ``rows`` rows each; return its progress and its plan."""
        checkpoint = Path(tempfile.mkdtemp(dir=self.work))
        self.note(title, 0)
        query = writer(self.spark, self._schema, transform, source, checkpoint).trigger(availableNow=True).start()
        seen = 0
        while not query.awaitTermination(1):
            done = len(query.recentProgress)
            self.note("", done - seen)
            seen = done
        self.note("", len(rows) - seen)
        shutil.rmtree(checkpoint)
        # results are published, so they must not identify the machine
        explained = query._jsq.explainInternal(False).replace(str(self._place), "DIRECTORY")
        return counted_progress(title, query, rows), explained


def our_join(stream: DataFrame, plan: BenchPlan, directory: Path) -> DataFrame:
    """Join a stream of the plan's rows with R."""
    named: dict[str, Any] = {} if plan.algorithm is None else {"algorithm": plan.algorithm}
    place = plan.relation(directory)
    with Relation.open(place) as relation:
        memory = parse_bytes(plan.memory, of=relation.nbytes)  # exact even for a small R
    return join(stream, place, on=plan.workload(1).stream_key, how="inner", memory=memory, metrics=_OURS, **named)


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the rows unchanged."""
    yield from batches
