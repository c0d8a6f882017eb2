"""``semistream bench spark``: our join of a streaming DataFrame against Spark's own, in one run.

Both read the same files, one a micro-batch, and write to nowhere (``noop``), in one session of the same cores and heap:

* *ours*: `semistream.spark.join` with a relation, within ``memory``, by default with `adaptivejoin`;
* *stream-static*: Spark's join of the stream with R as Parquet, at its best: the micro-batch is broadcast and R is
  scanned, which inner joins allow. The benchmark looks at the plan, and refuses to go on with another.

A rate is the rows of a micro-batch over the median of what Spark reports as ``triggerExecution``, all of a
micro-batch from looking for files to the commit. The first micro-batches are not counted: they compile, and fill
our cache. Those that are come in turns, some of ours and some of Spark's, three times, for a machine is not as fast
all the time. Both outputs are counted, as every row has exactly one partner.

What a micro-batch costs whatever is in it is measured with empty ones and such of a few rows, through our join, through
``mapInArrow`` of a function that does nothing, with and without a shuffle, and without Python.
"""

from __future__ import annotations

import datetime
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from semistream.core.machine import describe_machine
from semistream.core.units import parse_bytes
from semistream.relation.relation import Relation
from semistream.spark.joining.stream_join import join
from semistream.spark.monitoring.metrics import StreamStatistics, counters_of
from semistream.spark.sessions import session
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

__all__ = ["BenchPlan", "bench_session", "bench_spark", "build_relation", "write_files"]

Note = Callable[[str, int], None]
Transform = Callable[[DataFrame], DataFrame]

_OURS, _COUNTED = "join", "counted"
_POLLING = "spark.sql.streaming.pollingDelay"
_PATIENCE = 600.0
"""Seconds in which a micro-batch must end."""


@contextmanager
def bench_session(plan: BenchPlan) -> Iterator[SparkSession]:
    """Start the session that all is measured in, and stop it in the end."""
    spark = session(
        "bench", master=f"local[{plan.cores}]", memory=plan.heap,
        settings={
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.streaming.numRecentProgressUpdates": str(2 * len(plan.file_rows) + 200),
            # Rows of this stream are of one size, so that no batch on its way to Python has to be weighed row by row.
            "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
            # Over TCP a task waits 40 ms for the last of its keys, until the worker has acknowledged what came before.
            "spark.python.unix.domain.socket.enabled": "true",
            # After a hundred micro-batches a query looks for old notes of its source in each; ours is the older one.
            "spark.sql.streaming.fileSource.log.deletion": "false",
            # a micro-batch is broadcast because we say so, however large it is
            "spark.sql.autoBroadcastJoinThreshold": "1g",
            "spark.sql.shuffle.partitions": str(plan.cores),
        },
    )  # fmt: skip
    try:
        yield spark
    finally:
        spark.stop()


def bench_spark(spark: SparkSession, plan: BenchPlan, directory: Path, note: Note = lambda *_: None) -> dict[str, Any]:
    """Measure both joins over files that are already there.

    Parameters
    ----------
    spark
        Of `bench_session`.
    plan, directory
        What `write_files` and `build_relation` were given.
    note
        Told what is done, and 1 each time a micro-batch has ended.

    Returns
    -------
    dict
        Ready for JSON: ``ours`` and ``stream_static``, rows a second; their ``ratio``; ``fixed``, seconds of a
        micro-batch with little or nothing in it; and what these are made of.
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
    """The queries, by turns and one after the other."""

    def __init__(self, spark: SparkSession, plan: BenchPlan, directory: Path, work: Path, note: Note) -> None:
        self.spark = spark
        self.plan = plan
        self.work = work
        self.note = note
        self._place = plan.place(directory)
        self._relation = plan.relation(directory)
        self._master = plan.master(directory)
        self._files = sorted(plan.stream(directory).glob("part-*.parquet"))[: len(plan.file_rows)]
        self._key = plan.workload(1).stream_key
        self._schema = spark.read.parquet(str(self._files[0])).schema

    def in_turns(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run our join and Spark's own, by turns: a machine that becomes slower or faster meets both alike.

        Our query stays up while the other has its turn, and finds its cache again.
        """
        plan = self.plan
        before = plan.filling + plan.warm_up
        mine, theirs = self._files[before : before + plan.batches], self._files[-plan.static_batches :]
        first = self._files[-plan.static_warm_up - plan.static_batches :][: plan.static_warm_up]
        ours: list[dict[str, Any]] = []
        static: list[dict[str, Any]] = []
        static_warm_up: list[dict[str, Any]] = []
        explained = ""
        with _Fed(self, "our join", self._joined) as query:
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
        return _times(ours, warm_up, plan.batch_rows) | {
            "hit_ratio": totals.hit_ratio,
            "pages_read": totals.pages_read / last.batches,
            "io_seconds": totals.io_seconds / last.batches,
            "busy_seconds": totals.busy_seconds / last.batches,
            "bytes_held": last.bytes_held,
            "memory": last.memory,
        }, _times(static, static_warm_up, plan.batch_rows) | {"explained": explained}

    def _stream_static(self, name: str, files: list[Path]) -> tuple[list[dict[str, Any]], str]:
        """Run Spark's own join; return the progress of its micro-batches, and its plan."""
        master = self.spark.read.parquet(str(self._master))

        def joined(stream: DataFrame) -> DataFrame:
            return F.broadcast(stream).join(master, self._key)

        rows = [self.plan.batch_rows] * len(files)
        found, explained = self._run("Spark's join", self._linked(name, files), joined, rows)
        if "BroadcastHashJoin" not in explained or "BuildLeft" not in explained:
            raise BenchError(f"Spark does not broadcast the micro-batch but plans this:\n{explained}")
        return found, explained

    def fixed_costs(self) -> dict[str, Any]:
        """Measure micro-batches of no rows and of a few."""
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
                raw[key] = _times(found[-self.plan.small_batches :], [], rows)["seconds"]
            medians = {key: statistics.median(seconds) for key, seconds in raw.items()}
            fixed[name] = medians | {"over_identity": medians["ours"] / medians["identity"], "seconds": raw}
        return fixed

    def _joined(self, stream: DataFrame) -> DataFrame:
        named: dict[str, Any] = {} if self.plan.algorithm is None else {"algorithm": self.plan.algorithm}
        with Relation.open(self._relation) as relation:
            memory = parse_bytes(self.plan.memory, of=relation.nbytes)  # exact, also of a small R
        return join(stream, self._relation, on=self._key, how="inner", memory=memory, metrics=_OURS, **named)

    def _linked(self, name: str, files: list[Path]) -> Path:
        """Return a directory of these files alone."""
        folder = self.work / name
        folder.mkdir()
        for file in files:
            os.link(file, folder / file.name)
        return folder

    def _run(self, title: str, source: Path, transform: Transform, rows: list[int]) -> tuple[list[dict[str, Any]], str]:
        """Run a query over all files of a directory, of ``rows`` each; return its progress and its plan."""
        checkpoint = Path(tempfile.mkdtemp(dir=self.work))
        self.note(title, 0)
        query = self.writer(transform, source, checkpoint).trigger(availableNow=True).start()
        seen = 0
        while not query.awaitTermination(1):
            done = len(query.recentProgress)
            self.note("", done - seen)
            seen = done
        self.note("", len(rows) - seen)
        shutil.rmtree(checkpoint)
        # a result is to be shown, and says nothing of whose machine it is from
        explained = query._jsq.explainInternal(False).replace(str(self._place), "DIRECTORY")
        return _counted_progress(title, query, rows), explained

    def writer(self, transform: Transform, source: Path, checkpoint: Path) -> DataStreamWriter:
        """Return what starts a query over the files of a directory, a micro-batch each."""
        stream = self.spark.readStream.schema(self._schema).option("maxFilesPerTrigger", 1).parquet(str(source))
        counted = transform(stream).observe(_COUNTED, F.count(F.lit(1)).alias("rows"))
        return counted.writeStream.format("noop").option("checkpointLocation", str(checkpoint))


