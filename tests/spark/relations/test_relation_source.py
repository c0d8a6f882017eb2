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


@pytest.mark.spark
def test_nulls_inside_values_that_had_none_when_they_were_built(spark: SparkSession, tmp_path: Path) -> None:
    """Spark declared these parts NOT NULL, and would read an updated NULL as 0 or refuse it."""
    parts = "array(id) AS sizes", "map(id, id) AS counts", "named_struct('a', id, 'b', array(id)) AS inner"
    semistream.spark.build(spark.range(2).selectExpr("id", *parts), tmp_path / "r", "id").close()
    with semistream.Relation.open(tmp_path / "r") as relation:
        kinds = relation.schema
    changed = {"id": 1, "sizes": [None, 5], "counts": [(7, None)], "inner": {"a": None, "b": [None]}}
    columns = [pa.array([changed[part.name]], _nullable(part.type)) for part in kinds]
    semistream.upsert(tmp_path / "r", pa.table(dict(zip(kinds.names, columns, strict=True))))
    expected = (1, [None, 5], {7: None}, (None, [None]))
    read = spark.read.format("semistream").load(str(tmp_path / "r"))
    semistream.register(spark, {"built_with_parts": tmp_path / "r"})
    for found in (
        read.where("id = 1"),
        semistream.join(spark.range(1, 2), tmp_path / "r", on="id"),
        semistream.join(spark.range(1, 2), tmp_path / "r", on="id", algorithm="inlj"),
        spark.sql("SELECT id, p.* FROM (SELECT id, lookup_built_with_parts(id) AS p FROM range(1, 2))"),
    ):
        assert [tuple(row) for row in found.collect()] == [expected]
    assert read.where("inner.a IS NULL").count() == 1


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_nullable(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _nullable(kind.item_type))
    return pa.struct({part.name: _nullable(part.type) for part in kind}) if pa.types.is_struct(kind) else kind


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
