"""A Delta table as the source of a relation. Its log is read directly, because it says exactly what a commit changed.

::

    _delta_log/00000000000000000007.json     one action per line
        add      a data file; dataChange is false if a compaction wrote it
        remove   a data file
        cdc      a file of changed rows, if the table has a change data feed; replaces reading add and remove
        metaData, protocol                   the schema and the features from here on
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyarrow.fs import FileSystem, PyFileSystem

from semistream.core.errors import MissingExtraError, SemistreamError
from semistream.relation.followed.parquet_rows import constant, parquet_rows
from semistream.relation.followed.source_table import (
    ChangedBatch,
    Commit,
    ExpiredCommitError,
    FollowError,
    SourceTable,
    SourceUnavailableError,
    plain_schema,
    reading,
)
from semistream.relation.rows.selection import keep_rows

__all__ = ["DeltaSource"]

_SUPPORTED = frozenset({"timestampNtz", "vacuumProtocolCheck", "v2Checkpoint", "deletionVectors", "typeWidening"})
"""Reader features with which files can be read as they are. Tables that use deletion vectors are refused below."""
_CHANGE = "_change_type"
_ADDED, _REMOVED = ("insert", "update_postimage"), ("delete", "update_preimage")
_NO_LOCATION = "Invalid table location"
_NO_TYPE = re.compile("Schema error|Invalid decimal")
"""What the reader's error says if there is no directory, and if the schema has a type that it does not know."""
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/|/")


class _File(NamedTuple):
    path: str
    partition: Mapping[str, str | None]


