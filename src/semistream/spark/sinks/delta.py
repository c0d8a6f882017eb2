"""A Delta table as a sink: rows and batch number are one commit of its log."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from semistream.core.errors import MissingExtraError
from semistream.core.paths import is_address, local_path
from semistream.spark.sinks.sink import BatchSink, SinkError

__all__ = ["DeltaSink"]


class DeltaSink(BatchSink):
    """Append micro-batches to a Delta table, each once.

    The Delta protocol has a place for this: a commit may carry the version of an application's transaction (``txn``),
    here the query and its batch. A batch whose number the table has is not written again; of two writers of one query
    at once, which can only be a mistake, the later fails, as commits that touch one application's version conflict.

    Parameters
    ----------
    path
        Directory or address of the table; made with the first batch if it does not exist.
    partition_by
        Columns of whose values the table gets a directory each. Only used when the table is made.
    storage_options
        For object stores, as the package `deltalake` has them. Not kept in any file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        partition_by: Sequence[str] = (),
        storage_options: dict[str, str] | None = None,
    ) -> None:
        try:
            import deltalake
        except ImportError:
            raise MissingExtraError("deltalake", "delta") from None
        self._deltalake = deltalake
        self.path = os.fspath(path) if is_address(path) else str(local_path(path, "sink").absolute())
        self.partition_by = list(partition_by)
        self._storage = storage_options

    @property
    def place(self) -> str:
        return self.path.rstrip("/") if is_address(self.path) else str(Path(self.path).resolve())

    def check(self, schema: pa.Schema) -> None:
        if missing := [name for name in self.partition_by if name not in schema.names]:
            raise SinkError(f"no column {missing[0]!r} to partition by; there are {', '.join(schema.names)}")

    def write(self, rows: pa.Table, query: str, batch: int) -> bool:
        delta = self._deltalake
        application = f"semistream/{query}"
        try:
            table = delta.DeltaTable(self.path, storage_options=self._storage)
        except delta.exceptions.TableNotFoundError:
            table = None
        if table is not None:
            done = table.transaction_version(application)
            if done is not None and done >= batch:
                return False
        # The table as it was looked at, not its path: if another commit of this query came in between, this one fails.
        delta.write_deltalake(
            self.path if table is None else table,
            rows,
            mode="append",
            partition_by=self.partition_by if table is None and self.partition_by else None,
            storage_options=self._storage,
            commit_properties=delta.CommitProperties(app_transactions=[delta.Transaction(application, batch)]),
        )
        return True
