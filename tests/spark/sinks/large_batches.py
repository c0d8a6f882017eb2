"""One micro-batch of many rows into each sink: all arrive, and the driver's memory does not grow with it.

``make large ROWS=10000000``: ten million rows, and a tenth of them first to compare with. Lines of JSON tell what the
driver's two processes took at most (Python, and the JVM, in which on one machine tasks run too: its heap is 512 MB).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("pyspark")

from conftest import SPARK_SETTINGS
from pyspark.sql import DataFrame, SparkSession

import semistream.spark
from kafka_broker import Broker, connector_jars
from semistream.spark.sinks import DatabaseSink, DeltaSink, ParquetSink, write_stream
from servers import Server

ROWS = int(os.environ.get("SEMISTREAM_ROWS", "10000000"))
WIDE = 60
"""Characters of a row's text: of ten million rows they alone are more than the heap."""


@pytest.fixture(scope="module")
def large() -> Iterator[SparkSession]:
    settings = {**SPARK_SETTINGS, "spark.driver.extraClassPath": ":".join(map(str, connector_jars()))}
    session = semistream.spark.session("large", master="local[2]", memory="512m", settings=settings)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def files(large: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Return where so many rows lie, written by the first that asks."""
    folder = tmp_path_factory.mktemp("rows")

    def written(rows: int) -> Path:
        if not (folder / f"{rows}").exists():
            text = f"repeat(sha2(cast(id AS string), 256), 1 + {WIDE // 64})"
            made = large.range(0, rows, 1, 8).selectExpr("id", f"left({text}, {WIDE}) AS note", "id * 0.25D AS amount")
            made.write.parquet(str(folder / f"{rows}"))
        return folder / f"{rows}"

    return written


class Watched:
    """The most memory that a process has taken since."""

    def __init__(self, process: psutil.Process) -> None:
        self._folder = Path(f"/proc/{process.pid}")
        (self._folder / "clear_refs").write_text("5")
        self._before = self._most()

    def _most(self) -> int:
        status = (self._folder / "status").read_text().splitlines()
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024

    @property
    def grown(self) -> int:
        return self._most() - self._before


def run(stream: DataFrame, sink: Any, folder: Path, broker: str | None) -> None:
    if broker is None:
        writer = write_stream(stream, sink)
    else:
        messages = stream.selectExpr("cast(id AS string) AS key", "to_json(struct(*)) AS value").writeStream
        writer = messages.format("kafka").option("kafka.bootstrap.servers", broker).option("topic", sink)
    query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.lastProgress["batchId"] == 0


@pytest.mark.parametrize("kind", ["delta", "parquet", "postgresql", "mariadb", "kafka"])
def test_the_driver_does_not_grow_with_a_micro_batch(
    large: SparkSession, files: Callable[[int], Path], tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    java = next(child for child in psutil.Process().children(recursive=True) if child.name() == "java")
    grown = []
    for rows in (ROWS // 10, ROWS):
        stream = large.readStream.schema("id long, note string, amount double").parquet(str(files(rows)))
        broker: Broker | None = None
        if kind in ("postgresql", "mariadb"):
            server: Server = request.getfixturevalue(kind)
            sink: Any = DatabaseSink(server.url, f"facts_{rows}", password=server.password)
        elif kind == "kafka":
            broker, sink = request.getfixturevalue("kafka"), f"facts-{rows}"
        else:
            sink = (DeltaSink if kind == "delta" else ParquetSink)(tmp_path / f"facts-{rows}")
        driver, heap, began = Watched(psutil.Process()), Watched(java), time.monotonic()
        run(stream, sink, tmp_path / f"check-{rows}", broker.servers if broker else None)
        seconds = time.monotonic() - began
        grown.append(driver.grown)
        told = {"sink": kind, "rows": rows, "seconds": round(seconds, 1), "python": driver.grown, "jvm": heap.grown}
        print(f"\n{json.dumps(told)}", flush=True)
        assert found(large, sink, kind, broker) == (rows, rows * (rows - 1) // 2)
    assert grown[1] <= max(2 * grown[0], grown[0] + (16 << 20))


def found(spark: SparkSession, sink: Any, kind: str, broker: Broker | None) -> tuple[int, int]:
    """Return how many rows are there, and the sum of their ids."""
    if isinstance(sink, DatabaseSink):
        with sink.database.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT count(*), sum(id) FROM {sink.table.name}")
            count, total = cursor.fetchone()
            return int(count), int(total)
    if broker is not None:
        topic = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.servers).option("subscribe", sink)
        rows = topic.load().selectExpr("cast(cast(key AS string) AS long) AS id")
    elif kind == "delta":
        from deltalake import DeltaTable

        rows = spark.read.parquet(*DeltaTable(sink.path).file_uris())
    else:
        rows = spark.read.parquet(str(sink.path))
    count, total = rows.selectExpr("count(*)", "sum(id)").head()
    return count, total
