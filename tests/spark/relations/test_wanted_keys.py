"""A relation as a table reads only the pages and columns that a query needs."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, GreaterThan, In, IsNotNull, LessThanOrEqual, Not

import semistream
from semistream import Relation
from semistream.spark.relations import relation_source
from semistream.spark.relations.relation_source import RelationDataSource

ROWS = 6000


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The pages that each partition reads."""
    found: list[int] = []

    class Counted(Relation):
        def close(self) -> None:
            found.append(self.counters.pages)
            super().close()

    monkeypatch.setattr(relation_source, "Relation", Counted)
    return found


def read(path: Path, filters: list[Filter], **options: str) -> pa.Table:
    source = RelationDataSource({"path": str(path), "pushdown": "true", **options})
    reader: Any = source.reader(source.schema())
    assert reader.pushFilters(filters) == filters, "Spark evaluates all of them again"
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(batches) if batches else pa.table({})


@pytest.mark.parametrize("shards", [1, 3])
def test_conditions_on_the_key_read_few_pages(tmp_path: Path, pages: list[int], shards: int) -> None:
    rows = pa.table({"id": np.arange(ROWS) * 2, "name": [f"n{i}" for i in range(ROWS)]})
    Relation.build(rows, tmp_path / "r", "id", shards=shards, page_size=512).close()
    semistream.upsert(tmp_path / "r", pa.table({"id": [1, 4000], "name": ["new", "changed"]}))
    rows = Relation.open(tmp_path / "r").to_table().sort_by("id")
    cases: list[tuple[list[Filter], Any, int]] = [
        ([EqualTo(("id",), 4000), IsNotNull(("id",))], pc.field("id") == 4000, 1),
        ([EqualTo(("id",), 4001)], pc.field("id") == 4001, 1),
        ([EqualTo(("id",), None)], pc.field("id") == -1, 0),
        ([EqualNullSafe(("id",), 1)], pc.field("id") == 1, 1),
        ([In(("id",), (2, None, 9000, 9001))], pc.field("id").isin([2, 9000]), 3),
        ([GreaterThan(("id",), 11_000), LessThanOrEqual(("id",), 11_050)],
         (pc.field("id") >= 11_000) & (pc.field("id") <= 11_050), 3 * shards),
        ([GreaterThan(("id",), 50), LessThanOrEqual(("id",), 20)], pc.field("id") == -1, 0),
    ]  # fmt: skip
    for filters, expected, most in cases:
        pages.clear()
        found = read(tmp_path / "r", filters)
        found = found if found.num_rows == 0 else found.sort_by("id")
        assert found.to_pylist() == rows.filter(expected).to_pylist(), filters
        assert sum(pages) <= most, filters
    assert read(tmp_path / "r", [EqualTo(("id",), 4000)], pushdown="false").num_rows == ROWS + 1
    for filters in ([], [Not(EqualTo(("id",), 4000))], [EqualTo(("name",), "n1")], [EqualTo(("id",), 2**70)],
                    [EqualTo(("id", "x"), 3)]):  # fmt: skip
        assert read(tmp_path / "r", filters).num_rows == ROWS + 1, filters


def test_composite_and_text_keys_dates_and_indexes(tmp_path: Path, pages: list[int]) -> None:
    days = [datetime.date(2026, 1, 1) + datetime.timedelta(i % 300) for i in range(ROWS)]
    rows = pa.table({"shop": [f"s{i % 7}" for i in range(ROWS)], "day": days, "n": np.arange(ROWS), "at": days})
    Relation.build(rows, tmp_path / "r", ["shop", "day"], page_size=512, indexes=["n", "at"]).close()
    one: list[Filter] = [EqualTo(("shop",), "s3"), In(("day",), (days[3], days[10]))]
    found = read(tmp_path / "r", one)
    wanted = (pc.field("shop") == "s3") & pc.field("day").isin([days[3], days[10]])
    assert found.sort_by("n").to_pylist() == rows.filter(wanted).to_pylist()
    assert sum(pages) <= 8
    pages.clear()
    assert read(tmp_path / "r", [EqualTo(("n",), 17)], by="n").to_pylist() == rows.slice(17, 1).to_pylist()
    assert pages == [1]
    pages.clear()
    found = read(tmp_path / "r", [GreaterThan(("at",), days[298])], by="at", columns="n, at")
    assert found.column_names == ["n", "at"]
    assert sorted(found["n"].to_pylist()) == [i for i in range(ROWS) if i % 300 >= 298]
    assert sum(pages) < 12
    with pytest.raises(ValueError, match="must name columns of R"):
        read(tmp_path / "r", [], columns="n,nothing")
    with pytest.raises(ValueError, match="no index on shop"):
        read(tmp_path / "r", [], by="shop")


@pytest.mark.long
@pytest.mark.spark
def test_sql_reads_views_and_looks_up_keys_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.table({"id": np.arange(900), "name": [f"n{i}" for i in range(900)], "kind": np.arange(900) % 100})
    relation = Relation.build(rows, tmp_path / "r", "id", shards=3, page_size=1024, indexes=["kind"])
    assert semistream.register(spark, {"products": tmp_path / "r"}) == [
        "lookup_products", "lookup_all_products", "lookup_all_products_by_kind"
    ]  # fmt: skip
    one = spark.read.format("semistream").option("pushdown", True).load(str(tmp_path / "r")).where("id = 7")
    assert [row.name for row in one.collect()] == ["n7"]
    assert one.rdd.getNumPartitions() == 1, "one shard has the key"
    assert [row.name for row in spark.sql("SELECT name FROM products WHERE id = 7").collect()] == ["n7"]
    assert spark.sql("SELECT count(*) AS n FROM products WHERE id BETWEEN 100 AND 199").first().n == 100  # type: ignore[union-attr]

    both = "SELECT id FROM products WHERE id = 7 UNION SELECT id FROM products WHERE id = 8 AND kind = 8"
    assert {row.id for row in spark.sql(both).collect()} == {7, 8}, "one condition is not used for the other"
    assert spark.sql("SELECT id FROM products WHERE id IS NULL OR id = 9").count() == 1
    assert spark.table("products").count() == 900, "nor one query's for the next"

    (tmp_path / "in").mkdir()
    sales = spark.readStream.schema("sale long, id long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    sales.createOrReplaceTempView("sales")
    enriched = spark.sql(
        "SELECT sale, p.name, size(same) AS same FROM "
        "(SELECT *, lookup_products(id) AS p, lookup_all_products_by_kind(id) AS same FROM sales)"
    )
    for number, text in enumerate(("n", "new ")):
        spark.range(number * 1000, number * 1000 + 5).selectExpr("id AS sale", "id % 1000 * 300 AS id").write.mode(
            "append"
        ).parquet(str(tmp_path / "in"))
        writer = enriched.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "check"))
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
        found = spark.read.parquet(str(tmp_path / "out")).where(f"sale >= {number * 1000}").orderBy("sale").collect()
        assert [(row.name, row.same) for row in found] == [
            (f"{text}0", 9), (f"{text}300", 0), (f"{text}600", 0), (None, 0), (None, 0)
        ]  # fmt: skip
        changed = pa.table({"id": [0, 300, 600], "name": ["new 0", "new 300", "new 600"], "kind": [0, 0, 0]})
        relation.upsert(changed)
