"""Sources of a master table: files, a Delta table, or a table in a database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from semistream.cli.relations.table_files import InputError, InputFiles
from semistream.core.arguments import nearest
from semistream.core.paths import is_address, local_path

__all__ = ["MasterInput", "find_master"]

Read = Callable[[int, pa.RecordBatch], None]


class MasterInput(ABC):
    """A table that is read once, batch by batch."""

    nbytes: int | None
    """Total bytes that `reader` will report, if known."""

    @abstractmethod
    def reader(self, read: Read = lambda *_: None) -> pa.RecordBatchReader:
        """Return all rows; ``read`` is called with the bytes read so far and the batch just read."""

    def check_keys(self, schema: pa.Schema, key: Sequence[str]) -> None:
        """Raise if a key column's guessed type cannot be a key."""


def find_master(
    sources: Sequence[str],
    types: Mapping[str, pa.DataType],
    table: str | None = None,
    columns: Sequence[str] = (),
    *,
    known: Mapping[str, pa.DataType] | None = None,
    nulls: Sequence[str] = (),
) -> MasterInput:
    """Return the table that the sources on a command line refer to.

    Parameters
    ----------
    sources
        Files or directories; or one directory of a Delta table; or one address of a database.
    types
        Types of CSV columns, each of which must exist.
    table
        The table in the database.
    columns
        The columns to read; none for all.
    known
        Types of CSV columns that may exist.
    nulls
        Texts in CSV files that are NULL.
    """
    first = sources[0]
    from semistream.relation.delta_table import is_delta

    delta = len(sources) == 1 and not is_address(first) and is_delta(local_path(first))
    if (is_address(first) or delta) and (types or nulls):
        option = "--type" if types else "--null"
        raise InputError(f"{option} is for CSV files, but the columns of {first} have their own types; leave it out")
    if is_address(first):
        if len(sources) > 1:
            raise InputError(f"a relation is built from one table, but {len(sources)} sources were given; give one")
        if not table:
            raise InputError("a database has many tables; name one with --table NAME or --table SCHEMA.NAME")
        return _DatabaseInput(first, table, columns)
    if table:
        raise InputError(f"--table {table} is for databases, but {first} is a path; give the database's address")
    if delta:
        return _DeltaInput(local_path(first), columns)
    paths = [local_path(source, "file") for source in sources]
    return _FileInput(InputFiles.find(paths, types, known=known, nulls=nulls), columns)


class _FileInput(MasterInput):
    def __init__(self, files: InputFiles, columns: Sequence[str]) -> None:
        self.files, self.columns, self.nbytes = files, columns, files.nbytes

    def check_keys(self, schema: pa.Schema, key: Sequence[str]) -> None:
        self.files.check_keys(schema, key)

    def reader(self, read: Read = lambda *_: None) -> pa.RecordBatchReader:
        found = self.files.reader(read)
        if not self.columns:
            return found
        if missing := [name for name in self.columns if name not in found.schema.names]:
            told = f"{self.files.paths[0]} has no column {missing[0]!r}, which is needed; it has"
            hint = nearest(missing[0], found.schema.names)
            raise InputError(f"{told} {', '.join(found.schema.names)}" + (f"; {hint}" if hint else ""))
        names = list(self.columns)
        schema = pa.schema([found.schema.field(name) for name in names])
        return pa.RecordBatchReader.from_batches(schema, (batch.select(names) for batch in found))


class _Counted(MasterInput):
    """Rows of unknown total size; only the bytes seen so far are known."""

    nbytes: int | None = None

    @abstractmethod
    def rows(self) -> pa.RecordBatchReader: ...

    def reader(self, read: Read = lambda *_: None) -> pa.RecordBatchReader:
        rows = self.rows()

        def counted() -> Iterator[pa.RecordBatch]:
            seen = 0
            for batch in rows:
                seen += batch.nbytes
                read(seen, batch)
                yield batch

        return pa.RecordBatchReader.from_batches(rows.schema, counted())


class _DeltaInput(_Counted):
    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.columns = path, columns

    def rows(self) -> pa.RecordBatchReader:
        from semistream.relation.delta_table import delta_reader

        return delta_reader(self.path, self.columns or None)


class _DatabaseInput(_Counted):
    def __init__(self, address: str, table: str, columns: Sequence[str]) -> None:
        from semistream.relation.databases import open_database

        self.database, self.table, self.columns = open_database(address), table, columns

    def rows(self) -> pa.RecordBatchReader:
        return self.database.reader(self.table, self.columns or None)
