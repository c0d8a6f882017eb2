from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from servers import Server

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from semistream.relation.databases import DatabaseAddress, DatabaseError, open_database
from semistream.spark.sinks import BatchSink, DatabaseSink, DeltaSink, ParquetSink, SinkError, write_stream

DATABASES = ["postgresql", "mariadb"]
MOMENT = datetime.datetime(2024, 5, 17, 12, 30, 0, 250_001, tzinfo=datetime.UTC)


@pytest.fixture(params=DATABASES)
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def table_name(request: pytest.FixtureRequest) -> str:
    """A name of its own for each test, and not an easy one."""
    return f'facts %s `of` "{abs(hash(request.node.name)) % 10**6}"'


def batch(*ids: int, note: str | None = "it's \\ % \" `") -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            'a"b`c%s': pa.array([note] * len(ids), pa.string()),
            "amount": pa.array([Decimal(f"{id}.25") for id in ids], pa.decimal128(12, 2)),
            "moment": pa.array([MOMENT] * len(ids), pa.timestamp("us", tz="UTC")),
            "day": pa.array([MOMENT.date()] * len(ids), pa.date32()),
            "share": pa.array([0.1] * len(ids), pa.float64()),
            "good": pa.array([id % 2 == 0 for id in ids], pa.bool_()),
            "raw": pa.array([b"\x00\xff'"] * len(ids), pa.binary()),
        }
    )


def stored(server: Server, table: str) -> list[dict[str, Any]]:
    found = open_database(server.url, server.password).reader(table).read_all()
    return sorted(found.to_pylist(), key=lambda row: row["id"])


def test_rows_come_back_as_they_went(server: Server, table_name: str) -> None:
    sink = DatabaseSink(server.url, table_name, password=server.password)
    assert sink.write(batch(1, 2), "q", 0)
    assert sink.write(batch(3, note=None), "q", 1)
    rows = stored(server, table_name)
    expected = [*batch(1, 2).to_pylist(), *batch(3, note=None).to_pylist()]
    if server.url.startswith("mariadb"):  # its DATETIME knows no zone, its BOOLEAN is a number
        expected = [row | {"moment": MOMENT.replace(tzinfo=None)} for row in expected]
    assert rows == expected


@pytest.mark.sampled
def test_replay_changes_nothing(server: Server, table_name: str) -> None:
    def sink(**options: Any) -> DatabaseSink:
        return DatabaseSink(server.url, table_name, password=server.password, **options)

    assert sink().write(batch(1, 2), "q", 0)
    assert sink().write(batch(3), "q", 1)
    # The last batch again, an older one again, and with other rows than before.
    assert not sink().write(batch(3), "q", 1)
    assert not sink().write(batch(1, 2), "q", 0)
    assert not sink().write(batch(7), "q", 1)
    assert [row["id"] for row in stored(server, table_name)] == [1, 2, 3]
    # Another query counts for itself; an empty batch counts too.
    assert sink().write(batch(4), "other", 0)
    assert sink().write(batch(), "q", 2)
    assert not sink().write(batch(5), "q", 2)
    assert [row["id"] for row in stored(server, table_name)] == [1, 2, 3, 4]


@pytest.mark.sampled
def test_queries_are_told_apart_by_all_of_their_names(server: Server, table_name: str) -> None:
    sink = DatabaseSink(server.url, table_name, password=server.password)
    names = ["daily", "daily ", "q" * 200, "q" * 201, "q" * 202]
    assert all(sink.write(batch(at), name, 0) for at, name in enumerate(names))
    assert not any(sink.write(batch(at), name, 0) for at, name in enumerate(names))
    assert [row["id"] for row in stored(server, table_name)] == [*range(len(names))]


def test_upsert_keeps_one_row_a_key(server: Server, table_name: str) -> None:
    sink = DatabaseSink(server.url, table_name, key="id", password=server.password)
    name = batch().schema.names[1]
    sink.write(batch(1, 2, 2, note="old"), "q", 0)
    sink.write(batch(2, 3, 3, note="new"), "q", 1)
    assert [(row["id"], row[name]) for row in stored(server, table_name)] == [(1, "old"), (2, "new"), (3, "new")]


