"""Spark's stream-static join: a streaming query with one file per batch.

The micro-batch is broadcast, R is scanned. It has the memory of a JVM, which is not limited here, and all cores. The
time of a batch is what Spark reports for the micro-batch, from listing files to the commit. It runs only if requested:
``--only spark``.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from semistream_lab.benchmarks.join_rates import BenchError
from semistream_lab.benchmarks.peers.contestant import Contestant, Task
from semistream_lab.benchmarks.peers.dataset import KEY, Dataset

__all__ = ["CONTESTANTS", "SparkPeer"]


class SparkPeer(Contestant):
    """One query that runs as long as the contestant."""

    id = "spark"
    title = "Spark's stream-static join"
    needs = ("pyspark",)
    extra = "semistream[spark]"
    if_asked = True
    bounded = False

    @classmethod
    def prepare(cls, data: Dataset) -> None:
        pass

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        from semistream.spark.sessions import session

        settings = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}
        self._spark = session("peers", master="local[2]", memory="6g", settings=settings)
        self._place = Path(tempfile.mkdtemp(dir=task.data.place, prefix=".spark-"))
        (self._place / "stream").mkdir()
        self._query: Any = None
        self._batches = 0

    def _joined(self, stream: Any) -> Any:
        from pyspark.sql import functions as F

        return F.broadcast(stream).join(self._spark.read.parquet(str(self.task.data.parquet)), KEY)

    def _start(self, schema: Any) -> None:
        from pyspark.sql import functions as F

        stream = self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        joined = self._joined(stream.parquet(str(self._place / "stream")))
        counted = joined.observe("counted", F.count(F.lit(1)).alias("rows"))
        checkpoint = str(self._place / "checkpoint")
        self._query = counted.writeStream.format("noop").option("checkpointLocation", checkpoint).start()

    def join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Join outside of the query to get the rows, as the query's sink discards them.

        This is not timed.
        """
        file = self._place / "looked-at.parquet"
        pq.write_table(pa.Table.from_batches([batch]), file)
        yield from self._joined(self._spark.read.parquet(str(file))).toArrow().to_batches(max_chunksize=1 << 16)

    def timed(self, batch: pa.RecordBatch, take: Callable[[pa.RecordBatch], object]) -> float:
        file = self._place / f"{self._batches}.parquet"
        pq.write_table(pa.Table.from_batches([batch]), file)
        if self._query is None:
            self._start(self._spark.read.parquet(str(file)).schema)
        shutil.move(file, self._place / "stream" / file.name)
        self._batches += 1
        self._query.processAllAvailable()
        progress = [one for one in self._query.recentProgress if "addBatch" in one["durationMs"]][-1]
        rows = 0
        for piece in self.join(batch):
            rows += piece.num_rows
            take(piece)
        if progress["observedMetrics"]["counted"]["rows"] != rows:
            raise BenchError("the streaming query and the same join on a table gave different numbers of rows")
        return float(progress["durationMs"]["triggerExecution"]) / 1e3

    def files(self) -> list[Path]:
        return [self.task.data.parquet]

    def close(self) -> None:
        if self._query is not None:
            self._query.stop()
        shutil.rmtree(self._place)


CONTESTANTS: list[type[Contestant]] = [SparkPeer]
