"""DuckDB: each batch joined with the Parquet file, and, as an ideal, with a table in memory.

The batch is the smaller side, which DuckDB hashes; R is scanned. What it hashes is of the batch, so its limit is the
memory and what everybody has for a batch. Results come out as Arrow, a batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream_lab.benchmarks.peers.contestant import Contestant, Task
from semistream_lab.benchmarks.peers.dataset import KEY, Dataset

__all__ = ["CONTESTANTS", "DuckdbMemory", "DuckdbParquet"]

LEAST = 32 << 20
"""Bytes without which DuckDB does not scan at all; less is only given for a small R."""


class DuckdbParquet(Contestant):
    """What one line of SQL gives, and the whole of R is read for."""

    id = "duckdb"
    title = "DuckDB with the Parquet file"
    needs = ("duckdb",)

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._connection = self._connect()

    @classmethod
    def prepare(cls, data: Dataset) -> None:
        pass

    def _connect(self) -> Any:
        import duckdb

        spill = self.task.data.place / "duckdb-spill"
        memory = max(LEAST, self.task.memory + self.task.working_bytes)
        settings: dict[str, Any] = {"memory_limit": f"{memory}B", "temp_directory": str(spill)}
        connection = duckdb.connect(config=settings)
        connection.execute("SET preserve_insertion_order = false")
        return connection

    def _master(self) -> str:
        return f"read_parquet('{self.task.data.parquet}')"

    def join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._connection.register("batch", pa.Table.from_batches([batch]))
        joined = self._connection.sql(f"SELECT * FROM batch JOIN {self._master()} USING ({KEY})")
        yield from joined.to_arrow_reader(1 << 16)
        self._connection.unregister("batch")

    def files(self) -> list[Path]:
        return [self.task.data.parquet]

    def close(self) -> None:
        self._connection.close()


class DuckdbMemory(DuckdbParquet):
    """All of R as a table of DuckDB's in memory."""

    id = "duckdb_memory"
    title = "ideal: all of R in DuckDB's memory"
    kind = "ideal"
    bounded = False

    def _connect(self) -> Any:
        import duckdb

        connection = duckdb.connect()
        connection.execute("SET preserve_insertion_order = false")
        connection.execute(f"CREATE TABLE r AS SELECT * FROM read_parquet('{self.task.data.parquet}')")
        return connection

    def _master(self) -> str:
        return "r"

    def files(self) -> list[Path]:
        return []


CONTESTANTS: list[type[Contestant]] = [DuckdbParquet, DuckdbMemory]