def test_keys_of_text_are_told_apart_by_case_and_several_columns(server: Server, table_name: str) -> None:
    sink = DatabaseSink(server.url, table_name, key=["k", "id"], password=server.password)
    rows = pa.table({"k": ["a", "A", "a", "a"], "id": [1, 1, 2, 1]})
    sink.write(rows, "q", 0)
    sink.write(rows, "q", 1)
    found = {(row["k"], row["id"]) for row in stored(server, table_name)}
    assert found == {("a", 1), ("A", 1), ("a", 2)}
    assert len(stored(server, table_name)) == 3


@pytest.mark.sampled
def test_batch_that_fails_leaves_nothing(server: Server, table_name: str) -> None:
    sink = DatabaseSink(server.url, table_name, password=server.password)
    sink.write(batch(1), "q", 0)
    too_large = batch(2).set_column(2, "amount", pa.array([Decimal("99999999999.5")], pa.decimal128(13, 1)))
    with pytest.raises(Exception, match=r"(?i)overflow|range"):
        sink.write(too_large, "q", 1)
    assert [row["id"] for row in stored(server, table_name)] == [1]
    # The batch is not noted as done either.
    assert sink.write(batch(2), "q", 1)
    assert [row["id"] for row in stored(server, table_name)] == [1, 2]


def test_password_is_in_no_text(server: Server, table_name: str) -> None:
    sink = DatabaseSink(server.url, table_name, password=server.password)
    assert server.password not in f"{sink!r} {sink.database!r} {sink.database.address!r} {vars(sink)}"
    wrong = DatabaseSink(server.url, table_name, password="not-the-password")
    with pytest.raises(DatabaseError, match="cannot connect") as failure:
        wrong.write(batch(1), "q", 0)
    assert "not-the-password" not in repr(failure.value) + str(failure.value.__cause__)


def test_what_a_sink_can_never_take_is_said_before(server: Server) -> None:
    with pytest.raises(SinkError, match="no column 'sale' for the key; there are id"):
        DatabaseSink(server.url, "facts", key="sale", password=server.password).check(batch().schema)
    nested = pa.schema({"id": pa.int64(), "m": pa.map_(pa.string(), pa.int64())})
    with pytest.raises(DatabaseError, match="column 'm' is map"):
        DatabaseSink(server.url, "facts", password=server.password).check(nested)


def test_addresses_that_are_none() -> None:
    for url in ("oracle://x/y", "postgresql://h:port/db", "mariadb://u:pw@host", "sqlite://relative/file"):
        with pytest.raises(DatabaseError) as failure:
            DatabaseAddress.parse(url)
        assert "pw" not in str(failure.value)
    with pytest.raises(SinkError, match="SQLite cannot be a sink"):
        DatabaseSink("sqlite:///tmp/x.db", "t")


@pytest.mark.parametrize("make", [ParquetSink, DeltaSink])
def test_rows_keep_the_values_that_they_are_partitioned_by(make: Any, tmp_path: Path) -> None:
    """Names of folders cannot tell all texts apart: then none is taken for another."""
    from deltalake import DeltaTable

    null = "__HIVE_DEFAULT_PARTITION__"
    for number, texts in enumerate((["a", "a\0b", "a"], [null, None], [None, null], ["", "x"])):
        sink = make(tmp_path / str(number), partition_by=["k"])
        rows = pa.table({"k": pa.array(texts, pa.string()), "n": range(len(texts))})
        if make is DeltaSink and "" not in texts:
            assert sink.write(rows, "q", 0)
            found = DeltaTable(tmp_path / str(number)).to_pyarrow_table().sort_by("n")
            assert found["k"].to_pylist() == texts
            continue
        with pytest.raises(SinkError, match=r"in partition column 'k'.*or another text"):
            sink.write(rows, "q", 0)
        assert not sink.holds("q", 0)
    numbers = pa.table({"k": [0.0, -0.0, float("nan"), float("nan"), None], "n": range(5)})
    assert make(tmp_path / "numbers", partition_by=["k"]).write(numbers, "q", 0)
    files = [path.parent.name for path in (tmp_path / "numbers").rglob("*.parquet")]
    assert sorted(files) == ["k=-0", "k=0", "k=__HIVE_DEFAULT_PARTITION__", "k=nan"]
    with pytest.raises(SinkError, match=r"'k' is binary.*hex\(\)"):
        make(tmp_path / "b", partition_by=["k"]).write(pa.table({"k": [b"\xff"], "n": [1]}), "q", 0)


