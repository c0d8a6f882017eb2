"""Rows that nobody wants: of a bad type, without a key, far longer than the join's memory. None stops a query."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

import semistream
from semistream.joins import How
from semistream.spark.monitoring.metrics import counters_of

pytestmark = pytest.mark.spark

SCHEMA = "id long, sale long, note string"
MEMORY = 1_000_000
LONG = "x" * 200_000  # longer than the stream buffer of a shard, not than all of its memory
POISON = [
    '{"id": "seven", "sale": 1, "note": "a text where a number belongs"}',
    '{"id": 7.5, "sale": 2, "note": "half a key"}',
    '{"id": null, "sale": 3, "note": "no key"}',
    '{"sale": 4, "note": "not even the field"}',
    '{"id": 99999999999999999999, "sale": 5, "note": "a key too large"}',
    '{"id": {"is": 7}, "sale": 6, "note": "a key with something in it"}',
    '{"id": 7, "sale": 7, "note": ',
    "\x00\x01 no JSON at all",
    json.dumps({"id": 7, "sale": 8, "note": LONG}),
    json.dumps({"id": 70_000, "sale": 9, "note": LONG}),
    json.dumps({"id": None, "sale": 10, "note": LONG}),
    '{"id": -9223372036854775808, "sale": 11, "note": "the least key there is"}',
]


@pytest.fixture(scope="module")
def relation(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("poison") / "products"
    products(spark).write.parquet(str(path.with_name("parquet")))
    semistream.spark.build(spark.read.parquet(str(path.with_name("parquet"))), path, key="id", shards=2).close()
    return path


def products(spark: SparkSession) -> DataFrame:
    return spark.range(2000).selectExpr("id", "id * 2 AS price", "concat('product ', id) AS name")


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("how", "algorithm"),
    [("left", "cachejoin"), ("inner", "cachejoin"), ("left", "hybridjoin"), ("left", "ssij")],
)
def test_poison_does_not_stop_a_query(
    spark: SparkSession, relation: Path, tmp_path: Path, how: How, algorithm: str
) -> None:
    lines = [f'{{"id": {sale % 2500}, "sale": {sale}, "note": "fine"}}' for sale in range(100, 1100)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text("\n".join(lines[:400] + POISON + lines[400:500]))
    (tmp_path / "in" / "1.json").write_text("\n".join(lines[500:]))
    os.utime(tmp_path / "in" / "0.json", (1, 1))  # Spark reads the oldest file first
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    joined = semistream.join(stream, relation, on="id", how=how, memory=MEMORY, algorithm=algorithm, metrics="join")
    query = (
        joined.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "facts"), format="parquet")
    )
    query.awaitTermination()
    counted = [counters_of(progress["observedMetrics"]["join"]) or {} for progress in query.recentProgress]
    assert [one["rows_in"] for one in counted] == [512, 500]
    assert all(one["bytes_held"] <= one["memory"] <= MEMORY for one in counted)
    # what Spark's own join makes of the same lines
    sales = spark.read.schema(SCHEMA).json(str(tmp_path / "in"))
    expected = sales.join(spark.read.parquet(str(relation.with_name("parquet"))), "id", how)
    assert rows(spark.read.parquet(str(tmp_path / "facts")), joined.columns) == rows(expected, joined.columns)


def rows(df: DataFrame, columns: list[str]) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row) for row in df.select(*columns).collect())
