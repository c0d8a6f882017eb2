"""Each micro-batch reads one version of R, and a replay of it the same one, whatever was committed meanwhile."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQueryException

import semistream
from semistream.relation.relation import Relation
from semistream.relation.versions import pins

KEYS = 200


def master(version: int) -> pa.Table:
    return pa.table({"id": np.arange(KEYS), "version": np.full(KEYS, version)})


@pytest.fixture
def relation(tmp_path: Path) -> Path:
    Relation.build(master(1), tmp_path / "r", "id", shards=2, page_size=512)
    return tmp_path / "r"


def more_sales(tmp_path: Path, number: int) -> None:
    (tmp_path / "sales").mkdir(exist_ok=True)
    keys = np.random.default_rng(number).integers(0, KEYS, 300)
    pq.write_table(pa.table({"id": keys, "n": np.arange(300) + 300 * number}), tmp_path / "sales" / f"{number}.parquet")


def run(spark: SparkSession, tmp_path: Path, relation: Path, seen: dict[int, list[set[int]]]) -> str:
    """Process all files that are there, one a batch; note the versions that each batch has seen."""

    def sink(batch: DataFrame, number: int) -> None:
        rows = batch.select("n", "version").collect()
        assert len(rows) == 300
        seen.setdefault(number, []).append({row.version for row in rows})

    stream = spark.readStream.schema("id long, n long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "sales"))
    joined = semistream.join(stream, relation, on="id", memory="1MB", algorithm="hybridjoin")
    query = (
        joined.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return str(query.id)


@pytest.mark.spark
def test_a_replayed_batch_reads_the_version_it_was_pinned_to(spark, tmp_path, relation):
    seen: dict[int, list[set[int]]] = {}
    more_sales(tmp_path, 0)
    query = run(spark, tmp_path, relation, seen)
    semistream.upsert(relation, master(2))
    more_sales(tmp_path, 1)
    run(spark, tmp_path, relation, seen)
    assert seen == {0: [{1}], 1: [{2}]}
    # as if the driver had died after the batch was processed and before it was committed
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink(missing_ok=True)
    semistream.upsert(relation, master(3))
    semistream.vacuum(relation, older_than=-1)
    more_sales(tmp_path, 2)
    assert run(spark, tmp_path, relation, seen) == query
    assert seen == {0: [{1}], 1: [{2}, {2}], 2: [{3}]}
    assert pins.pinned_versions(relation) == {1, 2, 3}


@pytest.mark.spark
def test_a_version_of_another_shape_stops_the_query(spark, tmp_path, relation):
    more_sales(tmp_path, 0)
    stream = spark.readStream.schema("id long, n long").parquet(str(tmp_path / "sales"))
    joined = semistream.join(stream, relation, on="id", memory="1MB", algorithm="hybridjoin")
    Relation.build(master(2).rename_columns(["id", "other"]), relation, "id", shards=3, overwrite=True)
    query = joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(StreamingQueryException, match=r"other columns than this query .* with: other, version"):
        query.processAllAvailable()


def test_the_first_to_pin_decides(relation):
    assert pins.version_for(relation, "q-1", 7) == 1
    semistream.upsert(relation, master(2))
    assert pins.version_for(relation, "q-1", 7) == 1
    assert pins.version_for(relation, "q-1", 8) == 2
    assert pins.version_for(relation, "q-2", 7) == 2


def test_old_pins_go_and_free_their_versions(relation):
    for batch in range(pins.KEPT_PINS + 5):
        assert pins.version_for(relation, "q-1", batch) == batch + 1
        semistream.upsert(relation, pa.table({"id": [1], "version": [batch]}))
    assert pins.pinned_versions(relation) == set(range(6, pins.KEPT_PINS + 6))
    semistream.vacuum(relation, older_than=-1)
    assert [version.number for version in semistream.history(relation)] == list(range(6, pins.KEPT_PINS + 7))
    semistream.vacuum(relation, idle_days=-1, older_than=-1)
    assert len(semistream.history(relation)) == 1


def test_a_strange_query_id_is_refused(relation):
    with pytest.raises(ValueError, match="query id"):
        pins.version_for(relation, "../elsewhere", 1)


def test_a_pin_counts_at_once_and_is_flushed_meanwhile(relation, monkeypatch):
    may_flush, flushed = threading.Event(), []
    sync = os.fsync

    def slow_sync(descriptor):
        assert may_flush.wait(120)
        flushed.append(descriptor)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", slow_sync)
    pin = pins.pin_version(relation, "q-1", 7)
    assert pin.version == 1
    assert pins.pin_version(relation, "q-1", 7) == pins.Pin(1), "the second to come has nothing to flush"
    assert not flushed
    may_flush.set()
    pin.wait()
    assert len(flushed) == 4, "the pin, its directory, and the two above that have new names"


def test_an_error_while_flushing_fails_the_batch(relation, monkeypatch):
    def refuse(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        pins.pin_version(relation, "q-1", 7).wait()


def test_an_empty_pin_is_none(relation):
    """What a power failure may leave of a pin whose batch had not ended."""
    pins.version_for(relation, "q-1", 7)
    semistream.upsert(relation, master(2))
    (relation / pins.PINS / "q-1" / f"{7:012d}").write_text("")
    assert pins.version_for(relation, "q-1", 7) == 2
    assert pins.version_for(relation, "q-1", 7) == 2
