"""A Delta table as a sink: tasks write its data files, and one commit of its log adds rows and batch number."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from semistream.core.arguments import listed
from semistream.core.errors import MissingExtraError
from semistream.core.paths import is_address, local_path
from semistream.spark.sinks.delta_actions import add_action, refuse_features
from semistream.spark.sinks.parquet_files import ParquetFiles, flushed_file
from semistream.spark.sinks.partition_folders import check_partitions, delta_folder
from semistream.spark.sinks.sink import BatchSink, Share, SinkError, Staging

__all__ = ["DeltaSink"]

_TRIES = 5
"""Maximum number of attempts to commit a micro-batch while other writers commit."""


class DeltaSink(BatchSink["DeltaStaging"]):
    """Append micro-batches to a Delta table, each once.

    The Delta protocol supports this: a commit may carry the version of an application's transaction (``txn``), here the
    query and its batch. A batch whose number the table has is not written again. If two drivers write for the same
    query, which can only be a mistake, the later one fails, because commits of the same application conflict. Data
    files of tasks that died are in no commit, and Delta's own ``vacuum`` removes them.

    Parameters
    ----------
    path
        Directory or address of the table; created with the first batch if it does not exist.
    partition_by
        Column or columns that partition the table. Any text except an empty one can be a partition value, whatever its
        length: the values are in the table's log, and folder names are only for readability. Used only when the table
        is created.
    storage_options
        Options for object stores, as in the package `deltalake`. Tasks get them too. They are not stored in any file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        partition_by: str | Iterable[str] = (),
        storage_options: dict[str, str] | None = None,
    ) -> None:
        try:
            import deltalake
            import deltalake.transaction
        except ImportError:
            raise MissingExtraError("deltalake", "delta") from None
        self._deltalake = deltalake
        self.path = os.fspath(path) if is_address(path) else str(local_path(path, "sink").absolute())
        self.partition_by = list(listed(partition_by))
        self._storage = storage_options

    @property
    def place(self) -> str:
        return self.path.rstrip("/") if is_address(self.path) else str(Path(self.path).resolve())

    def check(self, schema: pa.Schema) -> None:
        table = self._table()
        if table is None:
            check_partitions(schema, self.partition_by)
        else:
            self._check_table(table, schema)

    def holds(self, query: str, batch: int) -> bool:
        table = self._table()
        return table is not None and self._has(table, query, batch)

    def stage(self, schema: pa.Schema, query: str, batch: int) -> DeltaStaging:
        table = self._table()
        if table is None:
            check_partitions(schema, self.partition_by)
            table = self._made(schema)
        held = self._check_table(table, schema)
        return DeltaStaging(self.path, held, tuple(table.metadata().partition_columns), self._storage)

    def commit(self, staging: DeltaStaging, receipts: Sequence[str], query: str, batch: int) -> bool:
        tries = 0
        while True:
            table = self._table()
            if table is None:
                raise SinkError(
                    f"{self.path} was a Delta table when the micro-batch began, but is not one now; restore it"
                )
            if self._has(table, query, batch):
                return False
            try:
                self._append(table, receipts, query, batch)
            except self._deltalake.exceptions.CommitFailedError:
                # If another query has just created the same table, the files still fit, and the commit is retried.
                # Another driver of this query, or a table with other columns, is an error.
                tries += 1
                if tries == _TRIES or not self._still_fits(staging, query, batch):
                    raise
            else:
                return True

    def _append(self, table: Any, receipts: Sequence[str], query: str, batch: int) -> None:
        """Add the files in one commit on the version that was read; the commit fails if another came in between."""
        delta = self._deltalake
        now = int(time.time() * 1000)
        actions = [
            delta.transaction.AddAction(modification_time=now, data_change=True, **found)
            for receipt in receipts
            for found in json.loads(receipt)
        ]
        table.create_write_transaction(
            actions, "append", table.schema(), table.metadata().partition_columns,
            commit_properties=delta.CommitProperties(app_transactions=[delta.Transaction(_application(query), batch)]),
        )  # fmt: skip

    def _still_fits(self, staging: DeltaStaging, query: str, batch: int) -> bool:
        table = self._table()
        if table is None or self._has(table, query, batch):
            return False
        if tuple(table.metadata().partition_columns) != staging.partition_by:
            return False
        return bool(self._check_table(table, staging.schema) == staging.schema)

    def _made(self, schema: pa.Schema) -> Any:
        """Create the table, or return the table that another query has just created."""
        try:
            return self._deltalake.DeltaTable.create(
                self.path, schema=pa.schema([part.with_nullable(True) for part in schema]), mode="ignore",
                partition_by=self.partition_by or None, storage_options=self._storage,
            )  # fmt: skip
        except self._deltalake.exceptions.CommitFailedError:
            table = self._table()
            if table is None:
                raise
            return table

    def _table(self) -> Any | None:
        delta = self._deltalake
        try:
            return delta.DeltaTable(self.path, storage_options=self._storage)
        except delta.exceptions.TableNotFoundError:
            return None

    def _has(self, table: Any, query: str, batch: int) -> bool:
        done = table.transaction_version(_application(query))
        return done is not None and bool(done >= batch)

    def _check_table(self, table: Any, schema: pa.Schema) -> pa.Schema:
        """Return the table's columns, if rows of ``schema`` can be appended to them."""
        refuse_features(self.path, table)
        held = pa.schema(table.schema().to_arrow())
        if sorted(held.names) != sorted(schema.names):
            raise SinkError(
                f"{self.path} has the columns {', '.join(held.names)}, but the rows have {', '.join(schema.names)}; "
                "give the sink columns, or another path"
            )
        check_partitions(held, table.metadata().partition_columns)
        return held


@dataclass(frozen=True)
class DeltaStaging(Staging):
    """A table's location, and the schema of its rows."""

    path: str
    schema: pa.Schema
    partition_by: tuple[str, ...]
    storage: Mapping[str, str] | None = field(repr=False)

    def open(self) -> Share:
        return _DeltaShare(self)


class _DeltaShare(Share):
    def __init__(self, staging: DeltaStaging) -> None:
        self._staging = staging
        self._create, self._remove = _folder(staging)
        self._files = ParquetFiles(staging.schema, staging.partition_by, self._create, delta_folder)

    def append(self, rows: pa.RecordBatch) -> None:
        schema = self._staging.schema
        self._files.append(rows.select(schema.names).cast(schema))

    def finish(self) -> str:
        return json.dumps([add_action(file) for file in self._files.close()])

    def abandon(self) -> None:
        self._files.abandon(self._remove)


def _folder(staging: DeltaStaging) -> tuple[Callable[[str], Any], Callable[[str], None]]:
    """Return functions that create and remove a file of the table."""
    if not is_address(staging.path):
        return flushed_file(staging.path), lambda path: (Path(staging.path) / path).unlink()
    from deltalake.fs import DeltaStorageHandler

    options = None if staging.storage is None else dict(staging.storage)
    store = pafs.PyFileSystem(DeltaStorageHandler(staging.path, options))
    return store.open_output_stream, store.delete_file


def _application(query: str) -> str:
    return f"semistream/{query}"
