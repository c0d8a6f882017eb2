"""Updates by Spark jobs give what those of a single process give."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

import semistream
from semistream.cli import app
from semistream.core.errors import KeyTypeError, RelationBuildError, UnsupportedJoinError
from semistream.relation.damage.verify import find_faults
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.updates import compact, delete, upsert

pytestmark = pytest.mark.spark

KEYS = {"id": "id", "code": "concat('p-', id) AS id"}


def rows_of(path: Path, version: int | None = None) -> list[tuple]:
    with Relation.open(path, version=version) as relation:
        assert list(find_faults(relation)) == []
        table = relation.to_table()
        assert table.num_rows == relation.row_count
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def products(spark: SparkSession, key: str, first: int, count: int, what: str) -> DataFrame:
    """Rows of R: two for every tenth key."""
    return spark.range(first, first + count).selectExpr(
        KEYS[key], f"explode(array_repeat(concat('{what} ', id), if(id % 10 = 0, 2, 1))) AS name"
    )


@pytest.mark.parametrize("key", KEYS)
def test_equal_to_a_single_process(spark: SparkSession, tmp_path: Path, key: str) -> None:
    path, twin = tmp_path / "r", tmp_path / "twin"
    semistream.spark.build(products(spark, key, 0, 3000, "old"), path, "id", shards=3, page_size=512, fill=0.8).close()
    shutil.copytree(path, twin)
    changes = products(spark, key, 2500, 1000, "new")
    gone = products(spark, key, 100, 700, "whatever").unionByName(products(spark, key, 9000, 9, "unknown"))
    assert semistream.spark.upsert(changes, path) == upsert(twin, changes.toArrow()) == 2
    assert rows_of(path) == rows_of(twin)
    assert semistream.spark.delete(gone, path) == delete(twin, gone.select("id").toArrow()) == 3
    assert rows_of(path) == rows_of(twin)
    assert semistream.spark.compact(spark, path) == compact(twin) == 4
    assert rows_of(path) == rows_of(twin)
    mine, other = manifests.load(path), manifests.load(twin)
    assert [files.pages for files in mine.shards] == [files.pages for files in other.shards]
    assert not any(files.deltas for files in mine.shards)
    assert mine.properties == other.properties
    assert rows_of(path, 2) == rows_of(twin, 2), "older versions stay"
    named = {name for version in (1, 2, 3, 4) for files in manifests.load(path, version).shards for name in files.files}
    assert {file.name for file in path.glob("shard-*")} == named, "nothing is left over"


@pytest.mark.parametrize("precision", [9, 25])
def test_decimal_keys_of_another_scale_are_the_same_keys(spark: SparkSession, tmp_path: Path, precision: int) -> None:
    path = tmp_path / "r"
    old = spark.range(200).selectExpr(f"cast(id / 4 AS decimal({precision},2)) AS id", "id AS n")
    semistream.spark.build(old, path, "id", shards=3, page_size=512).close()
    semistream.spark.upsert(spark.range(100, 300).selectExpr("cast(id / 4 AS decimal(28,6)) AS id", "-id AS n"), path)
    expected = {Decimal(n) / 4: n if n < 100 else -n for n in range(300)}
    assert dict(rows_of(path)) == expected
    gone = spark.range(0, 400).selectExpr("cast(id / 8 AS decimal(12,3)) AS id")
    semistream.spark.delete(gone, path)
    assert dict(rows_of(path)) == {key: n for key, n in expected.items() if key >= 50}, (
        "keys of 3 digits are passed over"
    )
    fine, version = spark.sql("SELECT cast(1.125 AS decimal(9,3)) AS id, 1L AS n"), manifests.load(path).version
    with pytest.raises(RelationBuildError, match=r"keys of decimal128\(9, 3\) with more digits than R's"):
        semistream.spark.upsert(fine, path)
    assert manifests.load(path).version == version


def test_a_small_update_leaves_other_shards_alone(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "r"
    semistream.spark.build(products(spark, "id", 0, 500, "old"), path, "id", shards=4, page_size=512).close()
    semistream.spark.upsert(products(spark, "id", 7, 1, "new"), path)
    before, after = manifests.load(path, 1).shards, manifests.load(path, 2).shards
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1
    assert semistream.spark.delete(spark.range(0), path) == 3
    assert rows_of(path, 2) == rows_of(path)


def test_what_cannot_be_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "r"
    semistream.spark.build(products(spark, "id", 0, 50, "old"), path, "id", shards=2, page_size=512).close()
    with pytest.raises(RelationBuildError, match="lacks R's column 'name'"):
        semistream.spark.upsert(spark.range(3), path)
    with pytest.raises(KeyTypeError):
        semistream.spark.delete(spark.range(3).selectExpr("array(id) AS id"), path)
    with pytest.raises(RelationBuildError, match="a page of 512 B holds rows of at most"):
        semistream.spark.upsert(spark.range(3).selectExpr("id", "repeat('x', 600) AS name"), path)
    assert manifests.versions(path) == [1]
    assert len(list(path.glob("shard-*"))) == 4
    Relation.build(pa.table({"id": [1]}), tmp_path / "s", "id", clustered=False).close()
    with pytest.raises(UnsupportedJoinError, match="not clustered"):
        semistream.spark.compact(spark, tmp_path / "s")


def test_from_the_command_line(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda _: None)  # it is the tests' own
    path = tmp_path / "r"
    Relation.build(pa.table({"id": [1, 2, 3], "name": ["apple", "fig", "pear"]}), path, "id", shards=2).close()
    (tmp_path / "new.csv").write_text("name,id\ndate,2\nkiwi,4\n")
    pq.write_table(pa.table({"id": [1], "reason": ["sold out"]}), tmp_path / "gone.parquet")
    commands = [["upsert", tmp_path / "new.csv"], ["delete", tmp_path / "gone.parquet"], ["compact"]]
    for version, command in enumerate(commands, 2):
        arguments = [*map(str, command), str(path), "--spark", "local[2,3]"]
        outcome = CliRunner().invoke(app, arguments)
        assert f"Committed version {version}" in outcome.output, outcome.output + repr(outcome.exception)
    assert rows_of(path) == [(2, "date"), (3, "pear"), (4, "kiwi")]


def test_rows_with_a_null_key_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "r"
    semistream.spark.build(products(spark, "id", 0, 10, "old"), path, "id", shards=2).close()
    changes = spark.createDataFrame(
        [(1, "new"), (None, "no key"), (None, "no key"), (12, "new")], "id long, name string"
    )
    version = semistream.spark.upsert(changes, path)
    assert manifests.load(path, version).properties["rows_with_null_key"] == "2"
    version = semistream.spark.delete(changes, path)
    assert manifests.load(path, version).properties["rows_with_null_key"] == "2", "there is no row to leave out"
