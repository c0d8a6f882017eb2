"""Changes of master data that come as a stream become versions of R, each micro-batch one, and once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import semistream
from semistream.core.errors import RelationBuildError
from semistream.relation.storage import manifest as manifests
from semistream.spark import debezium_changes, write_changes
from semistream.spark.pipeline.document import PipelineError
from semistream.spark.pipeline.running import load, start
from semistream.spark.relations.change_stream import _ChangeWriter

pytestmark = pytest.mark.spark

SCHEMA = "id long, name string, op string, at long"


@pytest.fixture
def products(tmp_path: Path) -> Path:
    rows = pa.table({"id": pa.array(range(3000), pa.int64()), "name": [f"old {number}" for number in range(3000)]})
    semistream.Relation.build(rows, tmp_path / "products", "id", shards=2, page_size=1024).close()
    return tmp_path / "products"


def send(folder: Path, number: int, changes: list[tuple[int, str | None, str, int]]) -> None:
    folder.mkdir(exist_ok=True)
    rows = [json.dumps(dict(zip(("id", "name", "op", "at"), change, strict=True))) for change in changes]
    (folder / f"{number}.json").write_text("\n".join(rows))
    os.utime(folder / f"{number}.json", (1_700_000_000 + number,) * 2)  # Spark reads older files first


def feed(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))


def run(changes: DataFrame, path: Path, folder: Path, **options: Any) -> None:
    writer = write_changes(changes, path, **options).option("checkpointLocation", str(folder / "check"))
    writer.trigger(availableNow=True).start().awaitTermination()


def held(path: Path) -> dict[int, str]:
    with semistream.Relation.open(path) as relation:
        table = relation.to_table()
    return dict(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True))


def test_each_micro_batch_is_a_version_once(spark: SparkSession, tmp_path: Path, products: Path) -> None:
    expected = {number: f"old {number}" for number in range(3000)}
    folder = tmp_path / "feed"
    send(
        folder, 0, [(1, "a", "u", 1), (5000, "new", "c", 2), (2, None, "d", 3), (1, "b", "u", 4), (7777, None, "d", 5)]
    )
    send(folder, 1, [(2, "again", "insert", 6), (5000, None, "delete", 8), (5000, "x", "update", 7)])
    run(feed(spark, folder), products, tmp_path, order="at")
    expected |= {1: "b", 2: "again"}
    assert held(products) == expected
    assert manifests.load(products).version == 3
    # The driver died before Spark noted its last batch as done, and somebody else has changed R since.
    for name in ("1", ".1.crc"):
        (tmp_path / "check" / "commits" / name).unlink()
    semistream.upsert(products, pa.table({"id": [2], "name": ["by hand"]}))
    run(feed(spark, folder), products, tmp_path, order="at")
    assert held(products) == expected | {2: "by hand"}
    assert manifests.load(products).version == 4
    # Many changes make R slow to read: it is written anew, and the batch is still known as done.
    send(folder, 2, [(number, f"new {number}", "u", number) for number in range(0, 3000, 3)])
    run(feed(spark, folder), products, tmp_path, order="at")
    found = manifests.load(products)
    assert found.version == 6
    assert not any(shard.deltas for shard in found.shards)
    assert held(products) == expected | {2: "by hand"} | {number: f"new {number}" for number in range(0, 3000, 3)}


def test_what_is_wrong_with_changes_stops_them(spark: SparkSession, tmp_path: Path, products: Path) -> None:
    folder = tmp_path / "feed"
    send(folder, 0, [(1, "a", "u", 1), (1, "b", "u", 2)])
    with pytest.raises(StreamingQueryException, match=r"a key was changed twice in one micro-batch .* give order="):
        run(feed(spark, folder), products, tmp_path)
    send(folder, 0, [(1, "a", "truncate", 1)])
    with pytest.raises(StreamingQueryException, match="column op says 'truncate'; it must be one of insert, update"):
        run(feed(spark, folder), products, tmp_path / "other")
    assert manifests.load(products).version == 1
    stream = feed(spark, folder)
    with pytest.raises(RelationBuildError, match="the changes lack the column 'name'; they have id, op, at"):
        write_changes(stream.drop("name"), products)
    with pytest.raises(RelationBuildError, match="the changes lack the column 'when'"):
        write_changes(stream, products, order="when")
    with pytest.raises(RelationBuildError, match="must be a streaming DataFrame"):
        write_changes(spark.range(3), products)
    with pytest.raises(ValueError, match="compact_above is a share of R's pages above 0"):
        write_changes(stream, products, compact_above=0)


DOUBTS: list[tuple[list[tuple[Any, ...]], str]] = [
    ([(1, "a", "u", None), (2, "b", "u", 2)], "column at, the order of changes to .* is NULL"),
    ([(None, "a", "u", 1), (2, "b", "u", 2)], "column id, the key of changes to .* is NULL"),
    ([(1, "a", "u", 2), (1, "b", "u", 2), (1, "c", "u", 1)], "two changes of a key .* are the last by column at"),
    ([(1, "a", "u", 2), (1, "a", "d", 2)], "two changes of a key"),
    ([(1, "a", "?", 1), (1, "b", "u", 2)], r"column op says '\?'; it must be one of"),
]


def test_changes_that_are_in_doubt_are_not_lost(spark: SparkSession, products: Path) -> None:
    """Not even the one of a key whose last change cannot be known: it stops the query, and R stays as it was."""
    for changes, told in DOUBTS:
        with pytest.raises(PySparkException, match=told):
            _ChangeWriter(str(products), "op", "at", "q", 0.25)(spark.createDataFrame(changes, SCHEMA), 0)
    assert manifests.load(products).version == 1


def test_batches_of_a_checkpoint_that_is_behind_are_refused(spark: SparkSession, products: Path) -> None:
    write = _ChangeWriter(str(products), "op", "at", "q", 0.25)
    # the same change twice is no doubt
    write(spark.createDataFrame([(1, "a", "u", 1), (1, "a", "u", 1)], SCHEMA), 3)
    write(spark.createDataFrame([(1, "b", "u", 1)], SCHEMA), 3)
    assert (held(products)[1], manifests.load(products).version) == ("a", 2)
    with pytest.raises(
        RelationBuildError, match=r"has batch 3 of 'changes of q', but this is batch 0: .* another query="
    ):
        write(spark.createDataFrame([(2, "lost", "u", 1)], SCHEMA), 0)


def test_messages_of_debezium(spark: SparkSession) -> None:
    row = {"id": 1, "name": "a"}
    messages = [
        (json.dumps({"op": "c", "before": None, "after": row, "ts_ms": 5}), 10),
        (json.dumps({"schema": {"type": "struct"}, "payload": {"op": "u", "before": row, "after": {"id": 1}}}), 11),
        (json.dumps({"payload": {"op": "d", "before": row, "after": None}}), 12),
        (None, 13),
        ("no JSON", 14),
        (json.dumps({"op": "u", "after": {"id": "one", "name": "a"}}), 15),  # never NULL in place of what does not fit
        (json.dumps({"payload": {"op": "u", "after": {"id": 1.5, "name": "a"}}}), 16),
    ]
    frame = spark.createDataFrame(messages, "value string, offset long")
    found = [tuple(each) for each in debezium_changes(frame, "id long, name string").orderBy("offset").collect()]
    assert found[:3] == [(1, "a", "c", 10), (1, None, "u", 11), (1, "a", "d", 12)]
    assert [(op, offset) for *_, op, offset in found[3:]] == [(None, 14), (None, 15), (None, 16)]
    with pytest.raises(RelationBuildError, match="is not a schema; write"):
        debezium_changes(frame, "id of what")


PIPELINE = """\
checkpoint = "check"
trigger = "available now"
[source]
format = "json"
path = "feed"
schema = "id long, name string, op string, at long"
[sink]
format = "relation"
path = "products"
order = "at"
"""


def test_a_pipeline_file_changes_a_relation(spark: SparkSession, tmp_path: Path, products: Path) -> None:
    send(tmp_path / "feed", 0, [(1, "a", "u", 1), (2, None, "d", 2)])
    file = tmp_path / "changes.toml"
    file.write_text(PIPELINE.replace("name string, ", ""))
    with pytest.raises(PipelineError, match="line 7: the changes lack the column 'name'; they have id, op, at"):
        load(file)
    file.write_text(PIPELINE)
    start(load(file)).awaitTermination()
    found = held(products)
    assert (found[1], 2 in found, len(found)) == ("a", False, 2999)
