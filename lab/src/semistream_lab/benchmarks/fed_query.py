"""A streaming query that gets its files in turns, and the times of its micro-batches."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from semistream_lab.benchmarks.join_rates import BenchError

__all__ = ["FedQuery", "Note", "Transform", "counted_progress", "times", "writer"]

Note = Callable[[str, int], None]
"""Called with the current step, and with 1 each time a micro-batch has ended."""
Transform = Callable[[DataFrame], DataFrame]

COUNTED = "counted"
_POLLING = "spark.sql.streaming.pollingDelay"
_RARELY = "2s"
"""Interval at which a query looks for new files. It is long, so that a query does not disturb the measurement of
another."""
_PATIENCE = 600.0
"""Timeout of a micro-batch, in seconds."""


def writer(
    spark: SparkSession, schema: StructType, transform: Transform, source: Path, checkpoint: Path
) -> DataStreamWriter:
    """Return the writer of a query over the files of a directory, one micro-batch per file, with its rows counted."""
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
    counted = transform(stream).observe(COUNTED, F.count(F.lit(1)).alias("rows"))
    return counted.writeStream.format("noop").option("checkpointLocation", str(checkpoint))


class FedQuery:
    """A query that processes the files it is given, then waits for more.

    Parameters
    ----------
    spark, schema
        The session, and the columns of the files.
    title
        Text to show while the query runs.
    transform
        Transformation of the stream.
    work
        Directory for the query's files and checkpoint.
    note
        See `Note`.
    """

    def __init__(
        self, spark: SparkSession, schema: StructType, title: str, transform: Transform, work: Path, note: Note
    ) -> None:
        self._title, self._note = title, note
        self._source = Path(tempfile.mkdtemp(dir=work))
        usual = str(spark.conf.get(_POLLING))
        spark.conf.set(_POLLING, _RARELY)
        try:
            checkpoint = Path(tempfile.mkdtemp(dir=work))
            self.query = writer(spark, schema, transform, self._source, checkpoint).start()
        finally:
            spark.conf.set(_POLLING, usual)
        self._rows: list[int] = []

    def feed(self, files: list[Path], rows: list[int]) -> list[dict[str, Any]]:
        """Give the query files with ``rows`` rows each, and return the progress of their micro-batches."""
        before = done = len(self._rows)
        self._rows += rows
        self._note(self._title, 0)
        for file in files:
            os.link(file, self._source / f"{len(list(self._source.iterdir())):05d}.parquet")
        heard = time.monotonic()
        while done < len(self._rows):
            if self.query.awaitTermination(1) or time.monotonic() - heard > _PATIENCE:
                raise BenchError(
                    f"{self._title} stopped after {done} of {len(self._rows)} micro-batches (one per file of the "
                    "stream); remove the directory of the stream, or give another (--dir), and try again"
                )
            seen, done = done, max(done, self._done())
            if done > seen:
                heard = time.monotonic()
                self._note("", done - seen)
        return counted_progress(self._title, self.query, self._rows)[before:]

    def _done(self) -> int:
        """Return the number of ended micro-batches.

        Read only the last progress: all would cost time during a run.
        """
        last = self.query.lastProgress
        if last is None:
            return 0
        return int(last["batchId"]) + ("addBatch" in last["durationMs"])

    def __enter__(self) -> FedQuery:
        return self

    def __exit__(self, *_: object) -> None:
        self.query.stop()


def counted_progress(title: str, query: StreamingQuery, rows: list[int]) -> list[dict[str, Any]]:
    """Return the progress of a query's micro-batches; raise unless their row counts are ``rows``."""
    progress: list[dict[str, Any]] = [one for one in query.recentProgress if "addBatch" in one["durationMs"]]
    counts = [one["observedMetrics"][COUNTED]["rows"] for one in progress]
    if counts != rows:
        raise BenchError(f"{title} gave {counts} rows in its micro-batches, not {rows}; please report this as a bug")
    return progress


def times(progress: list[dict[str, Any]], before: list[dict[str, Any]], rows: int) -> dict[str, Any]:
    """Return the times of micro-batches of ``rows`` rows, and of the warm-up before them."""
    seconds = [one["durationMs"]["triggerExecution"] / 1e3 for one in progress]
    return {
        "rows_per_second": rows / statistics.median(seconds),
        "median_seconds": statistics.median(seconds),
        "seconds": seconds,
        "warm_up_seconds": [one["durationMs"]["triggerExecution"] / 1e3 for one in before],
        "milliseconds": [one["durationMs"] for one in progress],
    }
