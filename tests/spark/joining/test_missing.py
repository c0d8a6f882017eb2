"""Rows without a partner: NULLs, dropped, dead letters, or parked until R has one."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

import semistream
from feeding import patiently
from semistream.core.errors import BudgetTooSmallError, KeyColumnError, UnsupportedJoinError
from semistream.relation.relation import Relation
from semistream.spark.joining.missing import MissingRule, missing_rule
from semistream.spark.sinks import BatchSink, ParquetSink, SinkError, write_stream

Outcome = Counter[tuple[Any, ...]]

KNOWN = 100
SALES = "id long, store string, n long"


@pytest.fixture
def products(tmp_path: Path) -> Path:
    Relation.build(
        pa.table({"id": np.arange(KNOWN), "name": pa.array([None, *(f"p{key}" for key in range(1, KNOWN))])}),
        tmp_path / "products", "id", shards=2, page_size=512,
    )  # fmt: skip
    return tmp_path / "products"


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    Relation.build(pa.table({"store": ["a", "b"], "city": ["Ulm", "Bonn"]}), tmp_path / "stores", "store")
    return tmp_path / "stores"


def more_sales(folder: Path, number: int) -> list[tuple[int | None, str, int]]:
    """Write a file of the stream: products 100 to 149 are unknown, store c too; one key is NULL."""
    generator = np.random.default_rng(number)
    keys = [None, *map(int, generator.integers(0, KNOWN + 50, 200))]
    rows = [(key, "abc"[key % 3 if key else 0], 1000 * number + at) for at, key in enumerate(keys)]
    (folder / "sales").mkdir(exist_ok=True)
    columns = dict(zip(("id", "store", "n"), zip(*rows, strict=True), strict=True))
    schema = pa.schema({"id": pa.int64(), "store": pa.string(), "n": pa.int64()})
    file = folder / "sales" / f"{number}.parquet"
    pq.write_table(pa.table(columns, schema=schema), file)
    os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark takes the oldest first
    return rows


def sales(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SALES).option("maxFilesPerTrigger", 1).parquet(str(folder / "sales"))


def name_of(key: int | None, known: int = KNOWN) -> str | None:
    return None if key is None or key == 0 or key >= known else f"p{key}"


def late(first: int, last: int, prefix: str = "p") -> pa.Table:
    return pa.table({"id": np.arange(first, last), "name": [f"{prefix}{key}" for key in range(first, last)]})


class Seen:
    """A sink that notes what every try of a batch had."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Outcome]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        outcome = Counter(tuple(row) for row in frame.collect())
        self.batches.setdefault(batch, []).append(outcome)

    @property
    def all(self) -> Outcome:
        return sum((tries[-1] for tries in self.batches.values()), Counter())


def run(frame: DataFrame, folder: Path, seen: Seen) -> None:
    """Run a query to its end."""
    writer = frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(folder / "checkpoint"))
    patiently(lambda: writer.trigger(availableNow=True).start().awaitTermination())


def uncommit(folder: Path, batch: int) -> None:
    """As if the driver had died after a batch was processed, and before that was noted."""
    (folder / "checkpoint/commits" / str(batch)).unlink()
    (folder / "checkpoint/commits" / f".{batch}.crc").unlink(missing_ok=True)


def test_what_goes_together() -> None:
    assert missing_rule("left", "null") == missing_rule("left", None) == missing_rule(None, None) == MissingRule("null")
    assert missing_rule("inner", "drop") == missing_rule("inner", None) == MissingRule("drop")
    assert missing_rule("inner", "dead_letter") == MissingRule("dead_letter")
    assert missing_rule(None, "park", "2 hours") == missing_rule("left", "park", 7200) == MissingRule("null", 7_200_000)
    assert missing_rule("inner", "park", "1 day 1 second") == MissingRule("drop", 86_401_000)
    for arguments, message in {
        ("inner", "null"): "how='inner' does not keep rows .* on_missing='null' keeps them",
        ("left", "drop"): "leave out one",
        ("left", "dead_letter"): "takes them out as dead letters",
        ("left", "park", "1 hour", "dead_letter"): "after_park='dead_letter'",
        (None, "park"): "needs park_for",
        (None, "park", "a while"): "is not a duration",
        (None, "park", "0 seconds"): "more than 0 s",
        (None, "null", "1 hour"): "park_for is for parked rows",
        (None, "ignore"): "must be one of null, drop, dead_letter, park",
        ("outer", None): "must be 'inner' or 'left'",
    }.items():
        with pytest.raises(UnsupportedJoinError, match=message):
            missing_rule(*arguments)


