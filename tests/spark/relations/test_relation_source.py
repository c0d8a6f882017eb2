"""A relation as a table of Spark's."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import pyspark.sql.types as st
from pyspark.sql import SparkSession

import semistream
from semistream.relation import builder
from semistream.relation.storage.manifest import SPARK_SCHEMA
from semistream.spark.relations.relation_source import RelationDataSource


@pytest.mark.spark
def test_a_relation_and_its_versions_are_tables(spark: SparkSession, tmp_path: Path) -> None:
    rows = {"id": pa.array(range(900), pa.uint32()), "name": [None if i % 7 == 0 else f"n{i}" for i in range(900)]}
    semistream.Relation.build(pa.table(rows), tmp_path / "r", "id", shards=3, page_size=1024).close()
    semistream.delete(tmp_path / "r", pa.array(range(10), pa.uint32()))
    newest = spark.read.format("semistream").load(str(tmp_path / "r"))
    newest.createOrReplaceTempView("r")
    assert newest.dtypes == [("id", "bigint"), ("name", "string")]
    assert newest.rdd.getNumPartitions() == 3
    found = spark.sql("SELECT count(*) AS rows, count(name) AS names, min(id) AS first FROM r").first()
    assert found is not None
    assert tuple(found) == (890, 890 - 127, 10)
    first = spark.read.format("semistream").option("version", 1).load(str(tmp_path / "r"))
    assert first.count() == 900


def test_options_and_schemas(tmp_path: Path) -> None:
    """As Spark has them made, though in a process of its own."""
    table = pa.table({"a": pa.array([1], pa.int8()), "b": [2.0]})
    spark_schema = {SPARK_SCHEMA: st.StructType([st.StructField("b", st.FloatType())]).json()}
    builder.build(table, tmp_path / "r", "a", properties=spark_schema)
    found = RelationDataSource({"path": str(tmp_path / "r"), "Version": "1"}).schema()
    assert found.simpleString() == "struct<a:tinyint,b:float>"
    for path, options, words in (
        (tmp_path, {}, "without a manifest, not a relation"),
        (tmp_path / "r", {"versoin": "1"}, "has no option 'versoin'"),
        (tmp_path / "r", {"version": "one"}, "semistream history lists them"),
        (tmp_path / "r", {"version": "7"}, "version 7"),
    ):
        with pytest.raises(ValueError, match=words):
            RelationDataSource({"path": str(path), **options})
    with pytest.raises(ValueError, match="give it to load"):
        RelationDataSource({})
