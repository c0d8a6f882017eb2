"""One task of a join: it joins its rows with the matching rows of R, at the version of its micro-batch.

Rows are partitioned by key. The number of parts is a multiple of R's shards when the query was planned. A replayed
batch may have to read a version with a different number of shards; then a task opens all shards that can contain its
keys.
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
"""Maximum number of distinct missing keys that a task counts."""
_MOST_RESULTS = 1 << 20


@dataclass(frozen=True)
class TaskMemory:
    """The memory of one task in bytes, and the parts of it that the join itself does not use."""

    total: int
    results: int = 0
    """For combining small results into larger ones."""
    missing: int = 0
    """For counting missing keys."""
    guests: int = 0
    """For rows of hot keys whose shards other tasks have; 0 if no keys are spread."""
    look_up: int = 0
    """For looking up the rows of hot keys."""

    @classmethod
    def divided(cls, total: int, least: int, *, missing: bool, guests: int = 0, look_up: int = 0) -> TaskMemory:
        """Divide ``total`` bytes; the join itself needs at least ``least``."""
        spare = max(0, total - least - guests - look_up) * 3 // 4
        room = min(MissingKeys(_MISSING).most_bytes, spare // 2) if missing else 0
        return cls(total, min(total // 16, _MOST_RESULTS, spare - room), room, guests, look_up)


@dataclass(frozen=True)
class JoinTask:
    """The function of one task: it joins the batches of its partition with the shards that can match them."""

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
    """Whether the report includes keys that R does not have."""
    parts: int = 1
    """Number of parts of the stream, one per task."""
    shards: int = 1
    """R's shards when the query was planned. The keys of part i are in shard i modulo this number."""
    cache: str | None = None
    """Name of the cache that is kept between micro-batches."""
    marker: Marker | None = None
    """The column in which dead letters are marked, if they are."""
    timed: bool = False
    """Whether rows arrive with the time of the micro-batch; replays have the same time."""
    found: str | None = None
    """Name of an additional last column that says which rows have a match; None if it is not needed."""

    @property
    def value_names(self) -> list[str]:
        """R's columns in the results, with R's names."""
        return self.relation.value_names(self.settings.get("columns"))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrivals: list[Arrival] = []
        rows = self._named(batches, arrivals)
        passed: deque[pa.RecordBatch] = deque()
        if self.marker is not None:
            rows = self.marker.unmarked(rows, passed)
        first = next(rows, None)
        if first is None:  # true for most shards of a small micro-batch: do not even open the relation
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
        """Provide the join for the rows of a task, and the order of its columns.

        ``first`` is the first batch. After success, the cache is left to the next task, and the pin of the version is
        on disk.
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
        """Yield batches with the stream's column names; their last column is decoded into ``arrivals``."""
        for batch in batches:
            if batch.num_rows == 0:
                continue
            last = batch.num_columns - 1
            if not arrivals:
                arrivals.append(Arrival.of(batch.column(last)))
            yield batch.remove_column(last).rename_columns(list(self.names))

    def order_of(self, relation: Relation, width: int) -> list[int] | None:
        """Return the order that puts R's columns, after ``width`` others, as planned; None if they already are."""
        return self.relation.order_of(relation, width, self.settings.get("columns"))

    def _warm_shard(
        self, context: TaskContext, part: int, relation: Relation
    ) -> AbstractContextManager[WarmShard | None]:
        """Return the cache that the last micro-batch left, if caches can be kept."""
        query = context.getLocalProperty("sql.streaming.queryId")
        if self.cache is None or query is None or self.shards != relation.shard_count:
            return nullcontext()
        identity = shard_identity(relation.place, relation.stored, part % relation.shard_count)
        warm = WarmShard.take(query, self.cache, part, self.parts, identity, room=self.memory.total)
        sweep_once()  # only now: after a restart this query's own caches look abandoned until a task takes one
        return warm or nullcontext()

    def _bound(self, relation: Relation, part: int, first: pa.RecordBatch, warm: WarmShard | None) -> Join:
        """Return the join, ready for its first rows; with a private cache if the warm one cannot be used."""
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
    """Exclude everything that this process has loaded from garbage collection, once.

    Spark makes a worker collect garbage after every task. With compiled joins loaded, that took longer than many small
    tasks, and none of it is ever garbage.
    """
    gc.collect()
    gc.freeze()
