"""The plan of several joins in one pass.

::

    stream ──▶ (shuffle by the key of the one large relation) ──▶ keys of all dimensions ──▶ Python ──▶ one struct
               all other columns stay in the JVM                                                    ──▶ joined to them

A stage has any number of relations that are held whole, and at most one that is read by page; the stream is shuffled by
the key of that one. Joins are added in order as long as they can *ride along*: each row has one answer, and its keys
are columns that the stage received. Any other join starts a new stage.

The function is called once per task, and never twice for a row. It is declared nondeterministic, so that Spark does not
compute it again for each column, nor before a filter that must come first. On Spark 4.0, whole rows go to Python.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from semistream.spark.features import sent_to_partition, with_answers
from semistream.spark.joining.arrival import ARRIVAL, arrival
from semistream.spark.joining.join_task import JoinTask, TaskMemory
from semistream.spark.joining.missing import MISSING_IN, marked_as
from semistream.spark.joining.plan_parts import PlannedJoin
from semistream.spark.joining.spreading.hot_keys import HotKeys
from semistream.spark.joining.star.dimensions import HeldDimension, ShuffledDimension
from semistream.spark.joining.star.star_task import (
    DROPPED,
    FATE,
    FOUND,
    StarTask,
    answer_type,
    column_name,
    counters_name,
    riding_names,
)
from semistream.spark.joining.warm_cleanup import forget_when_ended
from semistream.spark.monitoring.metrics import all_counters
from semistream.spark.relations.key_expressions import by_position, positional

__all__ = ["Stage", "remembered", "staged", "task_memory"]

_ANSWER = "answer"
_MOST_GUESTS = 256 << 10
"""Maximum bytes of a task's memory for rows of hot keys."""


@dataclass(frozen=True)
class Stage:
    """Joins that are done in one pass over a stream, in this order."""

    plans: tuple[PlannedJoin, ...]

    @property
    def base(self) -> DataFrame:
        """The stream that the first join was planned with."""
        return self.plans[0].stream.frame

    @property
    def shuffled(self) -> PlannedJoin | None:
        """The join that the stream is shuffled for."""
        return next((plan for plan in self.plans if not plan.algorithm.held), None)

    def with_join(self, plan: PlannedJoin) -> Stage | None:
        """Return the stage with one more join; None if that join cannot ride along."""
        second = not plan.algorithm.held and self.shuffled is not None
        observed = any(isinstance(one.metrics.name, Observation) for one in self.plans)  # an Observation works once
        if second or observed or not plan.algorithm.by_key:
            return None
        origins = {symbol.name: symbol.origin for symbol in _symbols(self)}
        if any(origins.get(name) is None for name in plan.stream.sent):
            return None
        return replace(self, plans=(*self.plans, plan))


_stages: weakref.WeakKeyDictionary[DataFrame, Stage] = weakref.WeakKeyDictionary()


def remembered(frame: DataFrame) -> Stage | None:
    """Return the stage that a DataFrame is the result of; None if it was changed since, or is cached."""
    return None if getattr(frame, "is_cached", False) else _stages.get(frame)


