"""A table in PostgreSQL or MariaDB as a sink: tasks fill a staging table, one transaction moves rows and batch number.

::

    task 0 ──rows, "share 5f…"──▶ semistream_stage_… ──INSERT … SELECT of the received shares──▶ facts
    task 1 ──rows, "share 9c…"──▶        (dropped)              and "query q: 7", in one transaction
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from semistream.relation.databases import Database, TableName, open_database
from semistream.spark.sinks.database_stage import SHARE, DatabaseStaging, make_stage, signs, statement, tables_like
from semistream.spark.sinks.sink import BatchSink, SinkError

__all__ = ["LEDGER", "DatabaseSink"]

LEDGER = "semistream_batches"
"""The table of batch numbers, in the schema of the rows' table: query, table, last batch."""

_STAGE = "semistream_stage_"
_LONGEST_NAME = 200


class DatabaseSink(BatchSink["DatabaseStaging"]):
    """Insert micro-batches into a table, or update its rows by key, each batch once.

    Parameters
    ----------
    url
        ``postgresql://user@host:port/database`` or ``mariadb://…``.
    table
        ``table`` or ``schema.table``; created if it does not exist.
    key
        Column or columns of the table's primary key. A row replaces an existing row with the same key. Without a key
        rows are only inserted. If several rows of a micro-batch have the same key, any of them may remain; drop
        duplicates first if that matters.
    password
        By default the driver's ``PGPASSWORD`` or ``MYSQL_PWD``. Tasks get it as part of their code, in memory.

    Notes
    -----
    Rows are written to the staging table by binary COPY in PostgreSQL and by ``INSERT`` of many rows in MariaDB. One
    ``INSERT … SELECT`` moves them to the table. A lock on the query's row in `LEDGER` makes two drivers of one query
    wait for each other. The user must be allowed to create tables in the table's schema. Staging tables that killed
    drivers left are dropped when the query continues.
    """

    def __init__(
        self, url: str, table: str | TableName, *, key: str | Sequence[str] = (), password: str | None = None
    ) -> None:
        self.database = open_database(url, password)
        if self.database.address.kind == "sqlite":
            raise SinkError("SQLite cannot be a sink: it allows one writer on one machine; use PostgreSQL or MariaDB")
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
            raise SinkError(f"there is no column {missing[0]!r} for the key; there are {', '.join(schema.names)}")
        for field in schema:
            self.database.column_type(field)

    def holds(self, query: str, batch: int) -> bool:
        with self.database.connect() as connection, connection.cursor() as cursor:
            if not _exists(cursor, self.database, self._ledger):
                return False
            return self._last(cursor, query) >= batch

    def stage(self, schema: pa.Schema, query: str, batch: int) -> DatabaseStaging:
        if SHARE in schema.names:
            raise SinkError(f"a column is called {SHARE!r}, which this sink uses itself; give it another name")
        self._make(schema)
        own = hashlib.blake2b(f"{query}\0{self.table}".encode(), digest_size=6).hexdigest()
        stage = TableName(f"{_STAGE}{own}_{uuid.uuid4().hex[:12]}", self.table.schema)
        with self.database.connect() as connection:
            with connection.cursor() as cursor:
                for left in tables_like(cursor, self.database, self.table.schema, f"{_STAGE}{own}_"):
                    cursor.execute(f"DROP TABLE IF EXISTS {self.database.quoted(TableName(left, self.table.schema))}")
                make_stage(cursor, self.database, stage, schema)
            connection.commit()
        return DatabaseStaging(self.database, stage)

    def commit(self, staging: DatabaseStaging, receipts: Sequence[str], query: str, batch: int) -> bool:
        shares = [json.loads(receipt) for receipt in receipts]
        with self.database.connect() as connection:
            try:
                with connection.cursor() as cursor:
                    new = self._claim(cursor, query, batch)
                    if new and shares:
                        self._move(cursor, staging.stage, shares)
            except BaseException:
                # The connection itself may be broken.
                with suppress(Exception):
                    connection.rollback()
                raise
            connection.commit()
            with connection.cursor() as cursor:
                cursor.execute(f"DROP TABLE IF EXISTS {self.database.quoted(staging.stage)}")
            connection.commit()
        return new

    @property
    def _postgresql(self) -> bool:
        return self.database.address.kind == "postgresql"

    def _make(self, schema: pa.Schema) -> None:
        """Create the two tables if they are missing. This is done first, as MariaDB commits at every such statement."""
        if self._made:
            return
        database = self.database
        columns = [
            f"{database.quoted(field.name)} {database.column_type(field, key=field.name in self.key)}"
            for field in schema
        ]
        if self.key:
            columns.append(f"PRIMARY KEY ({database.listed(self.key)})")
        text = f"VARCHAR({_LONGEST_NAME})"
        if not self._postgresql:
            text += " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        ledger = f"query {text}, target {text}, batch BIGINT NOT NULL, PRIMARY KEY (query, target)"
        with database.connect() as connection:
            with connection.cursor() as cursor:
                for table, parts in ((self.table, ", ".join(columns)), (self._ledger, ledger)):
                    if not _exists(cursor, database, table):
                        cursor.execute(f"CREATE TABLE IF NOT EXISTS {database.quoted(table)} ({parts})")
            connection.commit()
        self._made = True

    def _claim(self, cursor: Any, query: str, batch: int) -> bool:
        """Record the batch and return True, or return False if it or a later one is already recorded."""
        ledger = statement(self.database, self.database.quoted(self._ledger))
        first, second, third = signs(self.database, 3)
        ours = (self._noted_as(query), self.table.name)
        ignore = ("", " ON CONFLICT DO NOTHING") if self._postgresql else (" IGNORE", "")
        cursor.execute(
            f"INSERT{ignore[0]} INTO {ledger} (query, target, batch) VALUES ({first}, {second}, -1){ignore[1]}", ours
        )
        if self._last(cursor, query, lock=True) >= batch:
            return False
        cursor.execute(
            f"UPDATE {ledger} SET batch = {first} WHERE query = {second} AND target = {third}", (batch, *ours)
        )
        if self._last(cursor, query) != batch:
            raise SinkError(
                f"{self._ledger} does not store the number of batch {batch} of {query!r}; the micro-batch is not "
                "written, because a replay would write it again"
            )
        return True

    def _noted_as(self, query: str) -> str:
        """Return the name of a query in the ledger: unique, and not longer than its column.

        MariaDB treats names that differ only in trailing spaces as equal.
        """
        if len(query) <= _LONGEST_NAME and (self._postgresql or query == query.rstrip(" ")):
            return query
        return f"{query[: _LONGEST_NAME // 2]}… {hashlib.blake2b(query.encode(), digest_size=16).hexdigest()}"

    def _last(self, cursor: Any, query: str, *, lock: bool = False) -> int:
        """Return the last recorded batch, or -1."""
        ledger = statement(self.database, self.database.quoted(self._ledger))
        first, second = signs(self.database, 2)
        cursor.execute(
            f"SELECT batch FROM {ledger} WHERE query = {first} AND target = {second}" + (" FOR UPDATE" if lock else ""),
            (self._noted_as(query), self.table.name),
        )
        found = cursor.fetchone()
        return -1 if found is None else int(found[0])

    def _move(self, cursor: Any, stage: TableName, shares: Sequence[dict[str, Any]]) -> None:
        """Insert the rows of these shares into the table."""
        database, columns = self.database, list(shares[0]["columns"])
        source = statement(database, database.quoted(stage))
        wanted = f"FROM {source} WHERE {SHARE} IN ({', '.join(signs(database, len(shares)))})"
        ids = tuple(share["share"] for share in shares)
        cursor.execute(f"SELECT COUNT(*) {wanted}", ids)
        found, sent = int(cursor.fetchone()[0]), sum(share["rows"] for share in shares)
        if found != sent:
            raise SinkError(
                f"{stage} holds {found} of the {sent} rows that tasks have written: something else changes tables "
                f"named {_STAGE}…; the micro-batch is not written, and can be run again"
            )
        table, names = (statement(database, text) for text in (database.quoted(self.table), database.listed(columns)))
        distinct, action = self._replacing(columns)
        cursor.execute(f"INSERT INTO {table} ({names}) SELECT {distinct}{names} {wanted}{action}", ids)

    def _replacing(self, columns: Sequence[str]) -> tuple[str, str]:
        """Return how rows are selected, and what happens if a row's key already exists."""
        if not self.key:
            return "", ""
        database = self.database
        key = statement(database, database.listed(self.key))
        others = [statement(database, database.quoted(name)) for name in columns if name not in self.key]
        if self._postgresql:  # PostgreSQL refuses to update a row twice in one statement
            update = ", ".join(f"{name} = EXCLUDED.{name}" for name in others)
            return f"DISTINCT ON ({key}) ", f" ON CONFLICT ({key}) " + (
                f"DO UPDATE SET {update}" if update else "DO NOTHING"
            )
        # If there are no other columns: an assignment that changes nothing.
        updated = others or [statement(database, database.quoted(name)) for name in self.key]
        return "", " ON DUPLICATE KEY UPDATE " + ", ".join(f"{name} = VALUES({name})" for name in updated)


def _exists(cursor: Any, database: Database, table: TableName) -> bool:
    return table.name in tables_like(cursor, database, table.schema, table.name)
