"""The joins of a pipeline file are one pass, without a word about it in the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import semistream
from semistream.spark.pipeline.document import PipelineError
from semistream.spark.pipeline.running import load, start

FILE = """
checkpoint = "checkpoint"
trigger = "available now"

[source]
format = "parquet"
path = "sales"
schema = "sale long, product long, store long"

[[join]]
relation = "products"
on = "product"
memory = "300KB"

[[join]]
relation = "stores"
on = "store"
on_missing = "dead_letter"

[sink]
format = "parquet"
path = "facts"

[dead_letters]
format = "parquet"
path = "letters"
"""


@pytest.mark.spark
def test_joins_of_a_file_are_one_pass(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ids, sales = np.arange(9000), np.arange(500)
    products = pa.table({"id": ids, "price": ids * 2, "title": [f"product {i}" for i in ids]})
    semistream.Relation.build(products, tmp_path / "products", key="id").close()
    semistream.Relation.build(pa.table({"id": range(7), "region": range(7)}), tmp_path / "stores", key="id").close()
    (tmp_path / "sales").mkdir()
    rows = pa.table({"sale": sales, "product": sales * 20, "store": sales % 8})
    pq.write_table(rows, tmp_path / "sales" / "a.parquet")
    (tmp_path / "p.toml").write_text(FILE)
    pipeline = load(tmp_path / "p.toml")
    plan = pipeline.rows._jdf.queryExecution().analyzed().toString()
    assert plan.count("semistream_join(") == 1, plan
    assert plan.count("RepartitionById") <= 1 < plan.count("answer"), "products are larger than their memory"
    start(pipeline).awaitTermination()
    facts = spark.read.parquet(str(tmp_path / "facts")).collect()
    letters = spark.read.parquet(str(tmp_path / "letters")).collect()
    assert sorted((row.sale, row.price, row.region) for row in facts) == [
        (sale, sale * 40 if sale < 450 else None, sale % 8) for sale in range(500) if sale % 8 < 7
    ]
    assert sorted((row.sale, row.missing_in) for row in letters) == [
        (sale, "stores") for sale in range(500) if sale % 8 == 7
    ]


RANGES = """
checkpoint = "checkpoint"
trigger = "available now"

[source]
format = "parquet"
path = "trips"
schema = "trip long, first long, last long"

[[join]]
relation = "days"
on = ["first", "last"]
condition = "between"

[sink]
format = "parquet"
path = "facts"
"""


@pytest.mark.spark
def test_a_file_joins_on_ranges(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    semistream.Relation.build(pa.table({"day": range(100), "rain": range(100)}), tmp_path / "days", key="day").close()
    (tmp_path / "trips").mkdir()
    pq.write_table(pa.table({"trip": [1, 2], "first": [98, 7], "last": [105, 6]}), tmp_path / "trips" / "a.parquet")
    (tmp_path / "p.toml").write_text(RANGES)
    start(load(tmp_path / "p.toml")).awaitTermination()
    facts = spark.read.parquet(str(tmp_path / "facts")).select("trip", "day", "rain").collect()
    assert sorted(tuple(row) for row in facts if row.trip == 1) == [(1, 98, 98), (1, 99, 99)]
    assert [tuple(row) for row in facts if row.trip == 2] == [(2, None, None)]
    (tmp_path / "p.toml").write_text(RANGES.replace('["first", "last"]', '"first"'))
    with pytest.raises(PipelineError, match=r"line 12: .*two columns of the stream"):
        load(tmp_path / "p.toml")


HISTORY = """
checkpoint = "checkpoint"
trigger = "available now"

[source]
format = "parquet"
path = "sales"
schema = "sale long, product long, day date"

[[join]]
relation = "prices"
on = "product"
as_of = "day"
columns = ["price"]
on_missing = "dead_letter"

[sink]
format = "parquet"
path = "facts"

[dead_letters]
format = "parquet"
path = "letters"
"""


@pytest.mark.spark
def test_a_file_joins_as_of_a_time(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    days = pa.array([10, 20], pa.date32())
    prices = pa.table({"id": [7, 7], "since": days, "price": [100, 120]})
    semistream.Relation.build(prices, tmp_path / "prices", key="id", valid_from="since").close()
    (tmp_path / "sales").mkdir()
    sales = pa.table({"sale": [1, 2, 3], "product": [7, 7, 7], "day": pa.array([19, 20, 9], pa.date32())})
    pq.write_table(sales, tmp_path / "sales" / "a.parquet")
    (tmp_path / "p.toml").write_text(HISTORY)
    start(load(tmp_path / "p.toml")).awaitTermination()
    facts = spark.read.parquet(str(tmp_path / "facts")).select("sale", "price").collect()
    assert sorted(map(tuple, facts)) == [(1, 100), (2, 120)]
    assert [row.sale for row in spark.read.parquet(str(tmp_path / "letters")).collect()] == [3]
    (tmp_path / "p.toml").write_text(HISTORY.replace('"day"', '"dai"').replace('"checkpoint"', '"other"'))
    with pytest.raises(PipelineError, match=r"line 13: there is no column 'dai' to join as of; .*did you mean 'day'"):
        load(tmp_path / "p.toml")
    (tmp_path / "moments").mkdir()
    moments = sales.set_column(2, "day", sales["day"].cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC")))
    pq.write_table(moments, tmp_path / "moments" / "a.parquet")
    of_moments = HISTORY.replace("day date", "day timestamp").replace('"sales"', '"moments"')
    (tmp_path / "p.toml").write_text(of_moments.replace('"checkpoint"', '"other"'))
    with pytest.raises(PipelineError, match=r"line 13: .*'day'.*timestamp.*'since' is date32.*cast"):
        load(tmp_path / "p.toml")
