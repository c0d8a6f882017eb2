"""Queries over packed relations: versions with other packings, caches that outlive tasks, and relations held whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

import semistream
from packed_builds import builds_as_released, packed_builds
from semistream.relation.relation import Relation
from semistream.spark import build

pytestmark = pytest.mark.spark

KEYS = 60


@pytest.fixture
def relation(spark: SparkSession, tmp_path: Path) -> Path:
    rows = spark.range(KEYS).selectExpr("id", "cast(id as int) as price", "concat('name ', id % 7) as name")
    with packed_builds(0), build(rows, tmp_path / "r", "id", shards=2, page_size=512) as built:
        assert {column.number for column in built.packing.columns} == {1, 2}
        assert built.row_count == KEYS
    return tmp_path / "r"


@pytest.mark.sampled
@pytest.mark.parametrize("options", [{"hold": True}, {"hold": False}], ids=str)
def test_versions_with_other_packings(
    spark: SparkSession, tmp_path: Path, relation: Path, options: dict[str, Any]
) -> None:
    found: list[dict[int, tuple[Any, Any]]] = []

    def sink(batch: DataFrame, number: int) -> None:
        found.append({row.id: (row.price, row.name) for row in batch.collect()})

    sales = tmp_path / "sales"

    def next_batch() -> dict[int, tuple[Any, Any]]:
        spark.range(KEYS + 5).coalesce(1).write.mode("append").parquet(str(sales))
        query.processAllAvailable()
        return found[-1]

    expected = {key: (key, f"name {key % 7}") if key < KEYS else (None, None) for key in range(KEYS + 5)}
    spark.range(KEYS + 5).coalesce(1).write.parquet(str(sales))
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(sales))
    joined = semistream.join(stream, relation, on="id", memory="4MB", **options)
    query = joined.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        query.processAllAvailable()
        assert found == [expected]
        with Relation.open(relation) as r:
            r.upsert(pa.table({"id": [1, 2], "price": pa.array([-1, None], pa.int32()), "name": ["other " * 30, None]}))
            expected |= {1: (-1, "other " * 30), 2: (None, None)}
            assert next_batch() == expected
            with packed_builds(1):
                r.compact()
            packing = r.packing
            assert next_batch() == expected
            r.evolve(rename={"name": "title"}, add={"stock": pa.int8()}, widen={"price": pa.int64()})
            assert next_batch() == expected
            semistream.spark.compact(spark, relation)
            r.refresh()
            assert r.packing == packing  # tasks do not choose again
            assert next_batch() == expected
            r.compact()
            assert r.packing is None
            assert next_batch() == expected
    finally:
        query.stop()


def test_few_rows_are_not_sampled(spark: SparkSession, tmp_path: Path) -> None:
    with builds_as_released():
        few_and_many(spark, tmp_path)


def few_and_many(spark: SparkSession, tmp_path: Path) -> None:
    with build(spark.range(KEYS), tmp_path / "r", "id", shards=1) as built:
        assert built.packing is None
    rows = spark.range(30_000).selectExpr("id", "concat('a name that is long ', id % 7) as name", "id % 3 as n")
    with build(rows, tmp_path / "large", "id", shards=1) as built:
        assert built.packing is not None
        assert built.lookup(pa.array([8]))["name"].to_pylist() == ["a name that is long 1"]
    with build(rows, tmp_path / "plain", "id", shards=1, encoding="plain") as plain:
        assert plain.packing is None
        assert plain.nbytes > 2 * built.nbytes
