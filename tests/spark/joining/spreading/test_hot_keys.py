"""Rows of a hot key are joined by all tasks: the same results, and no task with much more rows than the others."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import semistream
from semistream.relation.keys.key_codec import KeyCodec
from semistream.spark.joining.spreading import hot_keys
from semistream.spark.joining.spreading.hot_keys import HotKeys, KeyReport
from semistream.spark.monitoring.metrics import counters_of

pytestmark = pytest.mark.spark
ROWS, BATCH, SHARDS = 3000, 6_000, 4
HOT, ABSENT = 7, ROWS + 1
"""Keys of a third and of a sixth of the stream; a ninth has none."""


@pytest.fixture(scope="module")
def relation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hot") / "products"
    ids = np.arange(ROWS)
    table = pa.table({"code": [f"p{i}" for i in ids], "kind": ids % 7, "name": [f"v1 {i}" for i in ids], "price": ids})
    semistream.Relation.build(table, path, ["code", "kind"], shards=SHARDS, page_size=1024).close()
    return path


def write_batch(folder: Path, number: int) -> dict[int, int | None]:
    """Put a file of sales into a directory; return the key of each sale."""
    sale = np.arange(number * BATCH, (number + 1) * BATCH)
    key = (sale * 7919) % (ROWS + 500)
    key[sale % 3 == 0], key[sale % 6 == 1] = HOT, ABSENT
    none = sale % 9 == 2
    folder.mkdir(parents=True, exist_ok=True)
    code = pa.array([f"p{each}" for each in key], mask=none)
    pq.write_table(pa.table({"sale": sale, "code": code, "kind": key % 7}), folder / f"{number:05d}.parquet")
    return {int(each): None if empty else int(one) for each, one, empty in zip(sale, key, none, strict=True)}


def run(spark: SparkSession, relation: Path, folder: Path, on_missing: str) -> list[dict[str, Any]]:
    stream = spark.readStream.schema("sale long, code string, kind long").option("maxFilesPerTrigger", 1)
    joined = semistream.join(
        stream.parquet(f"{folder}/in"), relation, on=["code", "kind"], on_missing=on_missing, memory="3MB",
        metrics="join", hold=False,
    )  # fmt: skip
    query = (
        joined.writeStream.format("parquet").option("checkpointLocation", f"{folder}/check")
        .trigger(availableNow=True).start(f"{folder}/out")
    )  # fmt: skip
    query.awaitTermination()
    found = [counters_of(one["observedMetrics"].get("join")) for one in query.recentProgress]
    return [one for one in found if one is not None and one["rows_in"]]


@pytest.mark.sampled
@pytest.mark.parametrize("on_missing", ["null", "dead_letter"])
def test_hot_keys_are_spread(spark: SparkSession, relation: Path, tmp_path: Path, on_missing: str) -> None:
    keys: dict[int, int | None] = {}
    for number in range(2):
        keys |= write_batch(tmp_path / "in", number)
    told = run(spark, relation, tmp_path, on_missing)
    for number, counted in enumerate(told):
        rows = sorted(task["rows_in"] for task in counted["shards"])
        assert sum(rows) == BATCH
        uneven = rows[-1] / median(rows[:-1])
        assert uneven > 2 if number == 0 else uneven < 1.6, f"rows of tasks in micro-batch {number}: {rows}"
        here = [keys[sale] for sale in range(number * BATCH, (number + 1) * BATCH)]
        assert counted["null_keys"] == here.count(None)
        assert counted["unmatched"] == sum(key is None or key >= ROWS for key in here)
        assert counted["rows_done"] == BATCH
        assert counted["missing"][f"p{ABSENT}, {ABSENT % 7}"] == here.count(ABSENT)
    found = spark.read.parquet(f"{tmp_path}/out").toArrow().to_pydict()
    assert sorted(found["sale"]) == sorted(keys)
    expected = {sale: None if key is None or key >= ROWS else key for sale, key in keys.items()}
    assert dict(zip(found["sale"], found["price"], strict=True)) == expected
    assert all(
        (name is None) == (expected[sale] is None) and name in (None, f"v1 {expected[sale]}")
        for sale, name in zip(found["sale"], found["name"], strict=True)
    )
    if on_missing == "dead_letter":
        marks = zip(found["sale"], found["missing_in"], strict=True)
        assert all((mark is None) == (expected[sale] is not None) for sale, mark in marks)


def test_a_micro_batch_has_one_set_of_hot_keys(spark: SparkSession, tmp_path: Path) -> None:
    """What the plan says is folded into a constant when it is worked out, not read by each task."""
    (tmp_path / "in").mkdir()
    stream = spark.readStream.schema("id long").parquet(f"{tmp_path}/in")
    hot = HotKeys(stream, 2)
    hot.update(KeyReport(0, 100, {11: 90}))
    assert hot.hot == {11}
    flagged = spark.range(1).select(hot._column.alias("keys"))
    first = flagged._jdf.queryExecution().optimizedPlan()
    assert flagged.collect()[0].keys == [11]
    hot.update(KeyReport(0, 100, {-12: 90}))
    assert "[11]" in first.toString()
    again = spark.range(1).select(hot._column.alias("keys"))
    assert again.collect()[0].keys == [-12]


def test_keys_become_hot_and_cool_down() -> None:
    class Listening(HotKeys):
        def __init__(self) -> None:
            self.hot, self._parts, self._by_part, self._most = frozenset(), 4, {}, 1
            self._changing = hot_keys.threading.Lock()

        def _write(self) -> None:
            pass

    hot = Listening()
    for part in range(4):
        hot.update(KeyReport(part, 1000, {part: 300}))
    assert hot.hot == frozenset(), "three tenths of a task of four"
    hot.update(KeyReport(1, 1000, {1: 600}))
    assert hot.hot == {1}
    hot.update(KeyReport(1, 1000, {1: 300}))
    assert hot.hot == {1}, "more than a quarter of a task still"
    hot.update(KeyReport(1, 1000, {1: 200}))
    assert hot.hot == frozenset()
    hot.update(KeyReport(2, 1000, {2: 600, 3: 900}))
    assert hot.hot == {3}, "there is room for one row"


def test_rows_that_may_be_others_when_they_come_again_are_not_spread(spark: SparkSession, tmp_path: Path) -> None:
    """A task that sends rows may run again after others have read some of them."""
    (tmp_path / "in").mkdir()
    semistream.Relation.build(pa.table({"id": range(9), "name": ["x"] * 9}), tmp_path / "r", "id", shards=2).close()
    stream = spark.readStream.schema("id long, code long, f double").parquet(f"{tmp_path}/in")
    joined = semistream.join(stream, tmp_path / "r", on="id", memory="4MB", metrics="first", hold=False)
    some = F.udf(lambda one: one, "long").asNondeterministic()
    assert [HotKeys.possible(one) for one in (stream, joined, joined.where("code > 1"))] == [True] * 3
    for one in (stream.withColumn("x", F.rand()), joined.withColumn("x", some("id")), joined.where(F.rand() < 0.5)):
        assert not HotKeys.possible(one)
    hot = HotKeys(stream, 2)
    codec = KeyCodec.for_schema(pa.schema({"id": pa.int64()}), "id")
    sent = hot.part_of(stream, ("id",), codec, F.lit(0))
    assert "xxhash64(c0, c1)" in str(sent), "a sum of floats may have other last bits"
    spark.conf.set("spark.sql.optimizer.excludedRules", "org.apache.spark.sql.catalyst.optimizer.ConstantFolding")
    try:
        assert not HotKeys.possible(stream), "each run of a task would read what is hot by then"
    finally:
        spark.conf.unset("spark.sql.optimizer.excludedRules")
