"""Partition folders: long values, letters of other scripts, and what each reader gets back from the names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from semistream.spark.sinks import DeltaSink, ParquetSink, SinkError

LONG = "日" * 29  # 87 bytes of UTF-8, 261 if each byte is escaped
ODD = ["x/ y", "a=b", "%41", "ä", None, "'", "..", "plain", "a+b", "2:30", "{[*?]}^", '\\"#', "\x01\x7f", LONG]
ROWS = [{"n": number, "p": value} for number, value in enumerate(ODD)]


def table(values: list[Any]) -> pa.Table:
    return pa.table({"n": pa.array(range(len(values)), pa.int64()), "p": pa.array(values, pa.string())})


def by_pyarrow(path: Path) -> list[dict[str, Any]]:
    naming = ds.partitioning(pa.schema([("p", pa.string())]), flavor="hive")
    return ds.dataset(path, partitioning=naming).to_table().to_pylist()  # type: ignore[no-any-return]


def by_duckdb(path: Path) -> list[dict[str, Any]]:
    duckdb = pytest.importorskip("duckdb")
    options = "hive_partitioning=true, hive_types_autocast=false"
    found = duckdb.sql(f"SELECT n, p FROM read_parquet('{path}/**/*.parquet', {options})")
    return [{"n": n, "p": p} for n, p in found.fetchall()]


def by_polars(path: Path) -> list[dict[str, Any]]:
    polars = pytest.importorskip("polars")
    found = polars.read_parquet(path / "**/*.parquet", hive_partitioning=True, try_parse_hive_dates=False)
    return found.to_dicts()  # type: ignore[no-any-return]


@pytest.mark.parametrize("read", [by_pyarrow, by_duckdb, by_polars])
def test_all_readers_get_the_values_back(tmp_path: Path, read: Any) -> None:
    """Also with a folder in which each byte is escaped, as version 0.1 wrote it."""
    assert ParquetSink(tmp_path / "facts", partition_by=["p"]).write(table(ODD), "q", 0)
    (tmp_path / "facts" / "p=%C3%A4").mkdir()
    pq.write_table(pa.table({"n": [100]}), tmp_path / "facts" / "p=%C3%A4" / "old.parquet")
    expected = [*ROWS, {"n": 100, "p": "ä"}]
    assert sorted(read(tmp_path / "facts"), key=lambda row: row["n"]) == expected


@pytest.mark.spark
def test_spark_gets_the_values_back_and_names_folders_alike(spark: Any, tmp_path: Path) -> None:
    assert ParquetSink(tmp_path / "ours", partition_by=["p"]).write(table(ODD), "q", 0)
    found = spark.read.schema("n long, p string").parquet(str(tmp_path / "ours")).orderBy("n").collect()
    assert [row.asDict() for row in found] == ROWS
    rows = spark.createDataFrame([(row["n"], row["p"]) for row in ROWS], "n long, p string")
    rows.write.partitionBy("p").parquet(str(tmp_path / "spark"))
    ours, theirs = (
        {folder.name for folder in (tmp_path / name).iterdir() if folder.name.startswith("p=")}
        for name in ("ours", "spark")
    )
    assert ours == theirs


@pytest.mark.parametrize("value", [LONG, "é" * 43, "日" * 84, "a" * 253], ids=["29", "43", "84", "253"])
@pytest.mark.parametrize("kind", [ParquetSink, DeltaSink])
def test_long_values_are_partitions(tmp_path: Path, kind: type[Any], value: str) -> None:
    sink = kind(tmp_path / "facts", partition_by=["p"])
    assert sink.write(table([value, "short"]), "q", 0)
    assert sorted(_read(sink), key=lambda row: row["n"]) == [{"n": 0, "p": value}, {"n": 1, "p": "short"}]


def test_delta_takes_values_of_any_length(tmp_path: Path) -> None:
    """Also two that begin alike, and several columns whose folders would be too long together."""
    values = ["日" * 3000, "日" * 3001, "x" * 5000]
    rows = table(values)
    for number in range(20):
        rows = rows.append_column(f"q{number}", pa.array(["y" * 240] * 3))
    sink = DeltaSink(tmp_path / "facts", partition_by=["p", *(f"q{number}" for number in range(20))])
    assert sink.write(rows, "q", 0)
    assert sorted(_read(sink), key=lambda row: row["n"]) == rows.to_pylist()


def test_parquet_refuses_what_the_file_system_cannot_name(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "facts", partition_by=["p"])
    with pytest.raises(
        SinkError,
        match=r"has '日+…' \(85 characters\) in partition column 'p'.* 257 bytes, but the file system allows 255\. "
        r"Part",
    ):
        sink.write(table(["short", "日" * 85]), "q", 0)
    assert not [path for path in (tmp_path / "facts").rglob("*") if path.is_file()]
    assert not sink.holds("q", 0)
    assert sink.write(table(["short"]), "q", 0)


def test_parquet_refuses_paths_that_are_too_long_together(tmp_path: Path) -> None:
    names = [f"q{number}" for number in range(20)]
    rows = pa.table({"n": [1]} | {name: ["y" * 240] for name in names})
    sink = ParquetSink(tmp_path / "facts", partition_by=names)
    with pytest.raises(SinkError, match=r"would have 48\d\d bytes together, but the file system allows 3\d\d\d below"):
        sink.write(rows, "q", 0)
    assert ParquetSink(tmp_path / "facts", partition_by=names[:10]).write(rows, "q", 0)


@pytest.mark.parametrize("name", ["a/b", "a=b"])
def test_parquet_refuses_names_of_columns_that_no_reader_finds(tmp_path: Path, name: str) -> None:
    rows = pa.table({"n": [1], name: ["x"]})
    with pytest.raises(SinkError, match="rename the column, or write to a Delta table"):
        ParquetSink(tmp_path / "facts", partition_by=[name]).check(rows.schema)
    sink = DeltaSink(tmp_path / "delta", partition_by=[name])
    assert sink.write(rows, "q", 0)
    assert _read(sink) == rows.to_pylist()


def test_queries_may_have_long_names(tmp_path: Path) -> None:
    sink, names = ParquetSink(tmp_path / "facts"), ["q" * 222, "q" * 223, "q" * 400, "ü" * 300, "ü" * 301]
    for at, name in enumerate(names):
        assert sink.write(table(["x"] * (at + 1)), name, 0)
        assert not sink.write(table(["x"]), name, 0)
    assert len(by_pyarrow(tmp_path / "facts")) == sum(range(len(names) + 1))


def _read(sink: ParquetSink | DeltaSink) -> list[dict[str, Any]]:
    if isinstance(sink, ParquetSink):
        return by_pyarrow(sink.path)
    from deltalake import DeltaTable

    return DeltaTable(sink.path).to_pyarrow_table().to_pylist()  # type: ignore[no-any-return]
