"""What every kind of database does: connect, tell a table's columns, and give its rows as Arrow batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from semistream.relation.databases.address import DatabaseAddress, DatabaseError

__all__ = ["BATCH_ROWS", "VALUE", "Database", "TableName", "one_row", "unsupported"]

BATCH_ROWS = 1 << 16
VALUE = "\0"
"""Where a value goes in a statement, until the driver's own sign takes its place."""


@dataclass(frozen=True)
class TableName:
    """A table, and the schema it is in if that is not the connection's own.

    >>> TableName.parse("sales.facts")
    TableName(name='facts', schema='sales')
    >>> TableName.parse("facts").schema is None
    True
    """

    name: str
    schema: str | None = None

    @classmethod
    def parse(cls, text: str | TableName) -> TableName:
        """Read ``table`` or ``schema.table``; a name with a dot in it needs a `TableName` of its own."""
        if isinstance(text, TableName):
            return text
        schema, _, name = text.rpartition(".")
        if not name:
            raise DatabaseError(f"{text!r} is not the name of a table; write table, or schema.table")
        return cls(name, schema or None)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


class Database(ABC):
    """One database; every call opens a connection of its own and closes it.

    Identifiers go into statements quoted, by `quoted`; values never do: they are handed to the driver apart.
    """

    quote = '"'

    def __init__(self, address: DatabaseAddress) -> None:
        self.address = address

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address})"

    @abstractmethod
    def connect(self) -> AbstractContextManager[Any]:
        """Return a connection of the driver's own, which closes at the end of a ``with`` block; not autocommitting."""

    @abstractmethod
    def schema(self, table: str | TableName) -> pa.Schema:
        """Return a table's columns as Arrow has them."""

    @abstractmethod
    def batches(
        self, table: str | TableName, columns: Sequence[str], schema: pa.Schema, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield a table's rows as they come from the server, in the types of ``schema``."""

    @abstractmethod
    def column_type(self, field: pa.Field, *, key: bool = False) -> str:
        """Return the SQL type of a column that holds any value of ``field``; of a primary key, where it can be one."""

    @abstractmethod
    def select(
        self, connection: Any, statements: Sequence[str], values: pa.Array | None, schema: pa.Schema
    ) -> pa.RecordBatch:
        """Return the rows of several SELECTs together, and end the transaction.

        Parameters
        ----------
        connection
            One of `connect`.
        statements
            In place of each value they have `VALUE`, which no identifier can contain.
        values
            The values, in order.
        schema
            Types of the result, column by column.
        """

    @abstractmethod
    def byte_length(self, field: pa.Field) -> str:
        """Return an expression for the bytes of a column's text or bytes, 0 for NULL."""

    def whole(self, expression: str) -> str:
        """Return an expression as a 64-bit integer."""
        return f"CAST({expression} AS BIGINT)"

    def quotient(self, expression: str, divisor: int) -> str:
        """Return how many times ``divisor`` goes into a number that is not negative."""
        return self.whole(f"FLOOR(({expression}) / {divisor})")

    def reader(
        self, table: str | TableName, columns: Sequence[str] | None = None, *, batch_rows: int = BATCH_ROWS
    ) -> pa.RecordBatchReader:
        """Return all rows of a table, of one snapshot, a batch at a time.

        Parameters
        ----------
        table
            ``table`` or ``schema.table``.
        columns
            Which of its columns; by default all.
        batch_rows
            Rows of a batch: the memory that is held.
        """
        schema = self.schema(table)
        if columns is not None:
            columns = list(columns)
            missing = [name for name in columns if name not in schema.names]
            if missing:
                raise DatabaseError(f"{table} has no column {missing[0]!r}; its columns are {', '.join(schema.names)}")
            schema = pa.schema([schema.field(name) for name in columns])
        return pa.RecordBatchReader.from_batches(schema, self.batches(table, schema.names, schema, batch_rows))

    def quoted(self, name: str | TableName) -> str:
        """Return an identifier as it stands in a statement.

        Doubling the quote is all that the standard asks for; no server takes a NUL.
        """
        if isinstance(name, TableName):
            parts = [name.schema, name.name] if name.schema else [name.name]
            return ".".join(self.quoted(part) for part in parts)
        if not name or "\0" in name:
            raise DatabaseError(f"{name!r} cannot be the name of a table or column; rename it")
        return f"{self.quote}{name.replace(self.quote, 2 * self.quote)}{self.quote}"

    def listed(self, names: Sequence[str]) -> str:
        """Return identifiers as a list in a statement."""
        return ", ".join(self.quoted(name) for name in names)

    def no_such_table(self, table: str | TableName) -> DatabaseError:
        """Return the error for a table that is not there."""
        return DatabaseError(
            f"there is no table {table} in {self.address}, or {self.address.user or 'you'} may not see it"
        )


def unsupported(kind: str, field: pa.Field) -> DatabaseError:
    """Return the error for a column that a database has no type for."""
    return DatabaseError(
        f"column {field.name!r} is {field.type}, which cannot be a column in {kind}; drop it, or make it text, for "
        "example with to_json"
    )


def one_row(values: pa.Array) -> pa.RecordBatch:
    """Return values as ADBC takes them: columns of one row."""
    columns = [values.slice(number, 1) for number in range(len(values))]
    return pa.RecordBatch.from_arrays(columns, names=[str(number) for number in range(len(values))])
