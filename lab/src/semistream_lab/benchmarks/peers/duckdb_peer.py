"""DuckDB: joins each batch with the Parquet file or, as an ideal, with a table in memory.

The batch is the smaller side. DuckDB builds its hash table from the batch and scans R. Its memory limit is therefore
the memory plus the working bytes that every contestant has for a batch. Results are Arrow batches.
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
"""Minimum bytes with which DuckDB can scan at all. Only a small R gets less."""


class DuckdbParquet(Contestant):
    """One line of SQL, which reads all of R for each batch."""

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
    """All of R as a DuckDB table in memory."""

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
