"""Writes what pyiceberg's public interface cannot: snapshots that move rows, and partitions by any transform.

The entries, manifests and metadata are pyiceberg's own. Only the operation of a snapshot, and the choice of the files,
are made here.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, write_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import FileScanTask, Table, WriteTask
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT

__all__ = ["append_files", "compact_files", "files_of", "replace_files", "rows_in", "swap_files", "written"]


class _Replace(_OverwriteFiles):
    """An overwrite whose snapshot says that it changes no rows, as the specification asks of a compaction."""

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        made = super()._summary(snapshot_properties).model_dump()
        return Summary(**{**made, "operation": Operation.REPLACE})


def files_of(table: Table) -> list[DataFile]:
    """Return the data files of the newest snapshot, in an order that depends on their content only."""
    files = [task.file for task in table.scan().plan_files()]
    return sorted(files, key=lambda file: (file.record_count, repr(file.lower_bounds), repr(file.upper_bounds)))


def rows_in(table: Table, files: Iterable[DataFile]) -> pa.Table:
    """Return the rows of data files, in the table's present columns."""
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    return scan.to_table([FileScanTask(file) for file in files])


def written(table: Table, rows: pa.Table) -> list[DataFile]:
    """Write rows as data files that no snapshot has yet, one for each partition."""
    name, numbers = uuid.uuid4(), itertools.count()
    tasks = (
        WriteTask(name, next(numbers), table.schema(), part.combine_chunks().to_batches(), partition_key=key)
        for key, part in _partitions(table, rows)
    )
    return list(write_file(table.io, table.metadata, tasks))


def append_files(table: Table, files: Iterable[DataFile]) -> None:
    """Commit data files."""
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        for file in files:
            update.append_data_file(file)


def swap_files(table: Table, old: Iterable[DataFile], new: Iterable[DataFile]) -> None:
    """Commit a snapshot that has other files, and says that its rows changed."""
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as update:
        _swap(update, old, new)


def replace_files(table: Table, old: Iterable[DataFile], new: Iterable[DataFile]) -> None:
    """Commit a snapshot of the operation ``replace``: other files, which have the same rows."""
    with table.transaction() as transaction, _Replace(Operation.OVERWRITE, transaction, table.io) as update:
        _swap(update, old, new)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation == Operation.REPLACE


def compact_files(table: Table, files: list[DataFile], pieces: int = 1) -> None:
    """Move the rows of some files to others, of about equal size."""
    rows = rows_in(table, files)
    each = max(1, -(-rows.num_rows // pieces))
    new = [written(table, rows.slice(at, each)) for at in range(0, rows.num_rows, each)]
    replace_files(table, files, itertools.chain(*new))


def _swap(update: _OverwriteFiles, old: Iterable[DataFile], new: Iterable[DataFile]) -> None:
    for file in old:
        update.delete_data_file(file)
    for file in new:
        update.append_data_file(file)


def _partitions(table: Table, rows: pa.Table) -> Iterator[tuple[PartitionKey | None, pa.Table]]:
    """Divide rows by partition. The transforms are pyiceberg's for one value; those of columns need another package."""
    spec, schema = table.spec(), table.schema()
    if spec.is_unpartitioned():
        yield None, rows
        return
    values = []
    for field in spec.fields:
        of_one = field.transform.transform(schema.find_type(field.source_id))
        values.append([of_one(value) for value in _internal(rows[schema.find_column_name(field.source_id)])])
    parts: dict[tuple[Any, ...], list[int]] = {}
    for at, key in enumerate(zip(*values, strict=True)):
        parts.setdefault(key, []).append(at)
    for key, places in parts.items():
        fields = [PartitionFieldValue(field, value) for field, value in zip(spec.fields, key, strict=True)]
        yield PartitionKey(fields, spec, schema), rows.take(pa.array(places))


def _internal(column: pa.ChunkedArray) -> list[Any]:
    """Return values as Iceberg represents them: moments as microseconds."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return list(column.to_pylist())
