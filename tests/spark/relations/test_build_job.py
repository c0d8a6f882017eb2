from __future__ import annotations

import datetime
import decimal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession

import semistream.spark
from semistream.core.errors import KeyColumnError, NotARelationError, RelationBuildError
from semistream.relation.builder import NULL_KEYS
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.spark.relations.build_job import ShardTask, write_shards
from semistream.spark.relations.types import UnsupportedTypeError, arrow_schema

pytestmark = pytest.mark.spark

# Tasks of these tests run in workers that cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def products(spark: SparkSession, rows: int) -> DataFrame:
    return spark.range(rows).selectExpr(
        "(id * 7919) % 10007 AS id",
        "concat('product ', id) AS name",
        "cast(id / 3 AS decimal(12,2)) AS price",
        "if(id % 5 = 0, null, timestamp'2024-05-01 12:00:00' + make_dt_interval(id)) AS since",
        "array(id, null) AS tags",
    )


def as_set(table: pa.Table) -> set[str]:
    return {repr(row) for row in table.to_pylist()}


def test_build_equals_the_local_build(spark: SparkSession, tmp_path: Path) -> None:
    df = products(spark, 5000)
    built = semistream.spark.build(df, tmp_path / "r", key="id", shards=3)
    local = Relation.build(df.toArrow().cast(built.schema), tmp_path / "local", key="id", shards=3)
    assert built.schema == local.schema
    assert built.row_count == 5000
    assert built.unique
    for shard in range(3):
        mine = Relation.open(tmp_path / "r", shards=[shard]).to_table()
        theirs = Relation.open(tmp_path / "local", shards=[shard]).to_table()
        assert mine.column("id").to_pylist() == theirs.column("id").to_pylist()  # the same rows, in the same order
        assert as_set(mine) == as_set(theirs)
    assert (
        sorted(p.suffix for p in (tmp_path / "r").iterdir() if p.is_file())
        == [".index"] * 3 + [".json"] + [".pages"] * 3
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("expression", "count"),
    [
        ("cast(id % 120 AS tinyint)", 120),
        ("cast(id AS smallint)", 400),
        ("cast(id - 200 AS int)", 400),
        ("id * 10000000000 - 7", 400),
        ("cast(id AS string)", 400),
        ("cast(cast(id AS string) AS binary)", 400),
        ("date_add(date'1960-01-01', cast(id * 31 AS int))", 400),
        ("timestamp'1965-01-01' + make_dt_interval(0, 0, id * 1000, 0.000001)", 400),
        ("timestamp_ntz'1965-01-01' + make_dt_interval(0, 0, id * 1000, 0.000001)", 400),
        ("cast(id - 200.25 AS decimal(9,2))", 400),
        ("cast(id - 200.25 AS decimal(30,2))", 400),
        ("id % 2 = 0", 2),
        ("make_dt_interval(id)", 400),
    ],
)
def test_every_kind_of_key(spark: SparkSession, tmp_path: Path, expression: str, count: int) -> None:
    df = spark.range(400).selectExpr(f"{expression} AS k", "id AS payload")
    relation = semistream.spark.build(df, tmp_path / "r", key="k", shards=4, page_size=512)
    expected = df.toArrow().cast(relation.schema)
    assert as_set(relation.to_table()) == as_set(expected)
    assert relation.unique == (count == 400)
    keys, valid = relation.key.encode(expected.combine_chunks().to_batches()[0])
    assert valid.all()
    assert np.all(relation.locate(keys).counts >= 1)