class DeltaSource(SourceTable):
    """A Delta table.

    Parameters
    ----------
    table
        Directory or address.
    options
        Options for object stores, as in the package `deltalake`.
    """

    format = "delta"

    def __init__(self, table: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> None:
        self.table = os.fspath(table)
        self._options = dict(options or {}) or None
        self._at = functools.lru_cache(maxsize=2)(self._loaded)
        self._check(self._at(int(self.newest().name)))

    @property
    def id(self) -> str:
        return str(self._loaded(None).metadata().id)  # not from `_at`: the table may have been made again

    def newest(self) -> Commit:
        return self._commit(self._newest())

    def commits_after(self, name: str) -> list[Commit]:
        newest = self._newest()
        if newest < int(name):
            raise FollowError(
                f"the newest version of {self.table} is {newest}, and the relation has version {name}: the table was "
                "replaced, or its log was restored from a copy; rebuild the relation"
            )
        return [self._commit(version) for version in range(int(name) + 1, newest + 1)]

    def schema(self, commit: Commit) -> pa.Schema:
        table = self._at(int(commit.name))
        self._check(table)
        try:
            return plain_schema(pa.schema(table.schema()))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise FollowError(
                f"{self.table} has a column of a type that Arrow does not have: {error}; drop or cast the column"
            ) from error

    def snapshot(self, commit: Commit) -> Iterator[pa.RecordBatch]:
        schema, table = self.schema(commit), self._at(int(commit.name))
        actions = pa.table(table.get_add_actions())
        paths = actions.column("path").to_pylist()
        held = table.metadata().partition_columns
        values = actions.column("partition").to_pylist() if held else [{}] * len(paths)
        for path, partition in zip(paths, values, strict=True):
            constants = {name: pa.scalar(value, schema.field(name).type) for name, value in partition.items()}
            yield from self._rows(unquote(path), schema, constants)

    def changes(self, before: str, commit: Commit) -> Iterator[ChangedBatch]:
        schema = self.schema(commit)
        actions = self._actions(int(commit.name))
        if any(action["add"].get("deletionVector") for action in actions if "add" in action):
            raise _deletion_vectors(self.table)
        feed = [_file(action["cdc"]) for action in actions if "cdc" in action]
        if feed:
            for file in feed:
                yield from self._fed(file, schema)
            return
        for kind in ("remove", "add"):
            for action in actions:
                # A compaction moves rows from file to file and changes none.
                if kind in action and action[kind].get("dataChange", True):
                    file = self._complete(int(before), action[kind])
                    for rows in self._rows(file.path, schema, _constants(file, schema)):
                        yield ChangedBatch(kind == "add", rows)

    def _fed(self, file: _File, schema: pa.Schema) -> Iterator[ChangedBatch]:
        for rows in self._rows(file.path, schema, _constants(file, schema), [_CHANGE]):
            kinds = np.asarray(rows.column(_CHANGE).to_pylist(), object)
            for added, names in ((False, _REMOVED), (True, _ADDED)):
                yield ChangedBatch(added, keep_rows(rows.select(schema.names), np.isin(kinds, names)))

    def _rows(
        self, path: str, schema: pa.Schema, constants: Mapping[str, pa.Scalar], extra: list[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        if _ABSOLUTE.match(path):
            raise FollowError(
                f"{self.table} refers to the file {path} outside of its directory, as a shallow clone does; follow "
                "the table that was cloned, or make a deep clone"
            )
        with reading(path, self.table):
            try:
                file = self._files.open_input_file(path)
            except FileNotFoundError:
                raise ExpiredCommitError(
                    f"the file {path} of {self.table} is not there: VACUUM removed it before the relation had its "
                    "commit; rebuild the relation from the newest version, follow more often, or keep files longer "
                    "(delta.deletedFileRetentionDuration)"
                ) from None
            with file:
                yield from parquet_rows(file, path, schema, constants, extra or ())

    def _complete(self, before: int, action: Mapping[str, Any]) -> _File:
        """Return a file with its partition values, which the action that removes it may not repeat."""
        if action.get("partitionValues") is not None or not self._at(before).metadata().partition_columns:
            return _file(action)
        actions = pa.table(self._at(before).get_add_actions())
        path = unquote(action["path"])  # writers may encode it in other ways than the action that added the file
        for at, added in enumerate(actions.column("path").to_pylist()):
            if unquote(added) == path:
                values = actions.column("partition")[at].as_py()
                return _File(path, {name: _text(value) for name, value in values.items()})
        raise FollowError(
            f"a commit of {self.table} removes the file {path}, which version {before} does not have; rebuild the "
            "relation from the newest version"
        )

    @functools.cached_property
    def _files(self) -> FileSystem:
        from deltalake.fs import DeltaStorageHandler

        table = self._at(self._newest())
        return PyFileSystem(DeltaStorageHandler.from_table(table._table, self._options))

    def _newest(self) -> int:
        return int(self._loaded(None).version())

    def _loaded(self, version: int | None) -> Any:
        try:
            import deltalake
        except ImportError:
            raise MissingExtraError("deltalake", "delta") from None
        try:
            return deltalake.DeltaTable(self.table, version=version, storage_options=self._options)
        except (deltalake.exceptions.DeltaError, OSError, ValueError) as error:
            if version is not None:
                raise self._expired(version) from error
            raise self._unreadable(error, isinstance(error, deltalake.exceptions.TableNotFoundError)) from error

    def _unreadable(self, error: Exception, not_found: bool) -> SemistreamError:
        """Return what is wrong with the newest version, and the remedy."""
        why = str(error).strip().partition("\n")[0].rstrip(". ")
        if not_found or _NO_LOCATION in why:
            return FollowError(
                f"there is no Delta table at {self.table}; give the directory that has _delta_log, or name the "
                "catalog of an Iceberg table"
            )
        if _NO_TYPE.search(why):
            return FollowError(
                f"{self.table} has a column of a type that cannot be read ({why}); drop or cast the column, or follow "
                "a copy without it"
            )
        return SourceUnavailableError(
            f"cannot read the Delta table {self.table}: {why}; check the address, the storage options and the "
            "permissions, and try again"
        )

    def _expired(self, version: int) -> ExpiredCommitError:
        return ExpiredCommitError(
            f"{self.table} no longer has version {version}: its log was cleaned up before the relation had that "
            "version; rebuild the relation from the newest version, follow more often, or keep the log longer "
            "(delta.logRetentionDuration)"
        )

    def _actions(self, version: int) -> list[dict[str, Any]]:
        try:
            with self._files.open_input_file(f"_delta_log/{version:020d}.json") as log:
                lines = log.read().split(b"\n")  # in a text, U+0085 and U+2028 would end lines too
        except FileNotFoundError:
            raise self._expired(version) from None
        return [json.loads(line) for line in lines if line.strip()]

    def _commit(self, version: int) -> Commit:
        try:
            actions = self._actions(version)
        except ExpiredCommitError:
            if version < self._newest():
                raise
            return Commit(str(version), 0.0)  # the newest may be in a checkpoint only
        info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        moment = info.get("inCommitTimestamp") or info.get("timestamp")
        return Commit(str(version), moment / 1000 if isinstance(moment, int | float) else 0.0)  # it may be anything

    def _check(self, table: Any) -> None:
        """Raise if the table uses a feature with which its files cannot be read as they are."""
        mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
        features = set(table.protocol().reader_features or ())
        if mode != "none":
            raise FollowError(
                f"{self.table} uses column mapping (delta.columnMapping.mode = {mode}), which follow does not support: "
                "its files have other column names; write the table again without it, and follow the copy"
            )
        if table.metadata().configuration.get("delta.enableDeletionVectors") == "true":
            raise _deletion_vectors(self.table)
        if "deletionVectors" in features and any(batch.num_rows for batch in table.deletion_vectors()):
            raise _deletion_vectors(self.table)
        if unknown := sorted(features - _SUPPORTED - {"columnMapping"}):
            raise FollowError(
                f"{self.table} uses the feature {unknown[0]!r}, which follow does not support; drop the feature (ALTER "
                f"TABLE … DROP FEATURE {unknown[0]}), or follow a copy without it"
            )


def _deletion_vectors(table: str) -> FollowError:
    return FollowError(
        f"{table} uses deletion vectors, which follow does not support: its files still have the deleted rows; turn "
        "them off (ALTER TABLE … SET TBLPROPERTIES ('delta.enableDeletionVectors' = false)), and rewrite the files "
        "that have some (REORG TABLE … APPLY (PURGE))"
    )


def _file(action: Mapping[str, Any]) -> _File:
    return _File(unquote(action["path"]), action.get("partitionValues") or {})


def _constants(file: _File, schema: pa.Schema) -> dict[str, pa.Scalar]:
    return {
        name: constant(text, schema.field(name).type) for name, text in file.partition.items() if name in schema.names
    }


def _text(value: object) -> str | None:
    if value is None or isinstance(value, bytes):
        return None if value is None else value.decode()
    return str(value).lower() if isinstance(value, bool) else str(value)