@pytest.mark.spark
def test_what_cannot_be_is_refused(spark: SparkSession, tmp_path: Path, products: Path) -> None:
    more_sales(tmp_path, 0)
    stream, batch = sales(spark, tmp_path), spark.range(3)
    park = {"on": "id", "on_missing": "park", "park_for": "1 hour"}
    with pytest.raises(BudgetTooSmallError, match="75% being for new rows") as first:
        semistream.join(stream, products, memory="10kB", **park)
    with pytest.raises(BudgetTooSmallError, match="25% being for parked rows") as second:
        semistream.join(stream, products, memory=first.value.minimum, **park)
    semistream.join(stream, products, memory=second.value.minimum, **park)
    with pytest.raises(UnsupportedJoinError, match="a batch DataFrame has none"):
        semistream.join(batch, products, on="id", on_missing="park", park_for="1 hour")
    provider = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(provider)
    spark.conf.set(provider, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
    try:
        with pytest.raises(UnsupportedJoinError, match="needs the RocksDB state store"):
            semistream.join(stream, products, on="id", on_missing="park", park_for="1 hour")
    finally:
        spark.conf.set(provider, before)
    with pytest.raises(KeyColumnError, match="__deadline"):
        semistream.join(stream.withColumnRenamed("store", "__deadline"), products, memory="64MB", **park)
    own = stream.withColumnRenamed("store", "missing_in")
    with pytest.raises(KeyColumnError, match="missing_in"):
        semistream.join(own, products, on="id", on_missing="dead_letter")
    semistream.join(own, products, on="id", how="left")
    marked = semistream.join(stream, products, on="id", on_missing="dead_letter")
    with pytest.raises(SinkError, match="no sink for them"):
        write_stream(marked, ParquetSink(tmp_path / "facts"))
    with pytest.raises(SinkError, match="marks dead letters"):
        write_stream(stream, ParquetSink(tmp_path / "facts"), dead_letters=ParquetSink(tmp_path / "letters"))


class Failing(BatchSink[Any]):
    """A sink whose query dies in its second batch, before or after that is written."""

    def __init__(self, sink: BatchSink[Any], *, after: bool) -> None:
        self.sink, self.after = sink, after

    def holds(self, query: str, batch: int) -> bool:
        return self.sink.holds(query, batch)

    def stage(self, schema: pa.Schema, query: str, batch: int) -> Any:
        return self.sink.stage(schema, query, batch)

    def commit(self, staging: Any, receipts: Sequence[str], query: str, batch: int) -> bool:
        if batch == 1:
            if self.after:
                self.sink.commit(staging, receipts, query, batch)
            raise ConnectionError("the driver dies here")
        return self.sink.commit(staging, receipts, query, batch)


@pytest.mark.sampled
@pytest.mark.spark
@pytest.mark.parametrize("after", [False, True])
def test_dead_letters_are_there_once(
    spark: SparkSession, tmp_path: Path, products: Path, stores: Path, after: bool
) -> None:
    rows = [row for number in range(3) for row in more_sales(tmp_path, number)]
    facts, letters = ParquetSink(tmp_path / "facts", partition_by=["store"]), ParquetSink(tmp_path / "letters")

    def start(sink: BatchSink[Any]) -> Any:
        joined = semistream.join(sales(spark, tmp_path), products, on="id", on_missing="dead_letter", memory="1MB")
        joined = semistream.join(joined, stores, on="store", how="inner", memory="1MB")
        assert joined.columns == ["id", "store", "n", "missing_in", "name", "city"]
        writer = write_stream(joined, sink, dead_letters=letters)
        return writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()

    with pytest.raises(StreamingQueryException, match="the driver dies here"):
        start(Failing(facts, after=after)).awaitTermination()
    # Now they are known; but the batch that was begun goes on with the version it began with.
    semistream.upsert(products, late(KNOWN, KNOWN + 50))
    start(facts).awaitTermination()

    def known(n: int) -> int:
        return KNOWN + 50 if n >= 2000 else KNOWN

    found = spark.read.parquet(str(tmp_path / "facts")).select("id", "n", "name", "city").collect()
    cities = {"a": "Ulm", "b": "Bonn"}
    assert Counter(map(tuple, found)) == Counter(
        (key, n, name_of(key, known(n)), cities[store])
        for key, store, n in rows if key is not None and key < known(n) and store in cities
    )  # fmt: skip
    dead = spark.read.parquet(str(tmp_path / "letters")).collect()
    assert Counter((row.id, row.store, row.n, row.missing_in) for row in dead) == Counter(
        (key, store, n, "products") for key, store, n in rows if key is None or key >= known(n)
    )
    with pytest.raises(SinkError, match="to partition by"):
        ParquetSink(tmp_path / "x", partition_by=["day"]).check(pa.schema({"n": pa.int64()}))


@pytest.mark.spark
def test_a_parked_row_comes_with_its_late_partner_once(spark: SparkSession, tmp_path: Path, products: Path) -> None:
    seen = Seen()
    rows = more_sales(tmp_path, 0)

    def named(key: int | None, known: int) -> str | None:
        return "products" if key is None else name_of(key, known)

    def frame() -> DataFrame:
        return semistream.join(
            sales(spark, tmp_path), products, on="id", on_missing="park", park_for="1 hour", after_park="dead_letter",
            park_idle=False, memory="1MB", metrics="products",
        ).select("id", "store", "n", F.coalesce("missing_in", "name"))  # fmt: skip

    run(frame(), tmp_path, seen)
    at_once = Counter((*row, named(row[0], KNOWN)) for row in rows if row[0] is None or row[0] < KNOWN)
    assert seen.batches == {0: [at_once]}
    semistream.upsert(products, late(KNOWN, 120))
    more = more_sales(tmp_path, 1)
    run(frame(), tmp_path, seen)
    second = Counter((*row, named(row[0], 120)) for row in more if row[0] is None or row[0] < 120)
    second += Counter((*row, f"p{row[0]}") for row in rows if row[0] is not None and KNOWN <= row[0] < 120)
    assert seen.batches[1] == [second]
    # The batch is done again, and R has other rows by now: the rows are the same, and nothing is parked twice.
    uncommit(tmp_path, 1)
    semistream.upsert(products, late(110, 150, "new "))
    third = more_sales(tmp_path, 2)
    run(frame(), tmp_path, seen)
    assert seen.batches[1] == [second, second]

    def name(key: int | None) -> str | None:
        return named(key, 110) if key is None or key < 110 else f"new {key}"

    expected = Counter((*row, name(row[0])) for row in third)
    expected += Counter((*row, name(row[0])) for row in rows + more if row[0] is not None and row[0] >= 120)
    assert seen.batches[2] == [expected]


@pytest.mark.sampled
@pytest.mark.spark
@pytest.mark.parametrize("after", ["null", "drop", "dead_letter"])
def test_a_parked_row_leaves_when_its_time_is_over(
    spark: SparkSession, tmp_path: Path, products: Path, after: str
) -> None:
    seen = Seen()
    rows = more_sales(tmp_path, 0) + more_sales(tmp_path, 1)
    frame = semistream.join(
        sales(spark, tmp_path), products, on="id", on_missing="park", park_for="1 millisecond", after_park=after,
        park_idle=False, memory="1MB", algorithm="hybridjoin",
    )  # fmt: skip
    run(frame, tmp_path, seen)
    mark = [None] if after == "dead_letter" else []
    known = Counter((*row, *mark, name_of(row[0])) for row in rows if row[0] is not None and row[0] < KNOWN)
    lost = ["products", None] if after == "dead_letter" else [None]
    # Those of the second file wait for a third; a NULL key waits for nothing.
    gone = Counter((*row, *lost) for row in rows if row[0] is None or (row[0] >= KNOWN and row[2] < 1000))
    assert seen.all == (known if after == "drop" else known + gone)


@pytest.mark.spark
def test_parked_rows_are_tended_to_without_new_ones(spark: SparkSession, tmp_path: Path, products: Path) -> None:
    seen = Seen()
    rows = more_sales(tmp_path, 0)
    frame = semistream.join(
        sales(spark, tmp_path), products, on="id", on_missing="park", park_for="1 hour", memory="1MB", metrics="r"
    )
    writer = frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path / "c"))

    def tended() -> StreamingQuery:
        query = writer.trigger(processingTime="200 milliseconds").start()

        def wait_for(count: int) -> None:
            limit = time.monotonic() + 120
            while seen.all.total() < count and time.monotonic() < limit and query.isActive:
                time.sleep(0.1)

        try:
            wait_for(sum(key is None or key < KNOWN for key, _, _ in rows))
            if query.isActive:
                semistream.upsert(products, late(KNOWN, KNOWN + 50))
            wait_for(len(rows))
            limit = time.monotonic() + 60  # a batch is over later than its sink
            while (
                query.isActive
                and (query.lastProgress or {"batchId": -1})["batchId"] < max(seen.batches)
                and time.monotonic() < limit
            ):
                time.sleep(0.1)
        finally:
            query.stop()
        if (error := query.exception()) is not None:
            raise error
        return query

    query = patiently(tended)
    assert seen.all == Counter((*row, name_of(row[0], KNOWN + 50)) for row in rows)
    waited = [progress["observedMetrics"]["r_parked"] for progress in query.recentProgress]
    missing = sum(key is not None and key >= KNOWN for key, _, _ in rows)
    assert max(metrics["waiting"] for metrics in waited) == missing
    assert sum(metrics["found_late"] for metrics in waited) == missing
