"""Files of micro-batches that were not committed: no reader sees them, and the next try removes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from semistream.spark.sinks import ParquetSink

ROWS = pa.table({"n": pa.array(range(6), pa.int64()), "day": ["mon", "tue", None] * 2})


def by_duckdb(path: Path) -> list[int]:
    duckdb = pytest.importorskip("duckdb")
    return [n for (n,) in duckdb.sql(f"SELECT n FROM read_parquet('{path}/**/*.parquet')").fetchall()]


def by_polars(path: Path) -> list[int]:
    polars = pytest.importorskip("polars")
    return polars.read_parquet(path / "**/*.parquet")["n"].to_list()  # type: ignore[no-any-return]


def by_pyarrow(path: Path) -> list[int]:
    return ds.dataset(path, partitioning="hive").to_table()["n"].to_pylist()  # type: ignore[no-any-return]


def by_pyarrow_without_rules(path: Path) -> list[int]:
    """Arrow does not ignore prefixes if it gets a list of files."""
    return ds.dataset(sorted(map(str, path.rglob("*.parquet")))).to_table()["n"].to_pylist()  # type: ignore[no-any-return]


@pytest.fixture(params=[(), ("day",)], ids=["flat", "partitioned"])
def leftovers(tmp_path: Path, request: pytest.FixtureRequest) -> ParquetSink:
    """A sink with one batch, and with staged files of a second one."""
    sink = ParquetSink(tmp_path / "facts", partition_by=request.param)
    assert sink.write(ROWS, "q", 0)
    share = sink.stage(ROWS.schema, "q", 1).open()
    for part in ROWS.to_batches():
        share.append(part)
    share.finish()
    return sink


@pytest.mark.parametrize("read", [by_duckdb, by_polars, by_pyarrow, by_pyarrow_without_rules])
def test_readers_do_not_see_staged_files(leftovers: ParquetSink, read: Any) -> None:
    assert sorted(read(leftovers.path)) == list(range(6))


def test_each_part_of_a_staged_path_is_hidden(leftovers: ParquetSink) -> None:
    committed = set(leftovers.path.rglob("*.parquet"))
    staged = {path for path in leftovers.path.rglob("*") if path.is_file()} - committed
    staged -= {leftovers.path / "_semistream" / "q.json"}
    assert staged
    for path in staged:
        assert all(part.startswith(("_", ".")) for part in path.relative_to(leftovers.path).parts), path


def test_leftovers_are_removed_also_those_of_older_versions(leftovers: ParquetSink) -> None:
    """And only those of the query itself, not those of a query with a similar name."""
    folder = leftovers.path / "_semistream"
    old = folder / "q+0123456789abcdef0123456789abcdef" / "day=mon"
    old.mkdir(parents=True)
    pq.write_table(ROWS, old / "part-1.parquet")
    (folder / "q+00000000000000000000000000000000").write_text("{}")  # a note that was not renamed
    others = {Path(leftovers.stage(ROWS.schema, name, 0).folder) for name in ("_q", ".q", "q-1")}
    assert leftovers.write(ROWS, "q", 1)
    assert others == {path for path in folder.iterdir() if path.is_dir()}
    assert {path.name for path in folder.iterdir() if path.is_file()} == {"q.json"}
    assert sorted(by_pyarrow(leftovers.path)) == sorted([*range(6)] * 2)


@pytest.mark.parametrize("query", ["_q", "über", " q"])
def test_committed_files_are_seen_whatever_the_query_is_called(tmp_path: Path, query: str) -> None:
    """Files were named after the query, and readers ignore names that start with ``_``."""
    assert ParquetSink(tmp_path / "facts").write(ROWS, query, 0)
    assert sorted(by_pyarrow(tmp_path / "facts")) == list(range(6))
