"""Rows go from tasks into a sink: shares that count, shares that do not, and what a stopped commit leaves."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from semistream.spark.sinks import BatchSink, DatabaseSink, DeltaSink, ParquetSink, SinkError, write_stream
from semistream.spark.sinks import parquet_files as files_module
from servers import Server

ODD = ["x/ y", "a=b", "%41", "ä", None, "'", "..", "plain"]


def batch(count: int = 16) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "part": pa.array([ODD[number % len(ODD)] for number in range(count)], pa.string()),
            "day": pa.array([datetime.date(2024, 1, 1 + number % 3) for number in range(count)], pa.date32()),
            "note": pa.array([None if number % 5 == 0 else f"n{number}" for number in range(count)], pa.string()),
        }
    )


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: row["id"])


def read(sink: BatchSink[Any]) -> pa.Table:
    if isinstance(sink, DeltaSink):
        from deltalake import DeltaTable

        return DeltaTable(sink.path).to_pyarrow_table()
    assert isinstance(sink, ParquetSink)
    kinds = pa.schema([batch().schema.field(name) for name in sink.partition_by])
    return ds.dataset(sink.path, partitioning=ds.partitioning(kinds, flavor="hive")).to_table()


@pytest.mark.parametrize("kind", [DeltaSink, ParquetSink])
@pytest.mark.parametrize("most", [1, 64])
def test_partitions_have_any_value(tmp_path: Path, kind: type[Any], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when fewer files may be open than there are partitions, and rows are written as they come."""
    monkeypatch.setattr(files_module, "_OPEN", most)
    monkeypatch.setattr(files_module, "_HELD", 100)
    sink = kind(tmp_path / "facts", partition_by=["part", "day"])
    for number in range(2):
        assert sink.write(batch(), "q", number)
    expected = sorted([*batch().to_pylist()] * 2, key=lambda row: row["id"])
    assert rows_of(read(sink).select(batch().schema.names)) == expected


def test_delta_says_what_is_in_a_file(tmp_path: Path) -> None:
    """Bounds that are too narrow would make readers pass over rows."""
    from deltalake import DeltaTable

    DeltaSink(tmp_path / "facts").write(batch().drop_columns(["part"]), "q", 0)
    table = DeltaTable(tmp_path / "facts")
    action = pa.table(table.get_add_actions(flatten=True)).to_pylist()[0]
    assert action["num_records"] == 16
    assert (action["min.id"], action["max.id"], action["null_count.note"]) == (0, 15, 4)
    assert (action["min.day"], action["max.day"]) == (datetime.date(2024, 1, 1), datetime.date(2024, 1, 3))
    assert (action["min.note"], action["max.note"]) == ("n1", "n9")
    for wanted in range(16):
        assert table.to_pyarrow_table(filters=[("id", "=", wanted)])["id"].to_pylist() == [wanted]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no memory file system can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.parametrize("kind", [DeltaSink, ParquetSink])
def test_a_full_disk_is_told_and_gets_its_room_back(small_disk: Path, kind: type[Any]) -> None:
    """Also by the process that filled it, which Spark uses for the next try."""
    sink, few = kind(small_disk / "facts"), batch().drop_columns(["part"])
    assert sink.write(few, "q", 0)
    noise = pa.array([os.urandom(30_000).hex() for _ in range(40)])
    with pytest.raises(OSError, match="No space left on device"):
        sink.write(pa.table({"id": range(40), "day": [None] * 40, "note": noise}).cast(few.schema), "q", 1)
    assert sink.write(few, "q", 1)
    assert rows_of(read(sink)) == sorted([*few.to_pylist()] * 2, key=lambda row: row["id"])


