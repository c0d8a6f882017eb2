"""An LRU cache of rows in front of SQLite: sorted ``IN`` lists, several connections in parallel.

A look-up returns all its rows as one value. SQLite then runs without Python in between, and threads wait for the disk
in parallel. Each connection has a range of R, whose inner pages fit into its cache. The LRU caches rows, which is
better than caching pages.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from semistream.core.arrays import Ints
from semistream_lab.benchmarks.peers.cached_store import CachedStore
from semistream_lab.benchmarks.peers.contestant import Contestant, Task
from semistream_lab.benchmarks.peers.dataset import Dataset

__all__ = ["CONTESTANTS", "SqlitePeer"]

PAGE_BYTES = 8192
FILE = f"sqlite-{PAGE_BYTES}.db"


class SqlitePeer(CachedStore):
    """A table whose rowid is the key, and whose rows are blobs, loaded in order."""

    id = "sqlite"
    title = "LRU before SQLite"
    store_share = 0.1
    threads = 16
    chunk = 1024

    @classmethod
    def prepare(cls, data: Dataset) -> None:
        width = data.format.width

        def load(path: Path) -> None:
            connection = sqlite3.connect(path, isolation_level=None)
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("CREATE TABLE r (key INTEGER PRIMARY KEY, value BLOB NOT NULL)")
            connection.execute("BEGIN")
            for keys, rows in data.parts():
                held = rows.tobytes()
                values = (held[at : at + width] for at in range(0, len(held), width))
                connection.executemany("INSERT INTO r VALUES (?, ?)", zip(keys.tolist(), values, strict=True))
            connection.execute("COMMIT")
            connection.close()

        data.made(FILE, load)

    def __init__(self, task: Task) -> None:
        self._connections: list[sqlite3.Connection] = []
        super().__init__(task)

    def open(self, cache_bytes: int) -> None:
        self._select = f"SELECT CAST(group_concat(value, '') AS BLOB) FROM r WHERE key IN ({self._marks(self.chunk)})"
        for _ in range(self.threads):
            connection = sqlite3.connect(
                f"file:{self.files()[0]}?mode=ro&immutable=1", uri=True, isolation_level=None, check_same_thread=False
            )
            connection.execute(f"PRAGMA cache_size = -{max(64, cache_bytes // self.threads // 1024)}")
            self._connections.append(connection)

    @staticmethod
    def _marks(count: int) -> str:
        return ",".join("?" * count)

    def look_up(self, keys: Ints, thread: int) -> bytes:
        wanted = keys.tolist()
        # pad the last chunk by repeating a key; a shorter list would need another prepared statement
        wanted += wanted[-1:] * (self.chunk - len(wanted))
        (found,) = self._connections[thread].execute(self._select, wanted).fetchone()
        return found or b""

    def files(self) -> list[Path]:
        return [self.task.data.place / FILE]

    def close(self) -> None:
        super().close()
        for connection in self._connections:
            connection.close()


CONTESTANTS: list[type[Contestant]] = [SqlitePeer]
