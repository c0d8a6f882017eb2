"""Rows without a match wait in Spark's state store for a version of R that has one.

::

    join of shard i ──▶ batches as blobs ──▶ stateful operator, keyed by shard ──▶ batches ──▶ rows
                        found │ missing        found: passed on
                                               missing: kept until matched or expired, retried with each new version

Whole Arrow batches are sent and stored as blobs: the operator takes rows one by one, and then gets only a few of them.
The time is that of the micro-batch, and versions are pinned to the micro-batch; both are the same in a replay. The
state is part of the checkpoint. So a replay does what the first attempt did, and no row is lost or duplicated.

A checkpoint outlives changes of the query and of R. So columns of parked rows are identified by name, not by position.
The number of shards by which the rows of a group were partitioned is stored with them: R may be rebuilt with a
different number meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as st
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from semistream.joins import create
from semistream.joins.interface.output import has_no_partner
from semistream.relation.versions.pins import Pin
from semistream.spark.features import with_state
from semistream.spark.joining.join_task import JoinTask
from semistream.spark.joining.parked_rows import DEADLINE, PARKED, ParkedColumns, Unpacking, binary, packed, unpacked
from semistream.spark.joining.plan_parts import PlannedJoin
from semistream.spark.joining.state_partitions import parking_name, shrink_state_of_parking
from semistream.spark.monitoring.metrics import COUNTERS, observed, with_sentinel
from semistream.spark.relations.types import fit

__all__ = ["parked"]

_BLOBS = st.StructType(
    [
        st.StructField("shard", st.IntegerType()),
        st.StructField("missing", st.BooleanType()),
        st.StructField("blob", st.BinaryType()),
    ]
)
_ARROW = [pa.field("shard", pa.int32()), pa.field("missing", pa.bool_()), pa.field("blob", pa.binary())]
_TENDED = "blob binary, found_late bigint, expired bigint, waiting bigint"
_BLOB_ROWS = 1 << 15


def parked(sharded: DataFrame, task: JoinTask, plan: PlannedJoin) -> DataFrame:
    """Return the rows of a join: those with a match, those matched later, and those whose waiting time has expired.

    Parameters
    ----------
    sharded
        The stream, one partition per shard.
    task
        The join, which marks rows without a match as `PARKED`.
    plan
        The plan of the join.
    """
    missing, label = plan.missing, plan.label
    rule, idle = missing.rule, missing.park_idle
    assert task.marker is not None
    assert rule.park_for is not None
    kept = ParkedColumns(plan.stream.on, pa.schema([part.with_nullable(True) for part in plan.stream.schema]))
    final = _Final(task.marker.column, rule.way, label)
    shrink_state_of_parking(sharded.sparkSession)
    packing = _Packing(task, final, heartbeats=0 if idle else plan.relation.groups)
    if task.counted:
        blobs = observed(sharded.mapInArrow(packing, with_sentinel(_BLOBS)), label)
    else:
        blobs = sharded.mapInArrow(packing, _BLOBS)
    # Spark replaces this by the time of the micro-batch; a replay has the same time.
    timed = blobs.withColumn("now", F.unix_millis(F.current_timestamp()))
    parking = _Parking(task, final, kept, rule.park_for, plan.memory.parked, idle)
    tended = with_state(timed, "shard", parking, _TENDED, "ProcessingTime" if idle else "None")
    if task.counted:
        sums = [
            F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("found_late", "expired", "waiting")
        ]  # fmt: skip
        tended = tended.observe(f"{label}_parked", *sums)
    fields = plan.columns.result.fields
    leaving = [part for number, part in enumerate(fields) if missing.keep_mark or number != task.marker.column]
    unpacking = Unpacking(None if missing.keep_mark else task.marker.column)
    return tended.where("blob IS NOT NULL").select("blob").mapInArrow(unpacking, st.StructType(leaving))


@dataclass(frozen=True)
class _Final:
    """What happens to rows that do not wait, or no longer wait."""

    column: int
    way: str
    label: str

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return rows as they leave the join; None if they are dropped."""
        if self.way == "drop" or batch.num_rows == 0:
            return None
        mark = batch.schema.field(self.column)
        value = pa.scalar(self.label if self.way == "dead_letter" else None, mark.type)
        return batch.set_column(self.column, mark, pa.repeat(value, batch.num_rows))


