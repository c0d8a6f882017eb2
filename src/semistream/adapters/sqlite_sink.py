"""A sink for `semistream.adapters.kafka_loop`: results and offsets in one transaction of SQLite."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping

import pyarrow as pa

from semistream.core.errors import CommitConflictError

__all__ = ["SqliteSink"]


class SqliteSink:
    """Appends results to a table, and keeps offsets in the table ``semistream_offsets`` of the same file.

    Parameters
    ----------
    path
        The database file, which is created if it does not exist.
    table
        Name of the table, which must exist and have the columns of the results.
    """

    def __init__(self, path: str | os.PathLike[str], table: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=60)
        self._table = table
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS semistream_offsets "
            "(topic TEXT, part INTEGER, next INTEGER, PRIMARY KEY (topic, part)) WITHOUT ROWID"
        )

    def offsets(self, topic: str) -> dict[int, int]:
        """Return the next offset to read of each partition that has one."""
        return dict(self._connection.execute("SELECT part, next FROM semistream_offsets WHERE topic = ?", [topic]))

    def write(self, rows: pa.Table, topic: str, before: Mapping[int, int | None], after: Mapping[int, int]) -> None:
        """Store results and offsets, or nothing."""
        names = ", ".join(f'"{name}"' for name in rows.column_names)
        insert = f'INSERT INTO "{self._table}" ({names}) VALUES ({", ".join("?" * rows.num_columns)})'
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:  # commits, or rolls back if this block raises
            stored = self.offsets(topic)
            for part, following in after.items():
                if stored.get(part) != before.get(part):
                    raise CommitConflictError(
                        f"partition {part} of {topic} is at offset {stored.get(part)}, not at {before.get(part)}: "
                        "another loop has written; stop one of them, or give each its own partitions"
                    )
                self._connection.execute("REPLACE INTO semistream_offsets VALUES (?, ?, ?)", (topic, part, following))
            self._connection.executemany(insert, zip(*(one.to_pylist() for one in rows.columns), strict=True))
