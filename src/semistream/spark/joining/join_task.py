"""What one task of a join does: its rows, with the rows of R that can match them, at the version of its micro-batch.

Rows come by their key, in a number of parts that is a multiple of R's shards when the query was planned. A replayed
batch may have to read a version that was built with other shards: then a task opens all shards in which its keys can
be.
"""

from __future__ import annotations

import functools
import gc
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from semistream.joins import Join, create
from semistream.joins.interface.missing_keys import MissingKeys
from semistream.relation.relation import Relation
from semistream.spark.joining.arrival import Arrival
from semistream.spark.joining.missing import Marker
from semistream.spark.joining.task_relation import TaskRelation
from semistream.spark.joining.warm import WarmShard, brought_up, shard_identity
from semistream.spark.joining.warm_cleanup import sweep_once
from semistream.spark.monitoring.metrics import sentinel, without_counters
from semistream.spark.relations.types import fit, together

__all__ = ["JoinTask", "TaskMemory"]

_MISSING = 64
"""Missing keys that a task counts."""
_MOST_RESULTS = 1 << 20


@dataclass(frozen=True)
class TaskMemory:
    """The memory of one task, in bytes, and the parts of it that are not the join's own."""

    total: int
    results: int = 0
    """Room in which small results are put together to larger ones."""
    missing: int = 0
    """Room in which missing keys are counted."""
    guests: int = 0
    """Room for rows of hot keys that other tasks have; 0 if no keys are spread."""
    look_up: int = 0
    """Room to look those rows up."""

    @classmethod
    def divided(cls, total: int, least: int, *, missing: bool, guests: int = 0, look_up: int = 0) -> TaskMemory:
        """Divide ``total`` bytes, of which the join itself needs at least ``least``."""
        spare = max(0, total - least - guests - look_up) * 3 // 4
        room = min(MissingKeys(_MISSING).most_bytes, spare // 2) if missing else 0
        return cls(total, min(total // 16, _MOST_RESULTS, spare - room), room, guests, look_up)


@dataclass(frozen=True)
class JoinTask:
    """What one task does: join the batches of its partition with the shards that can match them."""

    relation: TaskRelation
    algorithm: str
    memory: TaskMemory
    names: tuple[str, ...]
    """Columns of the stream, as the join sees it."""
    added: pa.Schema
    """R's columns in the result."""
    settings: dict[str, Any] = field(default_factory=dict)
    counted: bool = False
    """Whether the task reports what its join did."""
    missing_keys: bool = True
    """Whether that names keys that R does not have."""
    parts: int = 1
    """Parts that the stream comes in, a task each."""
    shards: int = 1
    """R's shards when the query was planned. Keys of a part are in the shard of its number modulo these."""
    cache: str | None = None
    """Name of the cache that is kept between micro-batches."""
    marker: Marker | None = None
    """Where dead letters are marked, if they are."""
    timed: bool = False
    """Whether rows arrive with the time of the micro-batch, which its replays have too."""
    found: str | None = None
    """Name of a last column that tells which rows have a partner, if the join has to say so."""

    @property
    def value_names(self) -> list[str]:
        """R's columns that results have, as R names them."""
        return self.relation.value_names(self.settings.get("columns"))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrivals: list[Arrival] = []
        rows = self._named(batches, arrivals)
        passed: deque[pa.RecordBatch] = deque()
        if self.marker is not None:
            rows = self.marker.unmarked(rows, passed)
        first = next(rows, None)
        if first is None:  # most shards of a small micro-batch: do not even open the relation
            return
        schema = pa.schema([*first.schema, *self.added])
        with self.at_work(arrivals[0], first) as (joined, order):
            rows = chain([first], rows)
            found = joined.process(rows) if self.marker is None else self.marker.results(joined, rows, passed)
            for result in together(found, self.memory.results // 2):
                fitting = fit(result if order is None else result.select(order), schema)
                yield without_counters(fitting) if self.counted else fitting
        if self.counted:
            yield sentinel(joined, schema, arrivals[0].part)

    @contextmanager
    def at_work(self, arrival: Arrival, first: pa.RecordBatch) -> Iterator[tuple[Join, list[int] | None]]:
        """Have the join for the rows of a task, of which these are the first, and the order of its columns.

        When all has gone well, its cache is left to the next task, and the version that was read is on the disk.
        """
        context = TaskContext.get()
        assert context is not None, "runs only inside a Spark task"
        pin = self.relation.pin(context, arrival.moment if self.timed else None, self.settings["on"])
        with self.relation.opened(pin, arrival.part, self.shards) as relation:
            order = self.order_of(relation, len(first.schema))
            with self._warm_shard(context, arrival.part, relation) as warm:
                joined = self._bound(relation, arrival.part, first, warm)
                yield joined, order
                if warm is not None:
                    warm.keep()
            pin.wait()
        set_modules_apart()

    def _named(self, batches: Iterator[pa.RecordBatch], arrivals: list[Arrival]) -> Iterator[pa.RecordBatch]:
        """Yield batches with the stream's names; how they arrived, which the last column says, goes elsewhere."""
        for batch in batches:
            if batch.num_rows == 0:
                continue
            last = batch.num_columns - 1
            if not arrivals:
                arrivals.append(Arrival.of(batch.column(last)))
            yield batch.remove_column(last).rename_columns(list(self.names))

    def order_of(self, relation: Relation, width: int) -> list[int] | None:
        """Return the order of the join's columns in which R's are as planned, after ``width`` others; None: as is."""
        return self.relation.order_of(relation, width, self.settings.get("columns"))

    def _warm_shard(
        self, context: TaskContext, part: int, relation: Relation
    ) -> AbstractContextManager[WarmShard | None]:
        """Return the cache that the last micro-batch has left, if there can be one."""
        query = context.getLocalProperty("sql.streaming.queryId")
        if self.cache is None or query is None or self.shards != relation.shard_count:
            return nullcontext()
        identity = shard_identity(relation.place, relation.stored, part % relation.shard_count)
        warm = WarmShard.take(query, self.cache, part, self.parts, identity, room=self.memory.total)
        sweep_once()  # only now: after a restart this query's own caches look abandoned until one is taken
        return warm or nullcontext()

    def _bound(self, relation: Relation, part: int, first: pa.RecordBatch, warm: WarmShard | None) -> Join:
        """Return the join, ready for its first rows; with a cache of its own if the warm one is not to be had."""
        options = self.settings if warm is None else {**self.settings, "arrays": warm}
        joined = create(self.algorithm, relation, memory=self.memory.total, **options)
        if self.found is not None:
            joined.tell_found(self.found)
        if self.counted and self.missing_keys:
            joined.watch_missing(MissingKeys(_MISSING))
            joined.budget.reserve("missing keys", self.memory.missing)
        if self.memory.results:
            joined.budget.reserve("results put together", self.memory.results)
        if self.memory.guests:
            joined.budget.reserve("rows of other shards", self.memory.guests + self.memory.look_up)
        changed = None
        if warm is not None and warm.left_by != warm.identity:
            changed = brought_up(relation.place, warm.left_by, relation.stored, part % relation.shard_count)
            if changed is not None:
                warm.take_over(warm.left_by)
        try:
            joined.bind(first.schema, first)
        except OSError:
            if warm is None:
                raise
            warm.discard()
            return self._bound(relation, part, first, None)
        if warm is not None and warm.attached and changed is not None:
            joined.forget_rows(changed)
        return joined


@functools.cache
def set_modules_apart() -> None:
    """Leave all that this process has loaded out of the search for garbage, once.

    Spark has a worker search its whole memory after every task. With compiled joins loaded that took longer than many a
    small task, and none of it is ever garbage.
    """
    gc.collect()
    gc.freeze()
