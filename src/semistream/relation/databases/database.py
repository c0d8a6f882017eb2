"""The interface of every kind of database: connect, return a table's columns, and read its rows as Arrow batches."""

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
"""Placeholder for a value in a statement, until it is replaced by the driver's own placeholder."""


@dataclass(frozen=True)
class TableName:
    """A table, and its schema if that is not the connection's default.

    >>> TableName.parse("sales.facts")
    TableName(name='facts', schema='sales')
    >>> TableName.parse("facts").schema is None
    True
    """

    name: str
    schema: str | None = None

    @classmethod
    def parse(cls, text: str | TableName) -> TableName:
        """Read ``table`` or ``schema.table``. For a name that contains a dot, construct a `TableName`."""
        if isinstance(text, TableName):
            return text
        schema, _, name = text.rpartition(".")
        if not name:
            raise DatabaseError(f"{text!r} is not the name of a table; write table, or schema.table")
        return cls(name, schema or None)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


class Database(ABC):
    """One database. Every call opens its own connection and closes it.

    Identifiers are quoted in statements, by `quoted`. Values are never part of a statement; the driver gets them
    separately.
    """

    quote = '"'

    def __init__(self, address: DatabaseAddress) -> None:
        self.address = address

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address})"

    @abstractmethod
    def connect(self) -> AbstractContextManager[Any]:
        """Return a driver connection that closes at the end of a ``with`` block. Autocommit is off."""

    @abstractmethod
    def schema(self, table: str | TableName) -> pa.Schema:
        """Return a table's columns as an Arrow schema."""

    @abstractmethod
    def batches(
        self, table: str | TableName, columns: Sequence[str], schema: pa.Schema, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield a table's rows as they arrive from the server, in the types of ``schema``."""

    @abstractmethod
    def column_type(self, field: pa.Field, *, key: bool = False) -> str:
        """Return the SQL type that holds any value of ``field``; with ``key``, a type that can be a primary key."""

    @abstractmethod
    def select(
        self, connection: Any, statements: Sequence[str], values: pa.Array | None, schema: pa.Schema
    ) -> pa.RecordBatch:
        """Return the combined rows of several SELECTs, and end the transaction.

        Parameters
        ----------
        connection
            A connection from `connect`.
        statements
            They contain `VALUE` in place of each value. No identifier can contain `VALUE`.
        values
            The values, in order.
        schema
            Types of the result, column by column.
        """

    @abstractmethod
    def byte_length(self, field: pa.Field) -> str:
        """Return an expression for the byte length of a text or binary column, 0 for NULL."""

    def whole(self, expression: str) -> str:
        """Return an expression as a 64-bit integer."""
        return f"CAST({expression} AS BIGINT)"

    def quotient(self, expression: str, divisor: int) -> str:
        """Return an expression for the integer quotient of a non-negative number and ``divisor``."""
        return self.whole(f"FLOOR(({expression}) / {divisor})")

    def reader(
        self, table: str | TableName, columns: Sequence[str] | None = None, *, batch_rows: int = BATCH_ROWS
    ) -> pa.RecordBatchReader:
        """Return all rows of a table from one snapshot, in batches.

        Parameters
        ----------
        table
            ``table`` or ``schema.table``.
        columns
            Columns to read; by default all.
        batch_rows
            Rows per batch, which determines the memory.
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
        """Return an identifier quoted for a statement.

        The standard only requires doubling the quote. No server accepts a NUL.
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
        """Return the error for a table that does not exist."""
        return DatabaseError(
            f"there is no table {table} in {self.address}, or {self.address.user or 'you'} may not see it; check the "
            "name, its schema and the permissions"
        )


def unsupported(kind: str, field: pa.Field) -> DatabaseError:
    """Return the error for a column that a database has no type for."""
    return DatabaseError(
        f"column {field.name!r} is {field.type}, which cannot be a column in {kind}; drop it, or make it text, for "
        "example with to_json"
    )


def one_row(values: pa.Array) -> pa.RecordBatch:
    """Return values in the form that ADBC needs: one row, with one column per value."""
    columns = [values.slice(number, 1) for number in range(len(values))]
    return pa.RecordBatch.from_arrays(columns, names=[str(number) for number in range(len(values))])
