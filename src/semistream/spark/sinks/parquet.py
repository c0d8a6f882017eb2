"""A directory of Parquet files as a sink: a batch's files have its number in their names."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.core.paths import local_path
from semistream.relation.storage.files import sync_directory
from semistream.spark.sinks.parquet_files import ParquetFiles, flushed_file
from semistream.spark.sinks.sink import BatchSink, Share, SinkError, Staging

__all__ = ["ParquetSink", "check_partitions"]


class ParquetSink(BatchSink["ParquetStaging"]):
    """Write micro-batches as Parquet files, each once.

    Tasks write their files aside and flush them; the driver notes the names that they will have, made of query and
    batch, and renames them. A batch that was stopped half-way is taken back by those notes when it comes again. The
    last batch of each query is noted under ``_semistream``, a name that readers of Parquet directories pass over.

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
        check_partitions(schema, self.partition_by)
        if (self.path / "_spark_metadata").exists():
            raise SinkError(
                f"{self.path} was written by Spark's own file sink, and Spark would not see more files in it; give "
                "another path"
            )

    def holds(self, query: str, batch: int) -> bool:
        return bool(self._noted(query)["batch"] >= batch)

    def stage(self, schema: pa.Schema, query: str, batch: int) -> ParquetStaging:
        check_partitions(schema, self.partition_by)
        folder, stem = self.path / "_semistream", _stem(query)
        folder.mkdir(parents=True, exist_ok=True)
        with self._alone():
            for left in folder.glob(f"{stem}+*"):  # of tries that were killed
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)
        aside = folder / f"{stem}+{uuid.uuid4().hex}"
        aside.mkdir(parents=True)
        return ParquetStaging(str(aside), schema, tuple(self.partition_by))

    def commit(self, staging: ParquetStaging, receipts: Sequence[str], query: str, batch: int) -> bool:
        with self._alone():
            return self._commit(staging, receipts, query, batch)

    def _commit(self, staging: ParquetStaging, receipts: Sequence[str], query: str, batch: int) -> bool:
        noted = self._noted(query)
        if noted["batch"] >= batch:
            return False
        for name in noted.get("moving", ()):  # of a try at this batch that was stopped while it renamed
            with suppress(FileNotFoundError):
                (self.path / name).unlink()
        files = [Path(name) for receipt in receipts for name in json.loads(receipt)]
        stem = f"{_stem(query)}-{batch:09d}"
        moves = {file: file.with_name(f"{stem}-{number}.parquet") for number, file in enumerate(files)}
        if moves:
            self._note(query, noted["batch"], [str(name) for name in moves.values()])
        for file, name in moves.items():
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.replace(Path(staging.folder) / file, self.path / name)
            except FileNotFoundError:
                raise SinkError(
                    f"files of batch {batch} in {staging.folder} are gone: another driver runs the query {query!r} and "
                    "has taken them for those of one that was killed; run one driver on a checkpoint"
                ) from None
        for folder in {(self.path / name).parent for name in moves.values()}:
            for level in (folder, *folder.parents):
                sync_directory(level)
                if level == self.path:
                    break
        self._note(query, batch)
        shutil.rmtree(staging.folder, ignore_errors=True)
        return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep others from changing what is noted; a driver that was given up may be alive."""
        lock = os.open(self.path / "_semistream", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # file systems without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _ledger(self, query: str) -> Path:
        return self.path / "_semistream" / f"{_stem(query)}.json"

    def _noted(self, query: str) -> dict[str, Any]:
        for ledger in (self._ledger(query), self._ledger(query).with_name(f"{_plain(query)}.json")):
            found: dict[str, Any] = json.loads(ledger.read_text()) if ledger.exists() else {}
            if found.get("query") == query:
                return found
        return {"batch": -1}

    def _note(self, query: str, batch: int, moving: Sequence[str] = ()) -> None:
        content = {"query": query, "batch": batch} | ({"moving": list(moving)} if moving else {})
        _replace(self._ledger(query), json.dumps(content).encode())


@dataclass(frozen=True)
class ParquetStaging(Staging):
    """A directory under the sink's, in which tasks write files."""

    folder: str
    schema: pa.Schema
    partition_by: tuple[str, ...]

    def open(self) -> Share:
        return _ParquetShare(self)


class _ParquetShare(Share):
    def __init__(self, staging: ParquetStaging) -> None:
        self._folder = Path(staging.folder)
        self._files = ParquetFiles(staging.schema, staging.partition_by, flushed_file(staging.folder))

    def append(self, rows: pa.RecordBatch) -> None:
        self._files.append(rows)

    def finish(self) -> str:
        return json.dumps([file.path for file in self._files.close()])

    def abandon(self) -> None:
        self._files.abandon(lambda path: (self._folder / path).unlink())


def check_partitions(schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raise if rows cannot be partitioned so."""
    if missing := [name for name in partition_by if name not in schema.names]:
        raise SinkError(f"no column {missing[0]!r} to partition by; there are {', '.join(schema.names)}")
    for name in partition_by:
        if pa.types.is_binary(kind := schema.field(name).type) or pa.types.is_large_binary(kind):
            raise SinkError(f"column {name!r} is {kind}, which no folder can be named by; cast it, as with hex()")
    if partition_by and len(set(partition_by)) == len(schema.names):
        raise SinkError("all columns are partitioned by, so no column is left for the files; partition by fewer")


def _stem(query: str) -> str:
    """Return a name for files of a query, and of no other."""
    plain = _plain(query)
    return plain if plain == query else f"{plain}-{hashlib.blake2b(query.encode(), digest_size=6).hexdigest()}"


def _plain(query: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "_", query)


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.stem}+{uuid.uuid4().hex}")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)
