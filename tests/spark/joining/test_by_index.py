"""Joins on a secondary index of a relation: streams, versions, caches, relations held whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import semistream
from semistream.core.errors import UnknownIndexError, UnsupportedJoinError

pytestmark = pytest.mark.spark

ROWS = 400


def people(first: int, last: int, text: str = "") -> pa.Table:
    ids = np.arange(first, last)
    emails = [None if i % 9 == 0 else f"{i % 150}@x{text}" for i in ids]
    return pa.table({"id": ids, "email": emails, "phone": [f"+{i}{text}" for i in ids]})


def expected(table: pa.Table, column: str, values: list[str]) -> list[tuple[Any, ...]]:
    rows: dict[str, list[int]] = {}
    for row in table.to_pylist():
        rows.setdefault(row[column], []).append(row["id"])
    return sorted((value, number) for value in values for number in rows.get(value, ()))


@pytest.mark.sampled
@pytest.mark.parametrize("hold", [True, False])
def test_an_index_on_a_stream_follows_updates_of_the_relation(spark: SparkSession, tmp_path: Path, hold: bool) -> None:
    """Unique values (one row per key, a warm cache or held whole), and values with several rows."""
    path = tmp_path / "people"
    relation = semistream.Relation.build(
        people(0, ROWS), path, "id", shards=2, page_size=1024, indexes=["email", "phone"]
    )
    values = [f"{i}@x" for i in range(0, 200, 3)], [f"+{i}" for i in range(0, 500, 3)]
    calls = [pa.table({"email": values[0][i::2], "phone": values[1][: len(values[0])][i::2]}) for i in range(2)]
    found: list[list[tuple[Any, ...]]] = []
    (tmp_path / "in").mkdir()
    calls_of = (
        spark.readStream.schema("email string, phone string")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(tmp_path / "in"))
    )
    by_email = semistream.join(calls_of, path, on="email", by="email", how="inner", columns=["id"], memory="8MB")
    by_phone = semistream.join(
        calls_of, path, on="phone", by="phone", how="inner", columns=["id"], memory="8MB", hold=hold, warm=True
    )
    for number in range(2):
        pq.write_table(calls[number], tmp_path / "in" / f"{number}.parquet")
        for column, joined in (("email", by_email), ("phone", by_phone)):
            rows: list[tuple[Any, ...]] = []

            def take(frame: Any, _: int, rows: list[tuple[Any, ...]] = rows, column: str = column) -> None:
                rows += [tuple(row) for row in frame.select(column, "id").collect()]

            writer = joined.writeStream.foreachBatch(take).option(
                "checkpointLocation", str(tmp_path / f"check-{column}")
            )
            writer.trigger(availableNow=True).start().awaitTermination()
            found.append(sorted(rows))
            assert found[-1] == expected(relation.to_table(), column, calls[number][column].to_pylist())
            assert found[-1]
        relation.upsert(people(20, 60, "!"))
        relation.delete(pa.array(range(100, 120)))


def test_jobs_keep_indexes_in_step(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "people"
    frame = spark.createDataFrame(people(0, ROWS).to_pandas())
    semistream.spark.build(frame, path, "id", shards=2, page_size=1024, indexes=["email"]).close()
    semistream.spark.upsert(spark.createDataFrame(people(90, 450, "y").to_pandas()), path)
    semistream.spark.delete(spark.range(5), path)
    semistream.spark.compact(spark, path)
    with semistream.Relation.open(path) as relation, relation.by("email") as index:
        rows = relation.to_table().sort_by("id")
        assert rows.num_rows == 445
        assert index.to_table().sort_by("id") == rows.filter(pc.is_valid(rows["email"]))


def test_what_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    semistream.Relation.build(people(0, 50), tmp_path / "people", "id", indexes=["email"]).close()
    calls = spark.createDataFrame([("1@x",)], "phone string")
    with pytest.raises(UnknownIndexError, match="no index on phone; it can be joined on its key, id, and on email"):
        semistream.join(calls, tmp_path / "people", on="phone", by="phone")
    with pytest.raises(UnsupportedJoinError, match="its own memory="):
        semistream.enrich(calls, [semistream.dimension(tmp_path / "people", on="phone", by="email")], memory="8MB")