class _Fed:
    """A query that is given files and waits for more."""

    def __init__(self, bench: _Bench, title: str, transform: Transform) -> None:
        self._title, self._note = title, bench.note
        self._source = bench.work / "fed"
        self._source.mkdir()
        usual = str(bench.spark.conf.get(_POLLING))
        bench.spark.conf.set(_POLLING, "2s")  # so seldom it looks for files while the other is measured
        try:
            self._query = bench.writer(transform, self._source, Path(tempfile.mkdtemp(dir=bench.work))).start()
        finally:
            bench.spark.conf.set(_POLLING, usual)
        self._rows: list[int] = []

    def feed(self, files: list[Path], rows: list[int]) -> list[dict[str, Any]]:
        """Give it files, of ``rows`` each, and return the progress of their micro-batches."""
        before = done = len(self._rows)
        self._rows += rows
        self._note(self._title, 0)
        for file in files:
            os.link(file, self._source / file.name)
        heard = time.monotonic()
        while done < len(self._rows):
            if self._query.awaitTermination(1) or time.monotonic() - heard > _PATIENCE:
                raise BenchError(
                    f"{self._title} stopped after {done} of {len(self._rows)} micro-batches, each a file of the "
                    "stream; remove the directory of the stream, or give another (--dir), and try again"
                )
            seen, done = done, max(done, self._done())
            if done > seen:
                heard = time.monotonic()
                self._note("", done - seen)
        return _counted_progress(self._title, self._query, self._rows)[before:]

    def _done(self) -> int:
        """Return how many micro-batches have ended; of the last alone, as all would be work while others are timed."""
        last = self._query.lastProgress
        if last is None:
            return 0
        return int(last["batchId"]) + ("addBatch" in last["durationMs"])

    def __enter__(self) -> _Fed:
        return self

    def __exit__(self, *_: object) -> None:
        self._query.stop()


def _counted_progress(title: str, query: StreamingQuery, rows: list[int]) -> list[dict[str, Any]]:
    """Return the progress of a query's micro-batches, which are to have so many rows each."""
    progress = _with_rows(query)
    counts = [one["observedMetrics"][_COUNTED]["rows"] for one in progress]
    if counts != rows:
        raise BenchError(f"{title} gave {counts} rows in its micro-batches, of {rows}: please report this as a bug")
    return progress


def _with_rows(query: StreamingQuery) -> list[dict[str, Any]]:
    return [one for one in query.recentProgress if "addBatch" in one["durationMs"]]


def _times(progress: list[dict[str, Any]], before: list[dict[str, Any]], rows: int) -> dict[str, Any]:
    """Return how long micro-batches of so many rows took, and those before them."""
    seconds = [one["durationMs"]["triggerExecution"] / 1e3 for one in progress]
    return {
        "rows_per_second": rows / statistics.median(seconds),
        "median_seconds": statistics.median(seconds),
        "seconds": seconds,
        "warm_up_seconds": [one["durationMs"]["triggerExecution"] / 1e3 for one in before],
        "milliseconds": [one["durationMs"] for one in progress],
    }


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do nothing with the rows that come by."""
    yield from batches