def staged(stage: Stage) -> DataFrame:
    """Return the joined rows of a stage."""
    base, large = stage.base, stage.shuffled
    guests = 0 if large is None else _room_for_guests(large, base)
    hot = None
    source = positional(base)
    home: Column | None = None
    if large is not None:
        on, key, tasks = large.stream.on, large.relation.key, large.memory.tasks
        home = part = large.routing.part_of(base, on, key)
        if guests:
            hot = HotKeys(base, tasks, guests // 2 // large.relation.longest)
            part = hot.part_of(base, on, key, home)
        source = sent_to_partition(source, tasks, part)
    if base.isStreaming:
        forget_when_ended(base.sparkSession)
    arrived = arrival(base.isStreaming, home if hot is not None else None)
    source = source.select("*", arrived.alias(ARRIVAL))
    frame = _answered(source, stage, guests, hot)
    _stages[frame] = stage
    return frame


def task_memory(plan: PlannedJoin, guests: int = 0) -> TaskMemory:
    """Return how each task of a join divides its memory."""
    counts = plan.metrics.missing_keys and plan.metrics.name is not None
    return TaskMemory.divided(
        plan.memory.share, plan.memory.least, missing=counts, guests=guests, look_up=plan.memory.least if guests else 0
    )


def _room_for_guests(plan: PlannedJoin, base: DataFrame) -> int:
    """Return the bytes of a task's memory for guests, rows of hot keys of other tasks; 0 if no keys are spread."""
    memory = plan.memory
    room = max(4096, min(_MOST_GUESTS, memory.share // 16))
    enough = room // 2 >= plan.relation.longest and memory.share >= 4 * memory.least + 2 * room
    # A hot key of a history has as many answers as versions, so its rows stay in the task that has its shard.
    spread = memory.tasks > 1 and enough and plan.stream.as_of is None
    return room if spread and HotKeys.possible(base) else 0


# -- columns ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Symbol:
    """A column of the result: its name, its expression, and its position in the base if it comes from there."""

    name: str
    column: Column
    origin: int | None = None


def _symbols(stage: Stage) -> list[_Symbol]:
    """Return the columns after all joins, as expressions of the base's columns and the answer."""
    names = stage.base.columns
    symbols = [_Symbol(name, by_position(at).alias(name), at) for at, name in enumerate(names)]
    fate = F.col(f"{_ANSWER}.{FATE}")
    for number, plan in enumerate(stage.plans):
        if MISSING_IN in plan.stream.frame.columns and all(symbol.name != MISSING_IN for symbol in symbols):
            symbols.append(_Symbol(MISSING_IN, F.lit(None).cast("string")))
        marker = plan.missing.marker
        if marker is not None and marker.label is not None:
            before = symbols[marker.column].column
            symbols[marker.column] = _Symbol(MISSING_IN, marked_as(before, fate == number + 1, marker.label))
        added = [
            _Symbol(part.name, F.col(f"{_ANSWER}.{column_name(number, at)}").alias(part.name))
            for at, part in enumerate(plan.added_fields)
        ]
        columns = plan.columns
        if columns.surrogate is not None:
            at = list(plan.added).index(columns.surrogate)
            value = F.col(f"{_ANSWER}.{column_name(number, at)}")
            if columns.unknown is not None:
                value = F.coalesce(value, F.lit(columns.unknown).cast(plan.added_fields[at].dataType))
            key = [symbol.name for symbol in symbols].index(plan.stream.on[0])
            name = columns.prefix + columns.surrogate
            symbols[key] = _Symbol(name, value.alias(name))
            del added[at]
        symbols += added
    return symbols


# -- the function -------------------------------------------------------------------------------------------------


def _answered(source: DataFrame, stage: Stage, guests: int, hot: HotKeys | None) -> DataFrame:
    names = stage.base.columns
    wanted = list(dict.fromkeys(names.index(name) for plan in stage.plans for name in plan.stream.sent))
    # rows that a join before this stage has marked pass all joins unchanged
    marks = [by_position(names.index(MISSING_IN)).isNotNull()] if _has_marks(stage) else []
    star = _star_task(stage, {name: wanted.index(names.index(name)) for name in names if names.index(name) in wanted},
                      bool(marks), guests, hot)  # fmt: skip
    counted = [plan.metrics.name is not None for plan in stage.plans]
    kind = answer_type([plan.added_fields for plan in stage.plans], counted, flagged=star.flagged)
    keys = [source.columns[at] for at in wanted]
    answered = with_answers(source, _ANSWER, star.semistream_join, kind, [*keys, *marks, ARRIVAL])
    for number, plan in enumerate(stage.plans):
        if plan.metrics.name is not None:
            # a separate column: observed expressions are not compiled, and reading from a struct would be slow
            name = counters_name(number)
            answered = answered.withColumn(name, F.col(f"{_ANSWER}.{name}")).observe(
                plan.metrics.name, all_counters(F.col(name))
            )
    if any(plan.missing.rule.way == "drop" for plan in stage.plans):
        answered = answered.where(F.col(f"{_ANSWER}.{FATE}") != DROPPED)
    return answered.select(*(symbol.column for symbol in _symbols(stage)))


def _has_marks(stage: Stage) -> bool:
    first = stage.plans[0]
    return first.missing.marker is not None and MISSING_IN in first.stream.before.columns


def _star_task(stage: Stage, places: dict[str, int], marked: bool, guests: int, hot: HotKeys | None) -> StarTask:
    dimensions: list[HeldDimension | ShuffledDimension] = []
    for plan in stage.plans:
        keys = tuple(places[name] for name in plan.stream.sent)
        relation, way = plan.relation.for_tasks(), plan.missing.rule.way
        counted, missing_keys = plan.metrics.name is not None, plan.metrics.missing_keys
        if plan.algorithm.held:
            columns = tuple(part.name for part in plan.columns.values)
            dimensions.append(
                HeldDimension(
                    relation, plan.stream.on, keys, columns, plan.added_schema, way, plan.memory.total,
                    plan.memory.tasks, counted, missing_keys, dated=plan.stream.as_of is not None,
                )
            )  # fmt: skip
            continue
        algorithm = plan.algorithm
        task = JoinTask(
            relation, algorithm.name, task_memory(plan, guests), tuple(algorithm.given.names), plan.added_schema,
            algorithm.settings, counted=counted, missing_keys=missing_keys, parts=plan.memory.tasks,
            shards=plan.routing.shards, cache=algorithm.cache, timed=stage.base.isStreaming, found=FOUND,
        )  # fmt: skip
        dimensions.append(ShuffledDimension(task, keys, way))
    for at, one in enumerate(dimensions):
        if isinstance(one, ShuffledDimension):
            riding = riding_names(tuple(dimensions), at, marked=marked)
            dimensions[at] = replace(one, task=replace(one.task, names=(*one.task.names, *riding)))
    return StarTask(tuple(dimensions), marked, stage.base.isStreaming, None if hot is None else hot.reports)
