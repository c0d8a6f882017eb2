"""Where a master table comes from: files, a Delta table, or a table in a database."""

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
    """A table to be read once, a batch at a time."""

    nbytes: int | None
    """Bytes that `reader` will report in all, if that is known."""

    @abstractmethod
    def reader(self, read: Read = lambda *_: None) -> pa.RecordBatchReader:
        """Return all rows; ``read`` is told the bytes read so far and the batch that they gave."""

    def check_keys(self, schema: pa.Schema, key: Sequence[str]) -> None:
        """Refuse key columns whose guessed type no key can have."""


def find_master(
    sources: Sequence[str],
    types: Mapping[str, pa.DataType],
    table: str | None = None,
    columns: Sequence[str] = (),
    *,
    known: Mapping[str, pa.DataType] | None = None,
    nulls: Sequence[str] = (),
) -> MasterInput:
    """Return the table that the sources of a command line mean.

    Parameters
    ----------
    sources
        Files or directories; or one directory of a Delta table; or one address of a database.
    types
        Types of CSV columns, each of which must be there.
    table
        The table in the database.
    columns
        The columns to read; none for all.
    known
        Types of CSV columns that may be there.
    nulls
        Texts in CSV files that are NULL.
    """
    first = sources[0]
    from semistream.relation.delta_table import is_delta

    delta = len(sources) == 1 and not is_address(first) and is_delta(local_path(first))
    if (is_address(first) or delta) and (types or nulls):
        option = "--type" if types else "--null"
        raise InputError(f"{option} is of CSV files, and the columns of {first} have types of their own; leave it out")
    if is_address(first):
        if len(sources) > 1:
            raise InputError(f"a relation is built from one table; {len(sources)} sources were given")
        if not table:
            raise InputError("a database has many tables; name one with --table NAME or --table SCHEMA.NAME")
        return _DatabaseInput(first, table, columns)
    if table:
        raise InputError(f"--table {table} is of a database, and {first} is a path; give the database's address")
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
            told = f"{self.files.paths[0]} has no column {missing[0]!r}, which it needs; it has"
            hint = nearest(missing[0], found.schema.names)
            raise InputError(f"{told} {', '.join(found.schema.names)}" + (f"; {hint}" if hint else ""))
        names = list(self.columns)
        schema = pa.schema([found.schema.field(name) for name in names])
        return pa.RecordBatchReader.from_batches(schema, (batch.select(names) for batch in found))


class _Counted(MasterInput):
    """Rows of which only the bytes seen so far are known."""

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
