"""`Relation.lookups`: the keys of a batch are looked up, and the columns of R are put next to those of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from semistream.lookups import Lookups
from semistream.relation.relation import Relation
from semistream.relation.rows.selection import keep_rows
from semistream_lab.benchmarks.peers.contestant import Contestant, Task
from semistream_lab.benchmarks.peers.dataset import KEY, Dataset
from semistream_lab.benchmarks.peers.our_joins import FOLDER, OurJoin

__all__ = ["CONTESTANTS", "OurLookup"]

_FOUND = "found"


class OurLookup(Contestant):
    """One call of `Lookups.get` per batch."""

    id = "lookup"
    title = "Relation.lookups, one call per batch"
    kind = "join"
    if_asked = True

    @classmethod
    def prepare(cls, data: Dataset) -> None:
        OurJoin.prepare(data)

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._relation = Relation.open(task.data.place / FOLDER)
        self._lookups = Lookups(self._relation, memory=task.memory)

    def join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        rows = self._lookups.get(batch.column(KEY), found=_FOUND)
        names, found = rows.schema.names[:-1], rows.column(_FOUND)
        joined = pa.RecordBatch.from_arrays([*batch.columns, *rows.columns[:-1]], [*batch.schema.names, *names])
        if found.true_count < len(found):
            joined = keep_rows(joined, found.to_numpy(zero_copy_only=False))
        yield joined

    def counts(self) -> dict[str, Any]:
        found = self._lookups.stats
        return {
            "tuples": found.rows_done,
            "hits": found.cache_hits,
            "pages": found.pages_read,
            "reads": found.reads,
            "io_seconds": found.io_seconds,
            "budget": self._lookups.budget.total,
            "reserved": self._lookups.budget.peak,
        }

    def close(self) -> None:
        self._lookups.close()
        self._relation.close()


CONTESTANTS: list[type[Contestant]] = [OurLookup]
