"""How rows arrive in a task: the time of their micro-batch costs no new code."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import semistream
from semistream.spark.joining.arrival import Arrival
from semistream.spark.monitoring.metrics import counters_of

pytestmark = pytest.mark.spark


def test_later_micro_batches_run_code_that_is_compiled_already(spark: SparkSession, tmp_path: Path) -> None:
    relation, source = tmp_path / "r", tmp_path / "s"
    semistream.Relation.build(pa.table({"k": range(500), "v": range(500)}), relation, ["k"]).close()
    source.mkdir()
    stream = spark.readStream.schema("k long").option("maxFilesPerTrigger", 1).parquet(str(source))
    joined = semistream.join(stream, str(relation), on="k", memory="2MB", metrics="m")
    query = joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    compiled = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    counts = []
    try:
        for number in range(5):
            pq.write_table(pa.table({"k": range(number, number + 400)}), tmp_path / "next")
            (tmp_path / "next").rename(source / f"{number}.parquet")  # whole at once
            query.processAllAvailable()
            counts.append(compiled.getCount())
    finally:
        query.stop()
    assert counts[-1] == counts[2] > 0
    told = counters_of(query.lastProgress["observedMetrics"]["m"])
    assert told is not None
    assert told["rows_in"] == told["rows_out"] == 400


def test_part_and_moment_are_told_from_one_number_also_of_guests() -> None:
    number = (1_700_000_000_123 << 20) | 77
    assert Arrival.of(pa.array([number])) == Arrival.of(pa.array([~number])) == Arrival(77, 1_700_000_000_123)