def test_delta_tables_are_made_by_several_queries_at_once(tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def write(number: int, query: str) -> None:
        try:
            DeltaSink(tmp_path / f"{number}").write(batch().drop_columns(["part"]), query, 0)
        except BaseException as error:
            failed.append(error)

    for number in range(5):  # others look, and make it, at the same time
        threads = [threading.Thread(target=write, args=(number, query)) for query in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert read(DeltaSink(tmp_path / f"{number}")).num_rows == 4 * 16


def test_delta_tables_that_ask_more_are_refused(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    sink = DeltaSink(tmp_path / "facts")
    sink.write(batch(), "q", 0)
    with pytest.raises(SinkError, match=r"has the columns id, part, day, note, but the rows have id, part, day;"):
        sink.write(batch().drop_columns(["note"]), "q", 1)
    DeltaTable(tmp_path / "facts").alter.add_constraint({"positive": "id >= 0"})
    with pytest.raises(SinkError, match=r"requires of its writers: delta\.constraints\.positive"):
        sink.write(batch(), "q", 1)
    assert read(sink).num_rows == 16


@pytest.mark.parametrize("kind", ["delta", "parquet", "postgresql", "mariadb"])
def test_only_shares_with_a_receipt_count(tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    """Two attempts of one task wrote all its rows, and a third died: one receipt came."""
    sink: BatchSink[Any]
    table = batch().drop_columns(["part"])
    if kind in ("postgresql", "mariadb"):
        server: Server = request.getfixturevalue(kind)
        sink = DatabaseSink(server.url, "shares", password=server.password)
    else:
        sink = (DeltaSink if kind == "delta" else ParquetSink)(tmp_path / "facts")
    staging = sink.stage(table.schema, "q", 0)
    receipts = []
    for _ in range(2):
        share = staging.open()
        for part in table.to_batches(max_chunksize=5):
            share.append(part)
        receipts.append(share.finish())
    died = staging.open()
    died.append(table.to_batches()[0])
    died.abandon()
    assert sink.commit(staging, receipts[1:], "q", 0)
    assert sink.holds("q", 0)
    assert not sink.holds("q", 1)
    assert not sink.commit(staging, receipts[:1], "q", 0)
    if isinstance(sink, DatabaseSink):
        found = sink.database.reader("shares").read_all()
        with sink.database.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT table_name FROM information_schema.tables")
            assert not [name for (name,) in cursor.fetchall() if str(name).startswith("semistream_stage")]
    else:
        found = read(sink)
    assert sorted(found["id"].to_pylist()) == list(range(16))


@pytest.mark.parametrize("stop", range(7))
def test_parquet_commit_that_is_stopped(tmp_path: Path, stop: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped before its n-th rename, and run again by fewer tasks: no row is there twice or not at all."""

    def shares(count: int) -> tuple[Any, list[str]]:
        staging = sink.stage(table.schema, "q", 0)
        receipts = []
        for number in range(count):
            share = staging.open()
            share.append(table.slice(number * 16 // count, 16 // count).combine_chunks().to_batches()[0])
            receipts.append(share.finish())
        return staging, receipts

    sink, table = ParquetSink(tmp_path / "facts"), batch().drop_columns(["part"])
    renames = 0
    replace = os.replace

    def stopped(source: Any, target: Any) -> None:
        nonlocal renames
        renames += 1
        if renames > stop:
            raise KeyboardInterrupt
        replace(source, target)

    staging, receipts = shares(4)
    monkeypatch.setattr(os, "replace", stopped)
    if stop < 6:  # the note of names, four files, the note that it is done
        with pytest.raises(KeyboardInterrupt):
            sink.commit(staging, receipts, "q", 0)
    else:
        assert sink.commit(staging, receipts, "q", 0)
    monkeypatch.undo()
    again = ParquetSink(tmp_path / "facts")
    assert again.holds("q", 0) == (stop == 6)
    if stop < 6:
        assert again.commit(*shares(1), "q", 0)
    assert rows_of(read(again)) == rows_of(table)
    assert [entry.name for entry in (tmp_path / "facts" / "_semistream").iterdir()] == ["q.json"]


def test_two_drivers_of_one_query_do_not_mix_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One was thought dead, and both commit a batch that they have cut into different shares."""
    sink, table = ParquetSink(tmp_path / "facts"), batch().drop_columns(["part"])
    second = sink.stage(table.schema, "q", 0)
    first = sink.stage(table.schema, "q", 0)  # takes what the second has aside for left over, but that comes again

    def receipts(staging: Any, count: int) -> list[str]:
        found = []
        for number in range(count):
            share = staging.open()
            share.append(table.slice(number * 16 // count, 16 // count).combine_chunks().to_batches()[0])
            found.append(share.finish())
        return found

    whole, quarters = receipts(second, 1), receipts(first, 4)
    other = threading.Thread(target=lambda: ParquetSink(tmp_path / "facts").commit(second, whole, "q", 0))
    replace, renamed = os.replace, 0

    def slowly(source: Any, target: Any) -> None:
        nonlocal renamed
        renamed += threading.current_thread() is not other
        if renamed == 5 and other.ident is None:  # the note of names and three files are there
            other.start()
            other.join(0.5)
        replace(source, target)

    monkeypatch.setattr(os, "replace", slowly)
    assert sink.commit(first, quarters, "q", 0)
    other.join()
    assert rows_of(read(sink)) == rows_of(table)
    third = sink.stage(table.schema, "q", 1)
    given = receipts(third, 1)
    sink.stage(table.schema, "q", 1)
    with pytest.raises(SinkError, match="another driver runs the query 'q'"):
        sink.commit(third, given, "q", 1)


def test_queries_of_like_names_are_told_apart(tmp_path: Path) -> None:
    sink, table = ParquetSink(tmp_path / "facts"), batch().drop_columns(["part"])
    for query in ("q", "q-1", "q 1", "q_1"):
        assert sink.write(table, query, 0)
        sink.stage(table.schema, "q", 1)  # clears away what it has left itself, and nothing else
    assert read(sink).num_rows == 4 * 16
    assert all(sink.holds(query, 0) for query in ("q", "q-1", "q 1", "q_1"))


def test_all_columns_cannot_be_partitioned_by(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="no column is left for the files"):
        ParquetSink(tmp_path, partition_by=["id"]).check(pa.schema({"id": pa.int64()}))


@pytest.mark.spark
def test_rows_do_not_pass_through_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and dead letters of several tasks go to two sinks, by one job that returns a receipt a task."""

    def refused(self: DataFrame) -> pa.Table:
        raise AssertionError("a micro-batch came to the driver")

    spark.range(0, 4000, 1, 4).selectExpr("id", "id % 7 AS `odd. name`").write.parquet(str(tmp_path / "files"))
    stream = spark.readStream.schema("id long, `odd. name` long").parquet(str(tmp_path / "files"))
    marked = stream.withColumn("missing_in", F.when(F.col("id") % 10 == 0, F.lit("products")))
    facts, letters = DeltaSink(tmp_path / "facts", partition_by=["odd. name"]), ParquetSink(tmp_path / "letters")
    monkeypatch.setattr(type(spark.range(1)), "toArrow", refused)
    for _ in range(2):
        query = (
            write_stream(marked, facts, dead_letters=letters)
            .option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        (tmp_path / "check" / "commits" / "0").unlink(missing_ok=True)  # the second time it is a replay
    assert sorted(read(facts)["id"].to_pylist()) == [id for id in range(4000) if id % 10]
    found = ds.dataset(tmp_path / "letters").to_table()
    assert sorted(found["id"].to_pylist()) == list(range(0, 4000, 10))
    assert set(found["missing_in"].to_pylist()) == {"products"}
    noted = json.loads(next((tmp_path / "letters" / "_semistream").glob("*.json")).read_text())
    assert noted["batch"] == 0
