"""The staging table of a database sink; each task fills it in its own transaction."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from semistream.relation.databases import Database, TableName
from semistream.spark.sinks.sink import Share, Staging

__all__ = ["SHARE", "DatabaseStaging", "make_stage", "signs", "statement", "tables_like"]

SHARE = "semistream_share"
"""The column of a staging table that identifies the task of a row."""

_ROWS, _BYTES = 50_000, 16 << 20
"""Number of rows, and bytes, that a task buffers before it sends them."""


@dataclass(frozen=True)
class DatabaseStaging(Staging):
    """A staging table next to the sink's table, into which tasks write rows."""

    database: Database
    stage: TableName

    def open(self) -> Share:
        return _DatabaseShare(self.database, self.stage)


class _DatabaseShare(Share):
    """Rows that one transaction writes to the staging table."""

    def __init__(self, database: Database, stage: TableName) -> None:
        self._database = database
        self._stage = stage
        self._share = uuid.uuid4().hex
        self._open = database.connect()
        self._connection = self._open.__enter__()
        self._held: list[pa.RecordBatch] = []
        self._columns: list[str] = []
        self._rows = 0

    def append(self, rows: pa.RecordBatch) -> None:
        self._columns = rows.schema.names
        for start in range(0, rows.num_rows, _ROWS):
            part = rows.slice(start, _ROWS)
            self._held.append(part)
            held = sum(each.num_rows for each in self._held)
            if held >= _ROWS or sum(each.nbytes for each in self._held) >= _BYTES:
                self._send()

    def finish(self) -> str:
        self._send()
        self._connection.commit()
        self._open.__exit__(None, None, None)
        return json.dumps({"share": self._share, "rows": self._rows, "columns": self._columns})

    def abandon(self) -> None:
        with suppress(Exception):
            self._connection.rollback()
        with suppress(Exception):
            self._open.__exit__(None, None, None)

    def _send(self) -> None:
        rows = pa.Table.from_batches(self._held) if self._held else None
        self._held = []
        if rows is None or not rows.num_rows:
            return
        self._rows += rows.num_rows
        marked = rows.append_column(SHARE, pa.array([self._share] * rows.num_rows, pa.string()))
        with self._connection.cursor() as cursor:
            if self._database.address.kind == "postgresql":
                cursor.adbc_ingest(self._stage.name, marked, mode="append", db_schema_name=self._stage.schema or None)
            else:
                self._insert(cursor, marked)

    def _insert(self, cursor: Any, rows: pa.Table) -> None:
        database = self._database
        names = statement(database, database.listed(rows.schema.names))
        values = ", ".join(["%s"] * rows.num_columns)
        table = statement(database, database.quoted(self._stage))
        for batch in rows.to_batches(max_chunksize=10_000):
            columns = [_python_values(column) for column in batch.columns]
            cursor.executemany(f"INSERT INTO {table} ({names}) VALUES ({values})", list(zip(*columns, strict=True)))


def _python_values(column: pa.Array) -> list[Any]:
    """Return values for the driver; timestamps are in UTC without a zone, because all connections use UTC."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False).cast(pa.timestamp("us"))
    values: list[Any] = column.to_pylist()
    return values


def make_stage(cursor: Any, database: Database, stage: TableName, schema: pa.Schema) -> None:
    """Create an unlogged table for rows of ``schema`` and their share; a crash of the server may empty it."""
    if database.address.kind == "postgresql":
        # The types that the driver's COPY writes; they are cast to the table's types when rows are moved.
        empty = pa.schema([*schema, pa.field(SHARE, pa.string())]).empty_table()
        cursor.adbc_ingest(stage.name, empty, mode="create", db_schema_name=stage.schema or None)
        cursor.execute(f"ALTER TABLE {database.quoted(stage)} SET UNLOGGED")
        return
    columns = [f"{database.quoted(field.name)} {database.column_type(field)}" for field in schema]
    columns.append(f"{SHARE} CHAR(32) CHARACTER SET ascii")
    cursor.execute(f"CREATE TABLE {database.quoted(stage)} ({', '.join(columns)})")


def signs(database: Database, count: int) -> list[str]:
    """Return the driver's placeholders for values."""
    if database.address.kind == "postgresql":
        return [f"${number}" for number in range(1, count + 1)]
    return ["%s"] * count


def statement(database: Database, text: str) -> str:
    """Return quoted names for a statement with values; for MariaDB, whose placeholder is %s, percents are doubled."""
    return text if database.address.kind == "postgresql" else text.replace("%", "%%")


def tables_like(cursor: Any, database: Database, schema: str | None, prefix: str) -> list[str]:
    """Return the names of tables with a prefix."""
    first, second = signs(database, 2)
    default = "current_schema()" if database.address.kind == "postgresql" else "DATABASE()"
    cursor.execute(
        "SELECT table_name FROM information_schema.tables "
        f"WHERE table_schema = COALESCE(NULLIF({first}, ''), {default}) "
        f"AND SUBSTRING(table_name, 1, {len(prefix)}) = {second}",
        (schema or "", prefix),
    )
    return [str(name) for (name,) in cursor.fetchall()]
