"""R's columns change while a query runs: the query keeps the columns that it was started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import semistream
from semistream.core.errors import RelationBuildError
from semistream.relation.relation import Relation

pytestmark = pytest.mark.spark

KEYS = 60


@pytest.fixture
def relation(tmp_path: Path) -> Path:
    price = pa.array(range(KEYS), pa.int32())
    rows = pa.table({"id": range(KEYS), "name": [f"n{key}" for key in range(KEYS)], "price": price, "old": price})
    Relation.build(rows, tmp_path / "r", "id", shards=2, page_size=512).close()
    return tmp_path / "r"


@pytest.mark.sampled
@pytest.mark.parametrize("options", [{"hold": True}, {"hold": False}, {"algorithm": "hybridjoin"}], ids=str)
def test_a_query_keeps_its_columns(
    spark: SparkSession, tmp_path: Path, relation: Path, options: dict[str, Any]
) -> None:
    found: list[dict[int, tuple[Any, Any]]] = []

    def sink(batch: DataFrame, number: int) -> None:
        assert batch.columns == ["id", "price", "name"]
        assert dict(batch.dtypes)["price"] == "int"
        found.append({row.id: (row.price, row.name) for row in batch.collect()})

    sales = tmp_path / "sales"

    def next_batch() -> None:
        spark.range(KEYS + 5).coalesce(1).write.mode("append").parquet(str(sales))
        query.processAllAvailable()

    spark.range(KEYS + 5).coalesce(1).write.parquet(str(sales))
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(sales))
    joined = semistream.join(stream, relation, on="id", memory="4MB", columns=["price", "name"], **options)
    query = joined.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        query.processAllAvailable()
        with Relation.open(relation) as r:
            r.evolve(rename={"name": "title", "old": "name"}, widen={"price": pa.int64()}, add={"stock": pa.int8()})
            next_batch()
            r.upsert(pa.table({"id": [1], "name": [0], "title": ["new"], "price": [77], "stock": [1]}))
            r.evolve(drop=["name"])
            next_batch()
            r.compact()
            next_batch()
            expected = {key: (key, f"n{key}") if key < KEYS else (None, None) for key in range(KEYS + 5)}
            assert found == [expected, expected, {**expected, 1: (77, "new")}, {**expected, 1: (77, "new")}]
            r.upsert(pa.table({"id": [2], "title": ["wide"], "price": [2**40], "stock": [1]}))
            with pytest.raises(StreamingQueryException, match="'price' was widened after this query was started"):
                next_batch()
    finally:
        query.stop()
    again = semistream.join(stream, relation, on="id", memory="4MB", **options)
    assert again.columns == ["id", "title", "price", "stock"]


def test_a_query_stops_if_its_column_was_dropped(spark: SparkSession, tmp_path: Path, relation: Path) -> None:
    spark.range(5).write.parquet(str(tmp_path / "sales"))
    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "sales"))
    joined = semistream.join(stream, relation, on="id", memory="1MB", columns=["price"])
    with Relation.open(relation) as r:
        r.evolve(drop=["price"])
        r.evolve(add={"price": pa.int32()})
    query = joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(StreamingQueryException, match=r"other columns than this query .* with: price. If columns were"):
        query.processAllAvailable()


@pytest.mark.parametrize("version", [None, 1], ids=["path", "version"])
def test_a_repeated_batch_has_the_rows_it_began_with(
    spark: SparkSession, tmp_path: Path, relation: Path, version: int | None
) -> None:
    """R changes between the attempts: the repeated batch has the rows of its version, in the columns of its query."""
    found: list[list[dict[str, Any]]] = []

    def sink(batch: DataFrame, number: int) -> None:
        found.append([row.asDict() for row in batch.sort("id").collect()])
        if len(found) == 1:
            raise RuntimeError("the sink fails")

    spark.range(KEYS + 5).write.parquet(str(tmp_path / "sales"))
    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "sales"))

    def run(master: Path | Relation) -> None:
        joined = semistream.join(stream, master, on="id", memory="4MB")
        query = joined.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "c")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    with pytest.raises(StreamingQueryException, match="the sink fails"):
        run(relation)
    with Relation.open(relation) as r:
        r.evolve(
            rename={"name": "title"}, widen={"price": pa.int64()}, drop=["old"],
            add={"stock": pa.int32()}, defaults={"stock": 3},
        )  # fmt: skip
        rows = {"id": range(KEYS), "title": ["x"] * KEYS, "price": [2**40] * KEYS, "stock": pa.array([1] * KEYS)}
        r.upsert(pa.table(rows))
    if version is None:
        run(relation)
        renamed = [
            {"id": row["id"], "title": row["name"], "price": row["price"], "stock": 3 if row["id"] < KEYS else None}
            for row in found[0]
        ]
        assert found[1:] == [renamed]
    else:
        with Relation.open(relation, version=version) as first:
            run(first)
        assert found[1:] == found[:1]
    assert found[0][7] == {"id": 7, "name": "n7", "price": 7, "old": 7}


def test_an_update_job_that_evolves(spark: SparkSession, relation: Path) -> None:
    changes = spark.range(50, 70).selectExpr("id", "'x' AS name", "id AS price", "1 AS old", "'red' AS colour")
    with pytest.raises(RelationBuildError, match="column 'colour'"):
        semistream.spark.upsert(changes, relation)
    assert semistream.spark.upsert(changes, relation, evolve=True) == 2
    with Relation.open(relation) as r:
        rows = {row["id"]: row for row in r.to_table().to_pylist()}
    assert len(rows) == 70
    assert rows[1] == {"id": 1, "name": "n1", "price": 1, "old": 1, "colour": None}
    assert rows[60] == {"id": 60, "name": "x", "price": 60, "old": 1, "colour": "red"}
    assert semistream.spark.compact(spark, relation) == 3
    table = (
        spark.read.format("semistream").load(str(relation))
        if semistream.spark.register_sources(spark) is None
        else None
    )
    assert table is not None
    assert {row.id: row.colour for row in table.collect()} == {key: row["colour"] for key, row in rows.items()}
