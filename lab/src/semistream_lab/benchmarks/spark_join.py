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

__all__ = ["BenchPlan", "bench_session", "bench_spark", "build_relation", "write_files"]

_OURS = "join"


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
                raw[key] = times(found[-self.plan.small_batches :], [], rows)["seconds"]
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
        query = writer(self.spark, self._schema, transform, source, checkpoint).trigger(availableNow=True).start()
        seen = 0
        while not query.awaitTermination(1):
            done = len(query.recentProgress)
            self.note("", done - seen)
            seen = done
        self.note("", len(rows) - seen)
        shutil.rmtree(checkpoint)
        # a result is to be shown, and says nothing of whose machine it is from
        explained = query._jsq.explainInternal(False).replace(str(self._place), "DIRECTORY")
        return counted_progress(title, query, rows), explained


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do nothing with the rows that come by."""
    yield from batches
