from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from feeding import patiently
from semistream.spark.features import ReadAllAvailable, ReadMaxRows
from semistream.spark.sales_source import SalesDataSource, SalesOptions
from semistream.workloads import BurstyArrivals, SalesStream, ZipfKeys

OPTIONS = {
    "size": "5000", "exponent": "1.1", "rows": "90000", "seed": "3", "absentShare": "0.1", "nullShare": "0.05",
    "partitions": "2",
}  # fmt: skip


def plain() -> pa.Table:
    """The same stream without Spark."""
    return SalesStream(
        ZipfKeys(5000, 1.1, "random", 3), 90_000, BurstyArrivals(10_000.0, seed=3), absent_share=0.1, null_share=0.05,
        seed=3,
    ).table()  # fmt: skip


def by_id(frame: DataFrame) -> pa.Table:
    return frame.toArrow().sort_by("sale_id").combine_chunks()


@pytest.mark.spark
def test_table_is_the_stream_without_spark(spark: SparkSession) -> None:
    found = by_id(spark.read.format("semistream-sales").options(**OPTIONS).load())
    assert found.cast(plain().schema).equals(plain().combine_chunks())


@pytest.mark.spark
def test_stopped_and_restarted_query_reads_every_sale_once(spark: SparkSession, tmp_path: Path) -> None:
    def run(rows: int, before: int = 0) -> list[int]:
        options = OPTIONS | {"rows": str(rows), "rowsPerBatch": "40000", "rowsPerSecond": "10000"}
        writer = (
            spark.readStream.format("semistream-sales").options(**options).load()
            .writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "sales"))
        )  # fmt: skip

        taken: list[int] = []

        def to_its_end() -> None:
            query = writer.trigger(availableNow=True).start()
            try:
                query.awaitTermination()
            finally:
                taken.extend(one["numInputRows"] for one in query.recentProgress if one["numInputRows"])

        while sum(taken) < rows - before:  # before Spark 4.2, a run is one micro-batch
            patiently(to_its_end)
        return taken

    assert run(50_000) == [40_000, 10_000]
    # The stream has grown; the query goes on where it was, in the middle of a block of arrivals.
    assert run(90_000, 50_000) == [40_000]
    found = by_id(spark.read.parquet(str(tmp_path / "sales")))
    assert found.cast(plain().schema).equals(plain().combine_chunks())


@pytest.mark.spark
def test_unknown_option_is_named(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="no option 'rowspersec'; it has size"):
        spark.read.format("semistream-sales").option("rowsPerSec", "5").load()


def reader(**options: str):
    return SalesDataSource(options).streamReader(SalesDataSource(options).schema())


def test_any_cut_gives_the_same_sales() -> None:
    source = reader(**OPTIONS)
    whole = plain().combine_chunks()
    # Backwards too: a replay goes to a place that the process has passed.
    for start, end in [(0, 1), (65_530, 65_540), (70_000, 90_000), (1, 65_530), (65_530, 65_540)]:
        parts = source.partitions({"sale": start}, {"sale": end})
        assert parts[0].start == start
        assert parts[-1].stop == end
        found = pa.Table.from_batches([batch for part in parts for batch in source.read(part)])
        assert found.combine_chunks().equals(whole.slice(start, end - start).combine_chunks())
    assert source.partitions({"sale": 7}, {"sale": 7}) == []


def test_offsets_keep_to_limits() -> None:
    source = reader(**OPTIONS)
    assert source.latestOffset({"sale": 0}, ReadAllAvailable()) == {"sale": 90_000}
    assert source.latestOffset({"sale": 10}, ReadMaxRows(100)) == {"sale": 110}
    assert source.latestOffset({"sale": 90_000}, ReadMaxRows(100)) == {"sale": 90_000}
    endless = reader(rowsPerBatch="500")
    assert isinstance(endless.getDefaultReadLimit(), ReadMaxRows)
    assert endless.latestOffset({"sale": 5}, ReadAllAvailable()) == {"sale": 505}


def test_pace_follows_the_clock() -> None:
    started = time.monotonic()
    source = reader(rowsPerSecond="50000", arrivals="constant")
    # A query that starts again finds the stream where it left it.
    begin = {"sale": 1_000_000}
    come = source.latestOffset(begin, ReadAllAvailable())["sale"] - 1_000_000
    assert 0 <= come <= (time.monotonic() - started) * 50_000 + 2
    before = time.monotonic()
    first = source.latestOffset(begin, ReadAllAvailable())["sale"]
    time.sleep(0.2)
    second = source.latestOffset(begin, ReadAllAvailable())["sale"]
    passed = time.monotonic() - before
    assert 0.2 * 50_000 - 2 <= second - first <= passed * 50_000 + 2


def test_event_times_follow_the_pace() -> None:
    options = SalesOptions.parse({"rowsPerSecond": "1000", "rows": "20000", "seed": "5"})
    times = options.stream.table()["event_time"]
    seconds = (pc.max(times).as_py() - pc.min(times).as_py()).total_seconds()
    assert 10 < seconds < 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "without rows, rowsPerSecond and rowsPerBatch"),
        ({"rows": "0"}, "rows of semistream-sales cannot be '0'"),
        ({"rows": "many"}, "cannot be 'many'"),
        ({"rows": "5", "rowsPerSecond": "-1"}, "positive number of tuples"),
        ({"rows": "5", "absentShare": "0.7", "nullShare": "0.7"}, "shares of at most 1"),
        ({"rows": "5", "shape": "round"}, "cannot be 'round'"),
    ],
)
def test_bad_options_are_explained(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SalesDataSource(options)


def test_endless_stream_is_no_table_and_never_all_available() -> None:
    source = SalesDataSource({"rowsPerBatch": "5"})
    with pytest.raises(ValueError, match="give the option rows"):
        source.reader(source.schema()).partitions()
    with pytest.raises(ValueError, match="give the option rows"):
        source.streamReader(source.schema()).prepareForTriggerAvailableNow()
