"""Our joins, each created by its id, with R read past the page cache. `oracle` holds all of R and is an ideal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from semistream.joins import algorithms, create, find
from semistream.relation.relation import Relation
from semistream_lab.benchmarks.peers.contestant import Contestant, Task
from semistream_lab.benchmarks.peers.dataset import KEY, Dataset
from semistream_lab.workloads.workload import zipf

__all__ = ["CONTESTANTS", "FOLDER", "OurJoin"]

FOLDER = "relation"


class OurJoin(Contestant):
    """One join of the registry."""

    kind = "join"

    @classmethod
    def prepare(cls, data: Dataset) -> None:
        def build(path: Path) -> None:
            with pq.ParquetFile(data.parquet) as file:
                reader = pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())
                Relation.build(reader, path, KEY).close()

        data.made(FOLDER, build)

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._relation = Relation.open(task.data.place / FOLDER)
        schema = zipf(task.data.rows, 1, task.exponent, task.shape).stream.schema
        least = find(self.id).minimum_memory(self._relation, schema, on=KEY)
        # a join refuses a budget below its minimum; `counts` reports the budget it got
        self._join = create(self.id, self._relation, on=KEY, how="inner", memory=max(task.memory, least), schema=schema)

    def join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return iter(self._join.process([batch]))

    def counts(self) -> dict[str, Any]:
        found = self._join.stats
        return {
            "tuples": found.rows_done,
            "hits": found.cache_hits,
            "pages": found.pages_read,
            "reads": found.reads,
            "io_seconds": found.io_seconds,
            "budget": self._join.budget.total,
            "reserved": self._join.budget.peak,
        }

    def close(self) -> None:
        self._relation.close()


def _contestant(algorithm: str) -> type[Contestant]:
    join = find(algorithm)
    said = {"id": algorithm, "title": join.title, "bounded": join.bounded, "kind": "join" if join.bounded else "ideal"}
    return type(f"Our_{algorithm}", (OurJoin,), said)


CONTESTANTS: list[type[Contestant]] = [_contestant(algorithm) for algorithm in algorithms()]
