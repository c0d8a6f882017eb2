"""Writes a task's rows to Parquet files, one or more per partition, with little memory."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semistream.spark.sinks.partition_folders import Naming

__all__ = ["FileOnDisk", "ParquetFiles", "PartFile", "flushed_file"]

_HELD = 32 << 20
"""Bytes of buffered rows that become a row group."""
_OPEN = 64
"""Maximum number of open files; the least recently written file is closed first."""


@dataclass(frozen=True)
class PartFile:
    """A file that was written."""

    path: str
    """Relative to the folder."""
    folder: str
    """Folder of the partition, relative to the sink."""
    values: dict[str, Any]
    """Values of the partition columns."""
    size: int
    metadata: pq.FileMetaData = field(repr=False)


@dataclass
class _Part:
    key: tuple[str, ...]
    values: dict[str, Any]
    folder: str
    rows: list[pa.RecordBatch] = field(default_factory=list)
    held: int = 0
    path: str = ""
    target: Any = None
    writer: pq.ParquetWriter | None = None
    metadata: list[pq.FileMetaData] = field(default_factory=list)


class FileOnDisk:
    """A new file in a shared directory, flushed when it is closed."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = open(path, "xb")  # noqa: SIM115 -- closed by `close`
        self.write = self._file.write
        self.tell = self._file.tell
        self.flush = self._file.flush

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        if not self._file.closed:
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
            finally:  # also on a full disk: an open file keeps its disk space
                self._file.close()


def flushed_file(folder: str) -> Callable[[str], FileOnDisk]:
    """Return a function that opens files of a folder by their relative path."""
    return lambda path: FileOnDisk(Path(folder) / path)


class ParquetFiles:
    """Files that grow by row groups of up to 32 MB.

    Parameters
    ----------
    schema
        Schema of the rows. Partition columns are in the folders' names, not in the files.
    partition_by
        Names of the partition columns.
    create
        Opens a file to write, by its path under the folder; closing flushes it.
    naming
        Returns the folder of a partition, or raises if its values cannot name one.
    hidden
        Write all files to one folder under hidden names, not yet to the folders of their partitions.
    """

    def __init__(
        self,
        schema: pa.Schema,
        partition_by: Sequence[str],
        create: Callable[[str], Any],
        naming: Naming,
        *,
        hidden: bool = False,
    ) -> None:
        self._partition_by = list(partition_by)
        self._inside = pa.schema([part for part in schema if part.name not in self._partition_by])
        self._create, self._naming, self._hidden = create, naming, hidden
        self._parts: dict[tuple[str, ...], _Part] = {}
        self._written: list[PartFile] = []
        self._held = 0
        self.paths: list[str] = []
        """Paths of all files that were opened."""

    def append(self, rows: pa.RecordBatch) -> None:
        """Buffer rows, and write a row group if there are enough. Rows may be slices of larger arrays."""
        for values, part in self._split(rows):
            # as text: NaN does not equal itself, and -0.0 equals 0.0
            key = tuple(repr(value.as_py()) for value in values.values())
            found = self._parts.pop(key, None) or _Part(key, values, self._naming(values))
            self._parts[key] = found  # the last entry is the most recently written
            found.rows.append(part)
            found.held += part.nbytes
            self._held += part.nbytes
        while self._held > _HELD:
            self._flush(max(self._parts.values(), key=lambda part: part.held))

    def close(self) -> list[PartFile]:
        """Write the buffered rows and return all files."""
        while self._parts:
            self._finish(next(iter(self._parts.values())))
        return self._written

    def abandon(self, remove: Callable[[str], None]) -> None:
        """Close and remove all files; further errors are ignored, because the first was reported."""
        for part in self._parts.values():
            for opened in (part.writer, part.target):
                with suppress(Exception):
                    if opened is not None:
                        opened.close()
        for path in self.paths:
            with suppress(OSError):
                remove(path)

    def _split(self, rows: pa.RecordBatch) -> list[tuple[dict[str, Any], pa.RecordBatch]]:
        inside = rows.select(self._inside.names)
        if not self._partition_by:
            return [({}, inside)]
        keys = [f"k{number}" for number in range(len(self._partition_by))]
        columns = [rows.column(name) for name in self._partition_by]
        numbered = pa.table([*columns, pa.array(np.arange(rows.num_rows))], names=[*keys, "row"])
        groups = numbered.group_by(keys).aggregate([("row", "list")])
        found = []
        for number in range(groups.num_rows):
            values = {name: groups[key][number] for name, key in zip(self._partition_by, keys, strict=True)}
            found.append((values, inside.take(groups["row_list"][number].values)))
        return found

    def _flush(self, part: _Part) -> None:
        """Write the buffered rows of a part as one row group."""
        if part.writer is None:
            writing = [each for each in self._parts.values() if each.writer is not None]
            if len(writing) >= _OPEN:
                self._finish(writing[0])
            name = f"part-{uuid.uuid4().hex}"
            part.path = f".{name}" if self._hidden else os.path.join(part.folder, f"{name}.parquet")
            self.paths.append(part.path)
            part.target = self._create(part.path)
            part.writer = pq.ParquetWriter(part.target, self._inside, metadata_collector=part.metadata)
        part.writer.write_table(pa.Table.from_batches(part.rows, schema=self._inside))
        self._held -= part.held
        part.rows, part.held = [], 0

    def _finish(self, part: _Part) -> None:
        if part.rows:
            self._flush(part)
        assert part.writer is not None
        part.writer.close()
        size = part.target.tell()
        part.target.close()
        values = {name: value.as_py() for name, value in part.values.items()}
        self._written.append(PartFile(part.path, part.folder, values, size, part.metadata[-1]))
        del self._parts[part.key]
