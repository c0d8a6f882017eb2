"""Relations in a store on Spark: built by a job, joined by tasks, changed under a running query."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import semistream.spark
from s3_server import S3Server
from semistream.core.errors import StorageError, UnsupportedJoinError
from semistream.relation.stores import object_store
from semistream.spark.monitoring.metrics import counters_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
R = "s3://bucket/warehouse/products"


@pytest.fixture
def told(spark: SparkSession, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A server that tasks find in their environment, with a tier of their own."""
    monkeypatch.setenv("SEMISTREAM_LOCAL_DIR", str(tmp_path / "tier"))
    environment = spark.sparkContext.environment
    names = ["AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "SEMISTREAM_LOCAL_DIR"]
    for name in names:
        monkeypatch.setitem(environment, name, os.environ[name])
    return s3


def test_a_relation_in_a_store_is_built_joined_and_changed(
    spark: SparkSession, told: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    master = spark.range(3000).selectExpr("id", "concat('n', id) AS name")
    with semistream.spark.build(master, R, "id", shards=2, page_size=1024) as relation:
        assert relation.row_count == 3000
    assert not [key for key in told.objects if "/.writers/" in key]

    def batch(number: int) -> None:
        rows = spark.range(2000).selectExpr("id * 2 AS key", f"{number} AS batch")
        rows.coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))

    def run() -> list[dict[str, Any]]:
        stream = spark.readStream.schema("key long, batch int").option("maxFilesPerTrigger", 1)
        joined = semistream.spark.join(
            stream.parquet(str(tmp_path / "in")), R, on="key", memory="1MB", metrics="products", local="4MB"
        )
        joined.explain(extended=True)
        query = (
            joined.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "check"))
            .trigger(availableNow=True).start(str(tmp_path / "out"))
        )  # fmt: skip
        query.awaitTermination()
        found = [counters_of(one["observedMetrics"].get("products")) for one in query.recentProgress]
        return [one for one in found if one is not None]

    batch(0)
    first = run()
    assert sum(one["store_requests"] for one in first) > 0
    assert semistream.spark.upsert(spark.sql("SELECT 10L AS id, 'changed' AS name"), R) == 2
    assert semistream.spark.delete(spark.sql("SELECT 12L AS id"), R) == 3
    batch(1)
    batch(2)
    told.fault = lambda method, key: 503 if len(told.requests) % 6 == 0 else None
    later = run()
    told.calm()
    assert sum(one["local_pages"] for one in later) > 0, "what came for a batch is here for the next"
    found = {(row.batch, row.key): row.name for row in spark.read.parquet(str(tmp_path / "out")).collect()}
    expected = {(number, key): f"n{key}" if key < 3000 else None for number in range(3) for key in range(0, 4000, 2)}
    for number in (1, 2):
        expected |= {(number, 10): "changed", (number, 12): None}
    assert found == expected
    assert any("/.pins/" in key for key in told.objects)
    assert semistream.spark.compact(spark, R) == 4
    plans = capsys.readouterr().out
    assert "Logical Plan" in plans
    assert "very-secret-word" not in plans
    assert not [key for key, (content, *_) in told.objects.items() if b"very-secret-word" in content]


def test_what_is_wrong_is_said_before_the_query_starts(
    spark: SparkSession, told: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    semistream.Relation.build(spark.range(100).toArrow(), R, "id").close()
    stream = spark.readStream.schema("id long").parquet(str(tmp_path))
    with pytest.raises(StorageError, match="no such bucket"):
        semistream.spark.join(stream, "s3://elsewhere/r", on="id")
    with pytest.raises(StorageError, match="make room"):
        semistream.spark.join(stream, R, on="id", local="900TB")
    semistream.Relation.build(spark.range(100).toArrow(), tmp_path / "here", "id").close()
    with pytest.raises(UnsupportedJoinError, match="relations in a store"):
        semistream.spark.join(stream, tmp_path / "here", on="id", local="1GB")
    told.conditional = False
    object_store._opened.clear()
    with pytest.raises(StorageError, match="conditional puts"):
        semistream.spark.join(stream, R, on="id")
    told.calm()
    told.forbidden = "PUT"
    object_store._opened.clear()
    monkeypatch.setenv("SEMISTREAM_DATA", str(tmp_path / "data"))
    assert semistream.spark.join(stream, R, on="id").isStreaming, "pins go elsewhere"
