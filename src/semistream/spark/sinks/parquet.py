"""A directory of Parquet files as a sink; file names contain the number of their batch."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.core.arguments import listed
from semistream.core.paths import local_path
from semistream.relation.storage.files import sync_directory
from semistream.spark.sinks.parquet_files import ParquetFiles, flushed_file
from semistream.spark.sinks.partition_folders import FolderLimits, check_folder_names, check_partitions, parquet_folder
from semistream.spark.sinks.sink import BatchSink, Share, SinkError, Staging

__all__ = ["ParquetSink"]

_LONGEST_STEM = 222
"""Maximum characters of a query's name in a file name. File names have up to 33 more; file systems allow 255."""


class ParquetSink(BatchSink["ParquetStaging"]):
    """Write micro-batches as Parquet files, each once.

    Tasks write hidden files under ``_semistream`` and flush them. The driver records their final names, made of query
    and batch, and renames them. If a batch was stopped half-way, these records undo it when the batch is repeated. The
    last batch of each query is also recorded under ``_semistream``. All readers skip these files:
    Spark and Arrow ignore names with ``_`` or ``.``, and ``**/*.parquet`` (DuckDB, Polars) does not match them.

    Parameters
    ----------
    path
        Directory on a local or shared file system; created with the first batch if it does not exist.
    partition_by
        Column or columns whose values name directories, such as ``day=2024-06-01``. Names are escaped as in Hive and
        Spark. A value whose name is longer than the file system allows (255 bytes on most) raises an error.

    Notes
    -----
    Spark's own file sink keeps a log in its directory. Spark then reads only files that are in the log. So a directory
    with such a log raises an error.
    """

    def __init__(self, path: str | os.PathLike[str], *, partition_by: str | Iterable[str] = ()) -> None:
        self.path = local_path(path, "sink").absolute()
        self.partition_by = list(listed(partition_by))

    @property
    def place(self) -> str:
        return str(self.path.resolve())

    def check(self, schema: pa.Schema) -> None:
        check_partitions(schema, self.partition_by)
        check_folder_names(self.partition_by)
        if (self.path / "_spark_metadata").exists():
            raise SinkError(
                f"{self.path} was written by Spark's own file sink, and Spark would not see more files in it; give "
                "another path"
            )

    def holds(self, query: str, batch: int) -> bool:
        return bool(self._noted(query)["batch"] >= batch)

    def stage(self, schema: pa.Schema, query: str, batch: int) -> ParquetStaging:
        check_partitions(schema, self.partition_by)
        check_folder_names(self.partition_by)
        folder, stem = self.path / "_semistream", _stem(query)
        folder.mkdir(parents=True, exist_ok=True)
        with self._alone():
            # left by killed attempts; version 0.1 used names without the dot
            for left in (*folder.glob(f".{stem}+*"), *folder.glob(f"{stem}+*")):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)
        aside = folder / f".{stem}+{_unique()}"
        aside.mkdir(parents=True)
        return ParquetStaging(str(aside), schema, tuple(self.partition_by), FolderLimits.of(self.path))

    def commit(self, staging: ParquetStaging, receipts: Sequence[str], query: str, batch: int) -> bool:
        with self._alone():
            return self._commit(staging, receipts, query, batch)

    def _commit(self, staging: ParquetStaging, receipts: Sequence[str], query: str, batch: int) -> bool:
        noted = self._noted(query)
        if noted["batch"] >= batch:
            return False
        for name in noted.get("moving", ()):  # from an attempt at this batch that was stopped while renaming
            with suppress(FileNotFoundError):
                (self.path / name).unlink()
        files = [written for receipt in receipts for written in json.loads(receipt)]
        stem = f"{_visible(_stem(query))}-{batch:09d}"
        moves = {file: Path(folder, f"{stem}-{number}.parquet") for number, (file, folder) in enumerate(files)}
        if moves:
            self._note(query, noted["batch"], [str(name) for name in moves.values()])
        for file, name in moves.items():
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.replace(Path(staging.folder) / file, self.path / name)
            except FileNotFoundError:
                raise SinkError(
                    f"files of batch {batch} in {staging.folder} are gone: another driver runs the query {query!r} and "
                    "removed them as leftovers of a killed driver; run one driver per checkpoint"
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
        """Lock the records against other drivers; a driver that was presumed dead may still run."""
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
        for ledger in (self._ledger(query), self._ledger(query).with_name(f"{_plain(query)[:_LONGEST_STEM]}.json")):
            found: dict[str, Any] = json.loads(ledger.read_text()) if ledger.exists() else {}
            if found.get("query") == query:
                return found
        return {"batch": -1}

    def _note(self, query: str, batch: int, moving: Sequence[str] = ()) -> None:
        content = {"query": query, "batch": batch} | ({"moving": list(moving)} if moving else {})
        _replace(self._ledger(query), json.dumps(content).encode())


@dataclass(frozen=True)
class ParquetStaging(Staging):
    """A hidden directory inside the sink's directory, into which tasks write files."""

    folder: str
    schema: pa.Schema
    partition_by: tuple[str, ...]
    limits: FolderLimits

    def open(self) -> Share:
        return _ParquetShare(self)


class _ParquetShare(Share):
    def __init__(self, staging: ParquetStaging) -> None:
        self._folder = Path(staging.folder)
        naming = partial(parquet_folder, limits=staging.limits)
        create = flushed_file(staging.folder)
        self._files = ParquetFiles(staging.schema, staging.partition_by, create, naming, hidden=True)

    def append(self, rows: pa.RecordBatch) -> None:
        self._files.append(rows)

    def finish(self) -> str:
        return json.dumps([(file.path, file.folder) for file in self._files.close()])

    def abandon(self) -> None:
        self._files.abandon(lambda path: (self._folder / path).unlink())


def _stem(query: str) -> str:
    """Return a file name prefix that is unique to a query."""
    plain = _plain(query)
    if plain == query and len(plain) <= _LONGEST_STEM:
        return plain
    sign = hashlib.blake2b(query.encode(), digest_size=6).hexdigest()
    return f"{plain[: _LONGEST_STEM - len(sign) - 1]}-{sign}"


def _visible(stem: str) -> str:
    """Return a name that readers of Parquet directories do not ignore."""
    return f"part{stem}" if stem.startswith("_") else stem


def _plain(query: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "_", query)


def _unique() -> str:
    return uuid.uuid4().hex[:24]


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}+{_unique()}")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)
