"""Our joins, each created by its id, with R read past the page cache.

`oracle` holds all of R and is an ideal. `adaptivejoin_plain` is adaptivejoin with the same rows in a relation whose
columns are not packed, and `adaptivejoin_unfiltered` is adaptivejoin with a relation whose filter of absent keys is not
used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from semistream.joins import algorithms, create, find
from semistream.relation.relation import Relation
from semistream_lab.benchmarks.peers.contestant import Contestant, Task
from semistream_lab.benchmarks.peers.dataset import KEY, Dataset
from semistream_lab.workloads.workload import zipf

__all__ = ["CONTESTANTS", "FOLDER", "OurJoin", "OurPlainJoin", "OurUnfilteredJoin"]

FOLDER = "relation"
_PLAIN_FOLDER = "relation-plain"


class OurJoin(Contestant):
    """One join of the registry."""

    kind = "join"
    algorithm = ""
    folder = FOLDER
    encoding: Literal["auto", "plain"] = "auto"
    filtered = True

    @classmethod
    def prepare(cls, data: Dataset) -> None:
        def build(path: Path) -> None:
            with pq.ParquetFile(data.parquet) as file:
                reader = pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())
                Relation.build(reader, path, KEY, encoding=cls.encoding).close()

        data.made(cls.folder, build)

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._relation = relation = Relation.open(task.data.place / self.folder)
        if not self.filtered:
            shards = tuple(dataclasses.replace(shard, filter=None) for shard in relation.stored.shards)
            relation.manifest = dataclasses.replace(relation.stored, shards=shards)
        schema = zipf(task.data.rows, 1, task.exponent, task.shape).stream.schema
        least = find(self.algorithm).minimum_memory(self._relation, schema, on=KEY)
        # a join refuses a budget below its minimum; `counts` reports the budget it got
        memory = max(task.memory, least)
        self._join = create(self.algorithm, self._relation, on=KEY, how="inner", memory=memory, schema=schema)

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


class OurPlainJoin(OurJoin):
    """adaptivejoin with a relation that is not packed, to measure what packing gains."""

    id = "adaptivejoin_plain"
    title = "adaptivejoin, columns not packed"
    algorithm = "adaptivejoin"
    folder = _PLAIN_FOLDER
    encoding = "plain"
    if_asked = True


class OurUnfilteredJoin(OurJoin):
    """adaptivejoin without the filter of absent keys, to measure what the filter gains."""

    id = "adaptivejoin_unfiltered"
    title = "adaptivejoin, absent keys not filtered"
    algorithm = "adaptivejoin"
    filtered = False
    if_asked = True


def _contestant(algorithm: str) -> type[Contestant]:
    join = find(algorithm)
    kind = "join" if join.bounded else "ideal"
    said = {"id": algorithm, "algorithm": algorithm, "title": join.title, "bounded": join.bounded, "kind": kind}
    return type(f"Our_{algorithm}", (OurJoin,), said)


CONTESTANTS: list[type[Contestant]] = [
    *(_contestant(algorithm) for algorithm in algorithms()), OurPlainJoin, OurUnfilteredJoin
]  # fmt: skip