def test_several_columns_as_key(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(1000).selectExpr("id % 10 AS a", "cast(id div 10 AS string) AS `b.c`", "id AS payload")
    relation = semistream.spark.build(df, tmp_path / "r", key=["a", "b.c"], shards=3)
    assert relation.unique
    assert as_set(relation.to_table()) == as_set(df.toArrow())


def test_rows_with_null_in_the_key_are_left_out_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(1000).selectExpr("if(id % 4 = 0, null, id) AS k", "id AS payload")
    relation = semistream.spark.build(df, tmp_path / "r", key="k", shards=3)
    assert relation.row_count == 750
    assert manifests.load(tmp_path / "r").properties[NULL_KEYS] == "250"


def test_repeated_keys(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(3000).selectExpr("id % 30 AS k", "id AS payload")
    relation = semistream.spark.build(df, tmp_path / "r", key="k", shards=2, page_size=512)
    assert not relation.unique
    assert as_set(relation.to_table()) == as_set(df.toArrow())


@pytest.mark.parametrize("empty", ["where", "none"])
def test_empty_frame(spark: SparkSession, tmp_path: Path, empty: str) -> None:
    frame = spark.range(10).where("id < 0") if empty == "where" else spark.createDataFrame([], "id long")
    relation = semistream.spark.build(frame, tmp_path / "r", key="id", shards=3)
    assert relation.row_count == 0
    assert relation.to_table().num_rows == 0


def test_overwrite_makes_a_new_version(spark: SparkSession, tmp_path: Path) -> None:
    semistream.spark.build(spark.range(10), tmp_path / "r", key="id", shards=2)
    with pytest.raises(RelationBuildError, match=r"already holds a relation.*overwrite=True"):
        semistream.spark.build(spark.range(20), tmp_path / "r", key="id", shards=2)
    second = semistream.spark.build(spark.range(20), tmp_path / "r", key="id", shards=3, overwrite=True)
    assert (second.version, second.row_count) == (2, 20)
    assert Relation.open(tmp_path / "r", version=1).row_count == 10


@dataclass(frozen=True)
class FailsOnce(ShardTask):
    """Writes a whole shard, then fails, the first time; what a machine that dies does."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reports = list(super().__call__(batches))
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0 and context.partitionId() == 1:
            raise OSError("the machine went away")
        yield from reports


def test_a_retried_task_takes_part_once(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semistream.spark.relations.build_job.ShardTask", FailsOnce)
    relation = semistream.spark.build(spark.range(1000), tmp_path / "r", key="id", shards=2)
    assert relation.row_count == 1000
    assert sorted(relation.to_table().column("id").to_pylist()) == list(range(1000))
    # What the failed attempt wrote is gone.
    assert len(list((tmp_path / "r").glob("[!.]*"))) == 1 + 2 * 2


@dataclass(frozen=True)
class AlwaysFails(ShardTask):
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reports = list(super().__call__(batches))
        if TaskContext.get().partitionId() == 1:  # type: ignore[union-attr]
            raise OSError("the disk is full")
        yield from reports


@pytest.mark.sampled
@pytest.mark.parametrize("existing", [False, True])
def test_a_failed_build_leaves_no_relation(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool
) -> None:
    path = tmp_path / "r"
    if existing:
        semistream.spark.build(spark.range(10), path, key="id", shards=2)
    before = sorted(path.iterdir()) if existing else None
    monkeypatch.setattr("semistream.spark.relations.build_job.ShardTask", AlwaysFails)
    with pytest.raises(Exception, match="the disk is full"):
        semistream.spark.build(spark.range(1000), path, key="id", shards=2, overwrite=True)
    if existing:
        assert Relation.open(path).row_count == 10
        assert sorted(path.iterdir()) == before
    else:
        assert not path.exists()
        with pytest.raises(NotARelationError):
            Relation.open(path)


def test_fault_in_the_data_is_told_plainly(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(10).selectExpr("id", "repeat('x', 600) AS text")
    with pytest.raises(RelationBuildError, match=r"a row takes 6.. bytes.*give a larger page_size"):
        semistream.spark.build(df, tmp_path / "r", key="id", shards=2, page_size=512)
    assert not (tmp_path / "r").exists()


def test_rows_in_the_wrong_shard_are_noticed(spark: SparkSession, tmp_path: Path) -> None:
    schema = arrow_schema(spark.range(1).schema)
    codec = KeyCodec.for_schema(schema, "id")
    task = ShardTask(str(tmp_path), "run", schema, ("id",), 2, 8192, 1.0)
    keys = np.arange(100)
    with pytest.raises(RelationBuildError, match="belong to another"):
        task.write(0, "attempt", iter([pa.record_batch([pa.array(keys)], schema=schema)]))
    assert not list(tmp_path.iterdir())
    assert write_shards(spark.range(100), task, codec)[0] == 0


def test_bad_arguments(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(10).selectExpr("id", "cast(id AS double) AS ratio", "make_ym_interval(id) AS age")
    path = tmp_path / "r"
    with pytest.raises(KeyColumnError, match="'nope' is not in the relation; its columns are: id, ratio"):
        semistream.spark.build(df.drop("age"), path, key="nope")
    with pytest.raises(KeyColumnError, match="'ratio' of type double cannot be a key"):
        semistream.spark.build(df.drop("age"), path, key="ratio")
    with pytest.raises(UnsupportedTypeError, match=r"column 'age' is interval year to month.*cast it"):
        semistream.spark.build(df, path, key="id")
    with pytest.raises(ValueError, match="shards must be at least 1, not 0"):
        semistream.spark.build(df.drop("age"), path, key="id", shards=0)
    with pytest.raises(RelationBuildError, match="streaming DataFrame never ends"):
        semistream.spark.build(spark.readStream.format("rate").load(), path, key="value")
    assert not path.exists()


def test_instants_are_kept_in_utc(spark: SparkSession, tmp_path: Path) -> None:
    moment = datetime.datetime(2024, 7, 1, 12, tzinfo=datetime.UTC)
    df = spark.createDataFrame([(1, moment, decimal.Decimal("1.50"))], "id long, at timestamp, price decimal(5,2)")
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        relation = semistream.spark.build(df, tmp_path / "r", key="id", shards=1)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert relation.schema.field("at").type == pa.timestamp("us", "UTC")
    assert relation.to_table().column("at").to_pylist() == [moment]