@dataclass(frozen=True)
class _Packing:
    """A join task that packs its results into blobs: some of joined rows, others of rows to be parked."""

    task: JoinTask
    final: _Final
    heartbeats: int
    """Number of groups. Without timers, each gets at least one row per micro-batch, so that its state is processed."""

    @property
    def __name__(self) -> str:
        return parking_name(self.task.parts)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "runs only inside a Spark task"
        shard = context.partitionId()
        for group in range(shard, self.heartbeats, self.task.parts):
            yield self._row(group, None, None)
        for batch in self.task(batches):
            if self.task.counted:
                counters = batch.column(batch.num_columns - 1)
                if counters.null_count < batch.num_rows:
                    yield self._row(shard, None, None, counters)
                    continue
                batch = batch.remove_column(batch.num_columns - 1)
            wait = pc.equal(batch.column(self.final.column), PARKED).fill_null(False)
            if pc.any(wait).as_py():
                yield from self._missing(shard, batch.filter(wait))
                batch = batch.filter(pc.invert(wait))
            if batch.num_rows:
                yield self._row(shard, False, packed(batch))

    def _missing(self, shard: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        never = pa.repeat(pa.scalar(False), batch.num_rows)
        as_of = self.task.settings.get("as_of")
        for name in [*self.task.settings["on"], *([as_of] if as_of else [])]:  # NULL has no match in any version
            never = pc.or_(never, pc.is_null(batch.column(self.task.names.index(name))))
        gone = self.final.rows(batch.filter(never))
        if gone is not None:
            yield self._row(shard, False, packed(gone))
        waiting = batch.filter(pc.invert(never)).select(list(range(len(self.task.names))))
        if waiting.num_rows:
            mark = waiting.schema.field(self.final.column)
            waiting = waiting.set_column(self.final.column, mark, pa.nulls(waiting.num_rows, mark.type))
            yield self._row(shard, True, packed(waiting))

    def _row(
        self, shard: int, missing: bool | None, blob: pa.Buffer | None, counters: pa.Array | None = None
    ) -> pa.RecordBatch:
        columns = [pa.array([shard], pa.int32()), pa.array([missing], pa.bool_()), binary(blob)]
        if not self.task.counted:
            return pa.RecordBatch.from_arrays(columns, schema=pa.schema(_ARROW))
        counted = pa.nulls(1, COUNTERS.type) if counters is None else counters
        return pa.RecordBatch.from_arrays([*columns, counted], schema=pa.schema([*_ARROW, COUNTERS]))


@dataclass(eq=False)
class _Parking(StatefulProcessor):
    """The operator: keeps the rows of a shard by deadline, and joins them with each new version."""

    task: JoinTask
    final: _Final
    columns: ParkedColumns
    park_for: int
    memory: int
    idle: bool
    _handle: Any = field(default=None, repr=False)

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._rows = handle.getMapState("rows", "due bigint, part int", "batch binary")
        self._tried = handle.getValueState("tried", "version bigint, due bigint, rows bigint")
        self._shape = handle.getValueState("shape", "columns string, shards int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        fresh: list[pa.RecordBatch] = []
        now = 0
        for row in rows:
            now = row.now
            if row.blob is not None and row.missing:
                fresh.extend(unpacked(row.blob))
            elif row.blob is not None:
                yield _tended(row.blob)
        if self.idle:  # otherwise this group would be processed twice, and counted twice
            for due in self._handle.listTimers():
                self._handle.deleteTimer(due)
        yield from self._tend(int(key[0]), fresh, now)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield from self._tend(int(key[0]), [], timerValues.getCurrentProcessingTimeInMs())

    def close(self) -> None:
        pass

    def _tend(self, shard: int, fresh: list[pa.RecordBatch], now: int) -> Iterator[Row]:
        """Retry parked rows if there is a new version, return those that have expired, and store new ones."""
        tried, due, count = self._tried.get() or (0, 0, 0)
        if not count and not fresh:
            return
        context = TaskContext.get()
        assert context is not None, "runs only inside a Spark task"
        relation = self.task.relation
        pin = relation.pin(context, now, self.task.settings["on"])
        shards = self._agreed() if count else self.task.parts
        late = expired = 0
        edition = relation.edition(pin)
        if count and edition != tried:
            kept: list[pa.RecordBatch] = []
            for unmatched, batch in self._tried_again(shard, shards, pin):
                if unmatched:
                    kept.append(batch)
                else:
                    late += batch.num_rows
                    yield _tended(packed(batch).to_pybytes())
            self._rows.clear()
            count = self._keep_by_deadline(kept)
        if count and due <= now:
            for key in [key for key in self._rows.keys() if key[0] <= now]:  # noqa: SIM118 - not a dict
                for batch in self.columns.rows(self._rows.getValue(key)[0]):
                    expired += batch.num_rows
                    leaving = self.final.rows(self._with_nulls(batch))
                    if leaving is not None:
                        yield _tended(packed(leaving).to_pybytes())
                self._rows.removeKey(key)
            count -= expired
        count += self._keep([fit(batch, self.columns.schema) for batch in fresh], now + self.park_for)
        if count:
            shape = (self.columns.described, math.gcd(shards, self.task.parts) if fresh else shards)
            if self._shape.get() != shape:
                self._shape.update(shape)
            due = min(key[0] for key in self._rows.keys())  # noqa: SIM118 - not a dict
            self._tried.update((edition, due, count))
            if self.idle:
                self._handle.registerTimer(now + 1)
        else:
            self._tried.clear()
            self._shape.clear()
        pin.wait()
        yield Row(blob=None, found_late=late, expired=expired, waiting=count)

    def _agreed(self) -> int:
        """Return by how many shards the parked rows of a group were partitioned; refuse rows that do not fit."""
        columns, shards = self._shape.get() or (self.columns.described, 1)
        self.columns.check(columns, self.final.label)
        return int(shards)

    def _tried_again(self, shard: int, shards: int, pin: Pin) -> Iterator[tuple[bool, pa.RecordBatch]]:
        """Join all parked rows of a shard; yield rows without a match with their deadline, and joined rows."""
        parts = (
            batch.append_column(DEADLINE, pa.repeat(pa.scalar(key[0], pa.int64()), batch.num_rows))
            for key, value in self._rows.iterator()
            for batch in self.columns.rows(value[0])
        )
        first = next(parts, None)
        if first is None:
            return
        task, width = self.task, len(self.task.names)
        schema = pa.schema([*first.schema, *task.added])
        # If each task had all of R, as in a join on ranges, parked rows need all of it too.
        with task.relation.opened(pin, shard, shards if task.shards > 1 else 1) as relation:
            order = task.order_of(relation, width + 1)
            joined = create(task.algorithm, relation, memory=self.memory, **{**task.settings, "how": "left"})
            joined.bind(first.schema, first)
            for batch in joined.process(chain([first], parts)):
                if has_no_partner(batch):
                    yield True, batch.select(list(range(width + 1)))
                else:
                    arranged = batch if order is None else batch.select(order)
                    yield False, fit(arranged, schema).remove_column(width)

    def _keep_by_deadline(self, batches: list[pa.RecordBatch]) -> int:
        if not batches:
            return 0
        table = pa.Table.from_batches([batch.replace_schema_metadata() for batch in batches])
        table = table.sort_by(DEADLINE).combine_chunks()
        deadlines = table[DEADLINE].to_numpy()
        rows = table.drop_columns(DEADLINE)
        starts = np.flatnonzero(np.diff(deadlines, prepend=deadlines[0] - 1))
        for begin, end in zip(starts, [*starts[1:], len(deadlines)], strict=True):
            self._keep(rows.slice(begin, end - begin).to_batches(), int(deadlines[begin]))
        return len(deadlines)

    def _keep(self, batches: list[pa.RecordBatch], due: int) -> int:
        """Put rows into the state, under the next free part numbers of their deadline."""
        if not batches:
            return 0
        table = pa.Table.from_batches(batches).combine_chunks()
        part = 0
        for batch in table.to_batches(max_chunksize=_BLOB_ROWS):
            while self._rows.containsKey((due, part)):
                part += 1
            self._rows.updateValue((due, part), (packed(batch, compression="lz4").to_pybytes(),))
        return int(table.num_rows)

    def _with_nulls(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        nulls = [pa.nulls(batch.num_rows, part.type) for part in self.task.added]
        return pa.RecordBatch.from_arrays([*batch.columns, *nulls], schema=pa.schema([*batch.schema, *self.task.added]))


def _tended(blob: bytes) -> Row:
    return Row(blob=bytes(blob), found_late=0, expired=0, waiting=0)
