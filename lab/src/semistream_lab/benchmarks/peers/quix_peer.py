"""The look-up of Quix Streams: ``SQLiteLookup``, a Python LRU of rows before SQLite, one record at a time.

It is called as ``StreamingDataFrame.join_lookup`` calls it, with one field that has all columns. Rows do not expire.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream_lab.benchmarks.peers.contestant import Contestant, Task
from semistream_lab.benchmarks.peers.dataset import KEY, Dataset

__all__ = ["CONTESTANTS", "QuixPeer"]

FILE = "quix.db"
_ENTRY_BYTES = 350
"""Bytes of an entry of Quix's cache in addition to the row's values: its key, two tuples, a dictionary, the objects."""


class QuixPeer(Contestant):
    """A table whose primary key is the key, loaded in order, with R's columns."""

    id = "quix_sqlite"
    title = "Quix Streams' SQLiteLookup"
    needs = ("quixstreams",)
    extra = "quixstreams"
    if_asked = True
    fixed_rows = True

    @classmethod
    def prepare(cls, data: Dataset) -> None:
        def load(path: Path) -> None:
            connection = sqlite3.connect(path, isolation_level=None)
            connection.execute("PRAGMA page_size = 8192")
            connection.execute("PRAGMA journal_mode = OFF")
            names = data.format.schema.names
            columns = ", ".join(f"{name} INTEGER PRIMARY KEY" if name == KEY else name for name in names)
            connection.execute(f"CREATE TABLE r ({columns})")
            connection.execute("BEGIN")
            marks = ",".join("?" * len(names))
            for _, rows in data.parts():
                values = [column.to_pylist() for column in data.format.columns(rows)]
                connection.executemany(f"INSERT INTO r VALUES ({marks})", zip(*values, strict=True))
            connection.execute("COMMIT")
            connection.close()

        data.made(FILE, load)

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        from quixstreams.dataframe.joins.lookups.sqlite import SQLiteLookup, SQLiteLookupField

        self._schema = pa.schema([field for field in task.data.format.schema if field.name != KEY])
        entries = task.memory // (_ENTRY_BYTES + task.data.format.width)
        self._lookup: Any = SQLiteLookup(str(self.files()[0]), cache_size=entries)
        self._fields = {"row": SQLiteLookupField("r", self._schema.names, KEY, ttl=math.inf)}
        self._tuples = 0

    def join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        join, fields, found, known = self._lookup.join, self._fields, [], []
        for key in batch.column(KEY).to_pylist():
            value: dict[str, Any] = {}
            join(fields, key, value, None, 0, None)
            known.append(value["row"] is not None)
            if value["row"] is not None:
                found.append(value["row"])
        self._tuples += len(known)
        rows = pa.RecordBatch.from_pylist(found, self._schema)
        stream = batch.filter(pa.array(known, pa.bool_())) if len(found) < len(known) else batch
        names = [*stream.schema.names, *self._schema.names]
        yield pa.RecordBatch.from_arrays([*stream.columns, *rows.columns], names)

    def counts(self) -> dict[str, Any]:
        return {"tuples": self._tuples, "hits": self._lookup.cache_info()["hits"]}

    def files(self) -> list[Path]:
        return [self.task.data.place / FILE]


CONTESTANTS: list[type[Contestant]] = [QuixPeer]
