"""An Iceberg table as the source of a relation: its snapshots, and the data files that each added and removed."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semistream.core.errors import MissingExtraError
from semistream.relation.followed.source_table import (
    ChangedBatch,
    ColumnId,
    Commit,
    ExpiredCommitError,
    FollowError,
    SourceTable,
    SourceUnavailableError,
    plain_schema,
    reading,
)
from semistream.relation.rows.fitting import fit

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["IcebergSource"]

_FORMATS = ("PARQUET", "ORC")
_MOVED = "replace"
"""Operation of a snapshot that moves rows from file to file and changes none: a compaction."""


class IcebergSource(SourceTable):
    """An Iceberg table in a catalog that `pyiceberg` can open.

    Parameters
    ----------
    table
        Namespace and name: ``shop.products``.
    catalog
        Name of the catalog in pyiceberg's configuration.
    options
        Properties of the catalog, which override the configuration: ``{"type": "sql", "uri": "sqlite:///…"}``.
    """

    format = "iceberg"

    def __init__(self, table: str, catalog: str = "default", options: Mapping[str, str] | None = None) -> None:
        try:
            import pyiceberg.io.pyarrow  # noqa: F401
            from pyiceberg.catalog import load_catalog
        except ImportError:
            raise MissingExtraError("pyiceberg", "iceberg") from None
        self.table = table
        try:
            self._catalog = load_catalog(catalog, **dict(options or {}))
        except Exception as error:  # each kind of catalog has errors of its own
            raise FollowError(
                f"cannot open the Iceberg catalog {catalog!r}: {error}; name one of pyiceberg's configuration, or give "
                "its properties as options, such as type=sql and uri=sqlite:////data/catalog.db"
            ) from error
        self._schemas = functools.lru_cache(maxsize=8)(self._arrow_schema)
        self._check(self._newest())

    @property
    def id(self) -> str:
        return str(self._loaded.metadata.table_uuid)

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(sorted(self._loaded.schema().identifier_field_names()))

    def newest(self) -> Commit:
        return _commit(self._newest())

    def commits_after(self, name: str) -> list[Commit]:
        self._refresh()
        at: Snapshot | None = self._newest()
        found: list[Commit] = []
        while at is not None and str(at.snapshot_id) != name:
            found.append(_commit(at))
            parent = at.parent_snapshot_id
            at = None if parent is None else self._loaded.snapshot_by_id(parent)
            if at is None and parent is not None:
                raise self._expired(str(parent))
        if at is None:
            known = self._loaded.snapshot_by_id(int(name)) is not None
            why = "was rolled back or replaced" if known else "was rewritten, or its snapshots expired"
            raise ExpiredCommitError(
                f"snapshot {name}, which the relation has, is not in the history of {self.table} any more: the table "
                f"{why}; rebuild the relation from the newest snapshot"
            )
        return found[::-1]

    def schema(self, commit: Commit) -> pa.Schema:
        snapshot = self._snapshot(commit.name)
        self._check(snapshot)
        return self._schemas(self._schema_id(snapshot))

    def column_ids(self, commit: str, schema: pa.Schema) -> Sequence[ColumnId] | None:
        number = self._schema_id(self._snapshot(commit))
        fields = self._loaded.schemas()[number].fields
        defaults = any(getattr(field, "initial_default", None) is not None for field in fields)
        if defaults or not self._schemas(number).equals(schema):
            return None
        # The text of a nested type has the ids of its fields.
        return [ColumnId(one.field_id, "" if one.field_type.is_primitive else str(one.field_type)) for one in fields]

    def snapshot(self, commit: Commit) -> Iterator[pa.RecordBatch]:
        snapshot = self._snapshot(commit.name)
        for manifest in self._manifests(snapshot):
            for entry in self._entries(manifest, discard_deleted=True):
                yield from self._rows(entry.data_file, snapshot)

    def changes(self, before: str, commit: Commit) -> Iterator[ChangedBatch]:
        from pyiceberg.manifest import ManifestEntryStatus

        snapshot = self._snapshot(commit.name)
        if snapshot.summary is not None and snapshot.summary.operation.value == _MOVED:
            return
        for status in (ManifestEntryStatus.DELETED, ManifestEntryStatus.ADDED):
            for manifest in self._manifests(snapshot):
                if manifest.added_snapshot_id != snapshot.snapshot_id:
                    continue  # an earlier snapshot wrote it, and nothing in it is new
                for entry in self._entries(manifest, discard_deleted=False):
                    if entry.status == status and entry.snapshot_id == snapshot.snapshot_id:
                        for rows in self._rows(entry.data_file, snapshot):
                            yield ChangedBatch(status == ManifestEntryStatus.ADDED, rows)

    def _manifests(self, snapshot: Snapshot) -> list[ManifestFile]:
        with reading(snapshot.manifest_list, self.table):
            return snapshot.manifests(self._loaded.io)

    def _entries(self, manifest: ManifestFile, *, discard_deleted: bool) -> list[ManifestEntry]:
        with reading(manifest.manifest_path, self.table):
            return manifest.fetch_manifest_entry(self._loaded.io, discard_deleted=discard_deleted)

    def _rows(self, file: DataFile, snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan
        from pyiceberg.table import FileScanTask

        if file.file_format.value not in _FORMATS:
            raise FollowError(
                f"the file {file.file_path} of {self.table} is {file.file_format.value}, and follow reads Parquet and "
                "ORC; set write.format.default to parquet, and rewrite the data files (rewrite_data_files)"
            )
        number = self._schema_id(snapshot)
        columns, schema = self._loaded.schemas()[number], self._schemas(number)
        scan = ArrowScan(self._loaded.metadata, self._loaded.io, columns, AlwaysTrue())
        with reading(file.file_path, self.table):
            try:
                # The public method reads whole files into memory; this one yields a batch at a time.
                for rows in scan._record_batches_from_scan_tasks_and_deletes([FileScanTask(file)], {}):
                    yield fit(rows.select(schema.names), schema)
            except FileNotFoundError:
                raise ExpiredCommitError(
                    f"the file {file.file_path} of {self.table} is not there: it was removed before the relation had "
                    "its snapshot; rebuild the relation from the newest snapshot, follow more often, or expire "
                    "snapshots later"
                ) from None

    def _arrow_schema(self, number: int) -> pa.Schema:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        try:
            return plain_schema(schema_to_pyarrow(self._loaded.schemas()[number], include_field_ids=False))
        except (TypeError, ValueError, NotImplementedError) as error:
            raise FollowError(
                f"{self.table} has a column of a type that Arrow does not have: {error}; drop or cast the column"
            ) from error

    @functools.cached_property
    def _loaded(self) -> Table:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return self._catalog.load_table(self.table)
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            raise FollowError(
                f"there is no table {self.table} in the Iceberg catalog ({error}); give its namespace and name, such "
                "as shop.products"
            ) from None
        except Exception as error:  # each kind of catalog has errors of its own
            raise SourceUnavailableError(
                f"cannot read the Iceberg table {self.table}: {error}; check that the catalog and its storage are "
                "reachable, and try again"
            ) from error

    def _refresh(self) -> None:
        self.__dict__.pop("_loaded", None)
        self._schemas.cache_clear()

    def _newest(self) -> Snapshot:
        found = self._loaded.current_snapshot()
        if found is None:
            raise FollowError(f"{self.table} has no snapshot yet; follow it once rows were written to it")
        return found

    def _snapshot(self, name: str) -> Snapshot:
        found = self._loaded.snapshot_by_id(int(name))
        if found is None:
            raise self._expired(name)
        return found

    def _schema_id(self, snapshot: Snapshot) -> int:
        return self._loaded.metadata.current_schema_id if snapshot.schema_id is None else snapshot.schema_id

    def _expired(self, name: str) -> ExpiredCommitError:
        return ExpiredCommitError(
            f"snapshot {name} of {self.table} expired before the relation had it; rebuild the relation from the newest "
            "snapshot, follow more often, or expire snapshots later"
        )

    def _check(self, snapshot: Snapshot) -> None:
        """Raise if a snapshot has files of deleted rows."""
        from pyiceberg.manifest import ManifestContent

        for manifest in self._manifests(snapshot):
            if manifest.content == ManifestContent.DELETES and (
                manifest.existing_files_count or manifest.added_files_count
            ):
                raise FollowError(
                    f"{self.table} has files of deleted rows (merge-on-read), which follow does not support; set "
                    "write.delete.mode, write.update.mode and write.merge.mode to copy-on-write, and rewrite the data "
                    "files (rewrite_data_files)"
                )


def _commit(snapshot: Any) -> Commit:
    return Commit(str(snapshot.snapshot_id), snapshot.timestamp_ms / 1000)
