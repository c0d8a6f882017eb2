"""A directory of Parquet files as a sink: a batch's files have its number in their names."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from semistream.core.paths import local_path
from semistream.relation.storage.manifest import sync_directory
from semistream.spark.sinks.sink import BatchSink, SinkError

__all__ = ["ParquetSink"]


class ParquetSink(BatchSink):
    """Write micro-batches as Parquet files, each once.

    Files are written aside, flushed, and renamed to names made of query and batch, so a batch that was stopped half-way
    is written over by its replay, which has the same rows. The last batch of each query is then noted under
    ``_semistream``, a name that readers of Parquet directories pass over.

    Parameters
    ----------
    path
        Directory on a local or shared file system; made with the first batch if it does not exist.
    partition_by
        Columns of whose values there is a directory each, ``day=2024-06-01``.

    Notes
    -----
    Spark's own file sink has a log by which Spark reads such a directory, and files that are not in it do not exist
    then; so a directory with one is refused.
    """

    def __init__(self, path: str | os.PathLike[str], *, partition_by: Sequence[str] = ()) -> None:
        self.path = local_path(path, "sink").absolute()
        self.partition_by = list(partition_by)

    @property
    def place(self) -> str:
        return str(self.path.resolve())

    def check(self, schema: pa.Schema) -> None:
        if missing := [name for name in self.partition_by if name not in schema.names]:
            raise SinkError(f"no column {missing[0]!r} to partition by; there are {', '.join(schema.names)}")
        if (self.path / "_spark_metadata").exists():
            raise SinkError(
                f"{self.path} was written by Spark's own file sink, and Spark would not see more files in it; give "
                "another path"
            )

    def write(self, rows: pa.Table, query: str, batch: int) -> bool:
        name = re.sub(r"[^A-Za-z0-9-]", "_", query)
        ledger = self.path / "_semistream" / f"{name}.json"
        if ledger.exists() and json.loads(ledger.read_text())["batch"] >= batch:
            return False
        if rows.num_rows:
            self._write(rows, f"{name}-{batch:09d}")
        ledger.parent.mkdir(parents=True, exist_ok=True)
        _replace(ledger, json.dumps({"query": query, "batch": batch}).encode())
        return True

    def _write(self, rows: pa.Table, stem: str) -> None:
        for left in (self.path / "_semistream").glob(f"{stem}-*"):  # of a try that was killed
            shutil.rmtree(left, ignore_errors=True)
        aside = self.path / "_semistream" / f"{stem}-{uuid.uuid4().hex}"
        aside.mkdir(parents=True)
        parts = pa.schema([rows.schema.field(name) for name in self.partition_by])
        ds.write_dataset(
            rows, aside, format="parquet", basename_template=f"{stem}-{{i}}.parquet", use_threads=False,
            partitioning=ds.partitioning(parts, flavor="hive"),
        )  # fmt: skip
        for file in sorted(aside.rglob("*.parquet")):
            target = self.path / file.relative_to(aside)
            target.parent.mkdir(parents=True, exist_ok=True)
            sync_directory(file)
            os.replace(file, target)
            sync_directory(target.parent)
        shutil.rmtree(aside)


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(f".{uuid.uuid4().hex}")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)
