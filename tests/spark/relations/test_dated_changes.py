"""A stream of changes makes history: each change at its own time, each micro-batch one version, once whatever dies."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import semistream
from semistream.core.errors import RelationBuildError
from semistream.spark import debezium_changes, write_changes
from semistream.spark.pipeline.document import PipelineError
from semistream.spark.pipeline.running import load, start

pytestmark = pytest.mark.spark
SCHEMA = "id long, name string, op string, changed timestamp, seq long"
MOMENT = pa.timestamp("us", "UTC")


@pytest.fixture
def products(tmp_path: Path) -> Path:
    rows = pa.table({
        "id": pa.array(range(400), pa.int64()), "since": pa.array([0] * 400, pa.int64()).cast(MOMENT),
        "until": pa.nulls(400, MOMENT), "name": [f"old {number}" for number in range(400)],
    })  # fmt: skip
    path = tmp_path / "products"
    semistream.Relation.build(rows, path, "id", valid_from="since", valid_to="until", shards=2, page_size=1024).close()
    return path


def send(folder: Path, number: int, changes: list[tuple[Any, ...]]) -> None:
    folder.mkdir(exist_ok=True)
    names = ("id", "name", "op", "changed", "seq")
    rows = [json.dumps(dict(zip(names, change, strict=True))) for change in changes]
    (folder / f"{number}.json").write_text("\n".join(rows))
    os.utime(folder / f"{number}.json", (1_700_000_000 + number,) * 2)  # Spark reads older files first


def feed(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))


def run(changes: DataFrame, path: Path, folder: Path, **options: Any) -> None:
    writer = write_changes(changes, path, at="changed", **options).option("checkpointLocation", str(folder / "check"))
    writer.trigger(availableNow=True).start().awaitTermination()


def versions(path: Path, key: int) -> list[tuple[int, int | None, str]]:
    """Return the rows of a key: the seconds of begin and end, and the name."""
    with semistream.Relation.open(path) as relation:
        rows = [row for row in relation.to_table().to_pylist() if row["id"] == key]
    seconds = [
        [None if row[name] is None else round(row[name].timestamp()) for name in ("since", "until")] for row in rows
    ]
    return sorted((since, until, row["name"]) for (since, until), row in zip(seconds, rows, strict=True))


def at(second: int) -> str:
    return f"1970-01-01T00:00:{second:02}Z"


@pytest.mark.long
def test_changes_make_history_once(spark: SparkSession, tmp_path: Path, products: Path) -> None:
    feeding = tmp_path / "in"
    send(
        feeding,
        0,
        [(1, "a", "u", at(10), 1), (1, "b", "u", at(20), 2), (2, None, "d", at(5), 3), (500, "x", "c", at(7), 4)],
    )
    send(feeding, 1, [(1, "late", "u", at(15), 5), (2, "back", "c", at(9), 6), (1, None, "d", at(30), 7)])
    run(feed(spark, feeding), products, tmp_path)
    expected = {
        1: [(0, 10, "old 1"), (10, 15, "a"), (15, 20, "late"), (20, 30, "b")],
        2: [(0, 5, "old 2"), (9, None, "back")],
        3: [(0, None, "old 3")],
        500: [(7, None, "x")],
    }
    assert {key: versions(products, key) for key in expected} == expected
    with semistream.Relation.open(products) as relation:
        before = relation.version
    for name in ("1", ".1.crc"):  # as if the driver had died after the version was committed
        (tmp_path / "check/commits" / name).unlink(missing_ok=True)
    send(feeding, 2, [(3, "new", "u", at(40), 8), (3, "newer", "u", at(40), 9)])
    with pytest.raises(StreamingQueryException, match="changed twice in one micro-batch"):
        run(feed(spark, feeding), products, tmp_path)
    run(feed(spark, feeding), products, tmp_path, order="seq")
    assert {key: versions(products, key) for key in (1, 2, 500)} == {key: expected[key] for key in (1, 2, 500)}
    assert versions(products, 3) == [(0, 40, "old 3"), (40, None, "newer")]
    with semistream.Relation.open(products) as relation:
        assert relation.version == before + 1, "the repeated batch changed nothing"
    sales = spark.sql("SELECT 1L AS id, timestamp_seconds(s) AS sold FROM VALUES 12, 17, 25, 35 AS t(s)")
    found = semistream.join(sales, products, on="id", as_of="sold", columns=["name"]).orderBy("sold").collect()
    assert [row.name for row in found] == ["a", "late", "b", None]


def test_debezium_with_the_time_of_the_source(spark: SparkSession, tmp_path: Path, products: Path) -> None:
    (tmp_path / "in").mkdir()
    row = {"id": 7, "name": "seven"}
    messages = [
        {"op": "u", "before": None, "after": row, "source": {"ts_ms": 11_000}, "ts_ms": 99_000},
        {"payload": {"op": "d", "before": row, "after": None, "source": {"ts_ms": 12_000}, "ts_ms": 99_000}},
    ]
    (tmp_path / "in" / "0.txt").write_text("\n".join(map(json.dumps, messages)))
    text = spark.readStream.text(str(tmp_path / "in"))
    run(debezium_changes(text, "id long, name string", at="changed"), products, tmp_path)
    assert versions(products, 7) == [(0, 11, "old 7"), (11, 12, "seven")]


def test_what_cannot_work_is_refused(spark: SparkSession, tmp_path: Path, products: Path) -> None:
    (tmp_path / "in").mkdir()
    changes = feed(spark, tmp_path / "in")
    with pytest.raises(RelationBuildError, match=r"is a history, so changes need their times; give at=.*timestamp"):
        write_changes(changes, products)
    with pytest.raises(RelationBuildError, match="lack the column 'when'"):
        write_changes(changes, products, at="when")
    with pytest.raises(RelationBuildError, match=r"at='seq' is bigint, but R's 'since' is timestamp; cast it"):
        write_changes(changes, products, at="seq")
    with pytest.raises(RelationBuildError, match=r"a column 'until', which at='changed' sets"):
        write_changes(changes.selectExpr("*", "changed AS until"), products, at="changed")
    semistream.Relation.build(pa.table({"id": [1], "name": ["a"]}), tmp_path / "plain", "id").close()
    with pytest.raises(RelationBuildError, match="needs a history"):
        write_changes(changes, tmp_path / "plain", at="changed")


PIPELINE = f"""\
checkpoint = "check"
trigger = "available now"
[source]
format = "json"
path = "feed"
schema = "{SCHEMA}"
[sink]
format = "relation"
path = "products"
order = "seq"
at = "changed"
"""


@pytest.mark.long
def test_a_pipeline_file_makes_history(spark: SparkSession, tmp_path: Path, products: Path) -> None:
    """``at`` names the column of the change times; mistakes in it are reported before a start, with their line."""
    send(
        tmp_path / "feed", 0,
        [(1, "b", "u", at(20), 2), (1, "a", "u", at(10), 1), (2, None, "d", at(5), 3), (3, "x", "u", at(9), 4),
         (3, "y", "u", at(9), 5), (500, "new", "c", at(7), 6)],
    )  # fmt: skip
    file = tmp_path / "changes.toml"
    for wrong, told in (
        (PIPELINE.replace('at = "changed"', ""), "line 7: .*is a history, so changes need their times"),
        (PIPELINE.replace('at = "changed"', 'at = "when"'), "line 7: the changes lack the column 'when'"),
        (PIPELINE.replace('at = "changed"', 'at = "seq"'), "line 7: at='seq' is bigint, but R's 'since' is timestamp"),
    ):
        file.write_text(wrong)
        with pytest.raises(PipelineError, match=told):
            load(file)
    file.write_text(PIPELINE)
    start(load(file)).awaitTermination()
    assert {key: versions(products, key) for key in (0, 1, 2, 3, 500)} == {
        0: [(0, None, "old 0")],
        1: [(0, 10, "old 1"), (10, 20, "a"), (20, None, "b")],
        2: [(0, 5, "old 2")],
        3: [(0, 9, "old 3"), (9, None, "y")],
        500: [(7, None, "new")],
    }
    assert [version.number for version in semistream.history(products)] == [1, 2], "a micro-batch is one version"
