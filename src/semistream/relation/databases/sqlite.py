"""SQLite through ADBC."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import adbc_driver_manager
import adbc_driver_sqlite.dbapi as driver
import pyarrow as pa

from semistream.relation.databases.address import DatabaseError
from semistream.relation.databases.database import BATCH_ROWS, VALUE, Database, TableName, one_row
from semistream.relation.rows.fitting import one_batch

__all__ = ["SQLite"]

_BATCH_ROWS = "adbc.sqlite.query.batch_rows"
_STORED = {"integer": pa.int64(), "real": pa.float64(), "text": pa.string(), "blob": pa.binary()}


class SQLite(Database):
    """A SQLite file. A column has its declared type, by SQLite's own rules of affinity."""

    def connect(self) -> AbstractContextManager[Any]:
        if not Path(self.address.database).exists():
            raise DatabaseError(f"there is no file {self.address.database}; give the path of a SQLite database file")
        connection: AbstractContextManager[Any] = driver.connect(self.address.database)
        return connection

    def schema(self, table: str | TableName) -> pa.Schema:
        table = TableName.parse(table)
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT name, type FROM pragma_table_info(?, ?)", (table.name, table.schema or "main"))
            columns = cursor.fetchall()
            if not columns:
                raise self.no_such_table(table)
            return pa.schema(
                [pa.field(name, _affinity(declared) or self._stored(cursor, table, name)) for name, declared in columns]
            )

    def _stored(self, cursor: Any, table: TableName, column: str) -> pa.DataType:
        """Return the type of a column's first value, for example of a DATE, which may be text or a number."""
        name = self.quoted(column)
        cursor.execute(f"SELECT typeof({name}) FROM {self.quoted(table)} WHERE {name} IS NOT NULL LIMIT 1")
        row = cursor.fetchone()
        return _STORED[row[0] if row else "text"]

    def batches(
        self, table: str | TableName, columns: Sequence[str], schema: pa.Schema, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        with self.connect() as connection, connection.cursor(adbc_stmt_kwargs={_BATCH_ROWS: batch_rows}) as cursor:
            cursor.execute(f"SELECT {self.listed(columns)} FROM {self.quoted(TableName.parse(table))}")
            try:
                for batch in cursor.fetch_record_batch():
                    yield pa.RecordBatch.from_arrays(
                        [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)],
                        schema=schema,
                    )
            except (pa.ArrowInvalid, adbc_driver_manager.Error, OSError) as error:
                raise DatabaseError(
                    f"{table} in {self.address} has a value that is not of its column's type: {error}"
                ) from None

    def select(
        self, connection: Any, statements: Sequence[str], values: pa.Array | None, schema: pa.Schema
    ) -> pa.RecordBatch:
        text = " UNION ALL ".join(statements).replace(VALUE, "?")
        with connection.cursor(adbc_stmt_kwargs={_BATCH_ROWS: BATCH_ROWS}) as cursor:
            cursor.execute(text, None if values is None else one_row(values))
            batch = one_batch(cursor.fetch_arrow_table())
        connection.commit()
        columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def byte_length(self, field: pa.Field) -> str:
        return f"COALESCE(LENGTH(CAST({self.quoted(field.name)} AS BLOB)), 0)"

    def whole(self, expression: str) -> str:
        return f"CAST({expression} AS INTEGER)"

    def quotient(self, expression: str, divisor: int) -> str:
        # SQLite divides integers as integers; not every SQLite has FLOOR.
        return f"({expression}) / {divisor}"

    def column_type(self, field: pa.Field, *, key: bool = False) -> str:
        kind = field.type
        if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
            return "INTEGER"
        if pa.types.is_floating(kind):
            return "REAL"
        return "BLOB" if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else "TEXT"


def _affinity(declared: str) -> pa.DataType | None:
    """Return the type that SQLite stores in a column of this declared type; None if it stores values as given.

    The rules are those of its documentation, "Determination of column affinity".
    """
    text = declared.upper()
    if "INT" in text:
        return pa.int64()
    if re.search("CHAR|CLOB|TEXT", text):
        return pa.string()
    if "BLOB" in text:
        return pa.binary()
    return pa.float64() if re.search("REAL|FLOA|DOUB", text) else None