@pytest.mark.parametrize("make", [ParquetSink, DeltaSink])
def test_one_text_is_one_column_to_partition_by(make: Any, tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2], "day": ["monday", "tuesday"]})
    for number, given in enumerate(("day", ("day",), (name for name in ["day"]))):
        sink = make(tmp_path / str(number), partition_by=given)
        assert sink.partition_by == ["day"]
        assert sink.write(rows, "q", 0)
        folders = {path.parent.name for path in (tmp_path / str(number)).rglob("*.parquet")}
        assert folders == {"day=monday", "day=tuesday"}


def test_delta_replay_changes_nothing(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    rows = pa.table({"id": [1, 2], "day": [MOMENT.date()] * 2})
    sink = DeltaSink(tmp_path / "facts", partition_by=["day"])
    assert sink.write(rows, "q", 0)
    assert sink.write(rows, "q", 1)
    assert not DeltaSink(tmp_path / "facts").write(rows, "q", 1)
    assert not sink.write(rows, "q", 0)
    assert sink.write(rows, "other", 0)
    table = DeltaTable(tmp_path / "facts")
    assert table.to_pyarrow_table().num_rows == 6
    assert table.metadata().partition_columns == ["day"]


def test_delta_writer_that_looked_too_early_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two drivers of one query: the second commits between the first one's look and its commit."""
    import deltalake

    rows = pa.table({"id": [1, 2]})
    sink = DeltaSink(tmp_path / "facts")
    sink.write(rows, "q", 0)
    write = deltalake.DeltaTable.create_write_transaction

    def slow_write(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        assert DeltaSink(tmp_path / "facts").write(rows, "q", 1)
        write(*arguments, **options)

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", slow_write)
    with pytest.raises(deltalake.exceptions.DeltaError):
        sink.write(rows, "q", 1)
    assert deltalake.DeltaTable(tmp_path / "facts").to_pyarrow_table().num_rows == 4


def run(spark: SparkSession, files: Path, folder: Path, sink: BatchSink, rerun: int | None = None) -> None:
    """Run a query over all files; with ``rerun``, as if it had been stopped before that batch was noted as done."""
    if rerun is not None:
        for name in (f"{rerun}", f".{rerun}.crc"):
            (folder / "checkpoint" / "commits" / name).unlink()
    stream = spark.readStream.schema("id long, day date").option("maxFilesPerTrigger", 1).parquet(str(files))
    query = (
        write_stream(stream, sink).option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()


@pytest.mark.sampled
@pytest.mark.spark
@pytest.mark.parametrize("kind", ["delta", *DATABASES])
def test_query_that_is_stopped_before_its_commit(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    files = tmp_path / "files"
    for part in range(2):
        frame: DataFrame = spark.range(part * 100, part * 100 + 100).selectExpr("id", "date'2024-01-01' AS day")
        frame.coalesce(1).write.mode("append").parquet(str(files))
    make: Callable[[], BatchSink]
    if kind == "delta":
        make = lambda: DeltaSink(tmp_path / "facts")  # noqa: E731
        read = lambda: open_delta(tmp_path / "facts")  # noqa: E731
    else:
        server: Server = request.getfixturevalue(kind)
        make = lambda: DatabaseSink(server.url, "streamed", password=server.password)  # noqa: E731
        read = lambda: [row["id"] for row in stored(server, "streamed")]  # noqa: E731
    run(spark, files, tmp_path, make())
    assert read() == list(range(200))
    run(spark, files, tmp_path, make(), rerun=1)
    assert (tmp_path / "checkpoint" / "commits" / "1").exists()
    assert read() == list(range(200))


def open_delta(path: Path) -> list[int]:
    from deltalake import DeltaTable

    return sorted(DeltaTable(path).to_pyarrow_table()["id"].to_pylist())
