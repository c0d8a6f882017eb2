"""A table in PostgreSQL or MariaDB as a sink: rows and batch number in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.relation.databases import Database, TableName, open_database
from semistream.spark.sinks.sink import BatchSink, SinkError

__all__ = ["LEDGER", "DatabaseSink"]

LEDGER = "semistream_batches"
"""The table of batch numbers, beside the rows' table: query, table, last batch."""

_STAGE = "semistream_stage"


class DatabaseSink(BatchSink):
    """Insert micro-batches into a table, or update its rows by key, each batch once.

    Parameters
    ----------
    url
        ``postgresql://user@host:port/database`` or ``mariadb://…``.
    table
        ``table`` or ``schema.table``; made if it does not exist.
    key
        Column or columns of the table's primary key: a row whose key is there replaces the one there. Without a key
        rows are only inserted. Of several rows with one key in one micro-batch any one may stay: where that matters,
        drop duplicates before.
    password
        By default ``PGPASSWORD`` or ``MYSQL_PWD``. It stays in the driver's memory.

    Notes
    -----
    PostgreSQL gets rows by binary COPY into a temporary table, then one ``INSERT … SELECT … ON CONFLICT``; MariaDB by
    ``INSERT`` of many rows. A lock on the query's row in `LEDGER` makes two drivers of one query wait for each other.
    """

    def __init__(
        self, url: str, table: str | TableName, *, key: str | Sequence[str] = (), password: str | None = None
    ) -> None:
        self.database = open_database(url, password)
        if self.database.address.kind == "sqlite":
            raise SinkError("SQLite cannot be a sink: it takes one writer on one machine; use PostgreSQL or MariaDB")
        self.table = TableName.parse(table)
        self.key = (key,) if isinstance(key, str) else tuple(key)
        self._ledger = TableName(LEDGER, self.table.schema)
        self._made = False

    def __repr__(self) -> str:
        return f"DatabaseSink({self.database.address}, {self.table})"

    @property
    def place(self) -> str:
        address = self.database.address
        return f"{address.kind}://{address.host}:{address.port}/{address.database} {self.table}"

    def check(self, schema: pa.Schema) -> None:
        if missing := [name for name in self.key if name not in schema.names]:
            raise SinkError(f"no column {missing[0]!r} to be the key; there are {', '.join(schema.names)}")
        for field in schema:
            self.database.column_type(field)

    def write(self, rows: pa.Table, query: str, batch: int) -> bool:
        self._make(rows.schema)
        with self.database.connect() as connection:
            try:
                with connection.cursor() as cursor:
                    new = self._claim(cursor, query, batch)
                    if new and rows.num_rows:
                        self._write(cursor, self._last_of_each_key(rows))
            except BaseException:
                # The connection may be what broke.
                with suppress(Exception):
                    connection.rollback()
                raise
            connection.commit()
        return new

    @property
    def _postgresql(self) -> bool:
        return self.database.address.kind == "postgresql"

    def _make(self, schema: pa.Schema) -> None:
        """Make the two tables if they are missing. MariaDB commits at every such statement, so it is done before."""
        if self._made:
            return
        database = self.database
        columns = [
            f"{database.quoted(field.name)} {database.column_type(field, key=field.name in self.key)}"
            for field in schema
        ]
        if self.key:
            columns.append(f"PRIMARY KEY ({database.listed(self.key)})")
        text = "VARCHAR(200)" if self._postgresql else "VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        ledger = f"query {text}, target {text}, batch BIGINT NOT NULL, PRIMARY KEY (query, target)"
        with database.connect() as connection:
            with connection.cursor() as cursor:
                for table, parts in ((self.table, ", ".join(columns)), (self._ledger, ledger)):
                    if not _exists(cursor, database, table):
                        cursor.execute(f"CREATE TABLE IF NOT EXISTS {database.quoted(table)} ({parts})")
            connection.commit()
        self._made = True

    def _claim(self, cursor: Any, query: str, batch: int) -> bool:
        """Note the batch and return True, or return False if it, or a later one, is noted."""
        ledger = self.database.quoted(self._ledger)
        first, second, third = ("$1", "$2", "$3") if self._postgresql else ("%s", "%s", "%s")
        ours = (query, self.table.name)
        ignore = ("", " ON CONFLICT DO NOTHING") if self._postgresql else (" IGNORE", "")
        cursor.execute(
            f"INSERT{ignore[0]} INTO {ledger} (query, target, batch) VALUES ({first}, {second}, -1){ignore[1]}", ours
        )
        cursor.execute(f"SELECT batch FROM {ledger} WHERE query = {first} AND target = {second} FOR UPDATE", ours)
        if cursor.fetchone()[0] >= batch:
            return False
        cursor.execute(
            f"UPDATE {ledger} SET batch = {first} WHERE query = {second} AND target = {third}", (batch, *ours)
        )
        return True

    def _last_of_each_key(self, rows: pa.Table) -> pa.Table:
        """Return rows without two of one key: PostgreSQL refuses to update a row twice in one statement."""
        if not self.key:
            return rows
        numbered = rows.select(list(self.key)).append_column("__row", pa.array(np.arange(rows.num_rows)))
        kept = numbered.group_by(list(self.key)).aggregate([("__row", "max")])["__row_max"]
        return rows if len(kept) == rows.num_rows else rows.take(kept)

    def _write(self, cursor: Any, rows: pa.Table) -> None:
        if self._postgresql:
            self._copy(cursor, rows)
        else:
            self._insert(cursor, rows)

    def _copy(self, cursor: Any, rows: pa.Table) -> None:
        database = self.database
        names = database.listed(rows.schema.names)
        cursor.execute(f"DROP TABLE IF EXISTS pg_temp.{_STAGE}")
        cursor.adbc_ingest(_STAGE, rows, mode="create", temporary=True)
        statement = f"INSERT INTO {database.quoted(self.table)} ({names}) SELECT {names} FROM pg_temp.{_STAGE}"
        if self.key:
            others = [database.quoted(name) for name in rows.schema.names if name not in self.key]
            update = ", ".join(f"{name} = EXCLUDED.{name}" for name in others)
            action = f"DO UPDATE SET {update}" if update else "DO NOTHING"
            statement += f" ON CONFLICT ({database.listed(self.key)}) {action}"
        cursor.execute(statement)

    def _insert(self, cursor: Any, rows: pa.Table) -> None:
        database = self.database
        # The driver's own sign for a value is %s, so a percent sign of a name is doubled.
        table, *names = (text.replace("%", "%%") for text in map(database.quoted, (self.table, *rows.schema.names)))
        values = ", ".join(["%s"] * len(names))
        statement = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values})"
        if self.key:
            keys = {database.quoted(name).replace("%", "%%") for name in self.key}
            # Without other columns, an assignment that changes nothing.
            updated = [name for name in names if name not in keys] or sorted(keys)
            statement += " ON DUPLICATE KEY UPDATE " + ", ".join(f"{name} = VALUES({name})" for name in updated)
        for batch in rows.to_batches(max_chunksize=10_000):
            columns = [_python_values(column) for column in batch.columns]
            cursor.executemany(statement, list(zip(*columns, strict=True)))


def _python_values(column: pa.Array) -> list[Any]:
    """Return values as the driver writes them: instants as UTC without a zone, as all connections have UTC."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False).cast(pa.timestamp("us"))
    values: list[Any] = column.to_pylist()
    return values


def _exists(cursor: Any, database: Database, table: TableName) -> bool:
    if database.address.kind == "postgresql":
        first, second, default = "$1", "$2", "current_schema()"
    else:
        first, second, default = "%s", "%s", "DATABASE()"
    cursor.execute(
        "SELECT COUNT(*) FROM information_schema.tables "
        f"WHERE table_schema = COALESCE(NULLIF({first}, ''), {default}) AND table_name = {second}",
        (table.schema or "", table.name),
    )
    return bool(cursor.fetchone()[0])
