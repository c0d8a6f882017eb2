"""The plan of a join that sees only keys.

::

    stream ──shuffle──▶ key ──▶ Python: the join of shard i ──▶ R's columns, found?, counters
                        all other columns wait in the JVM     ──▶ beside them

The function is called once for each task, and never twice for a row: Spark is told that it is not deterministic, so
that it is not worked out again for each column, nor before a filter that it is not meant to see.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pyspark.sql.types as st
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf

from semistream.spark.joining.arrival import ARRIVAL
from semistream.spark.joining.key_task import FOUND, KeyTask, answer_type
from semistream.spark.joining.missing import marked_as
from semistream.spark.monitoring.metrics import COUNTERS, told
from semistream.spark.relations.key_expressions import by_position

if TYPE_CHECKING:
    from semistream.spark.joining.join_plan import PlannedJoin
    from semistream.spark.joining.join_task import JoinTask
    from semistream.spark.joining.spreading.hot_keys import HotKeys

__all__ = ["answered_by_key"]

_ANSWER = "answer"


def answered_by_key(sharded: DataFrame, task: JoinTask, plan: PlannedJoin, hot: HotKeys | None) -> DataFrame:
    """Return the rows of a planned join.

    Parameters
    ----------
    sharded
        The stream, by position, one partition a shard.
    task
        The join.
    plan
        What it was made from.
    hot
        Who is told which keys are hot, if their rows are in any partition.
    """
    names = plan.stream_schema.names
    width, flagged = len(names), plan.rule.way != "null"
    added = plan.result.fields[width:]
    keys = [by_position(names.index(name)) for name in plan.on]
    marks: list[Column] = []
    if plan.marker is not None:  # rows that an earlier join has marked pass this one by
        before = by_position(plan.marker.column)
        keys, marks = [F.when(before.isNull(), key) for key in keys], [before.isNotNull()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of type hints, which a method of any number of columns has not
        # the stubs know no struct as what a function returns
        function: Any = arrow_udf(  # type: ignore[call-overload]
            KeyTask(task, flagged, bool(marks), None if hot is None else hot.told).semistream_join,
            answer_type(st.StructType(added), flagged=flagged, counted=task.counted),
            ArrowUDFType.SCALAR_ITER,
        ).asNondeterministic()
    answered = sharded.withColumn(_ANSWER, function(*keys, *marks, ARRIVAL))
    if plan.metrics is not None:
        # a column by itself, for what is observed is not compiled, and slow to look into a struct
        counted = answered.withColumn(COUNTERS.name, F.col(f"{_ANSWER}.{COUNTERS.name}"))
        answered = counted.observe(plan.metrics, told(F.col(COUNTERS.name)))
    found = F.col(f"{_ANSWER}.{FOUND}")
    if plan.rule.way == "drop":
        # rows that an earlier join has marked are no concern of this one, and stay
        answered = answered.where(found if plan.marker is None else found | by_position(plan.marker.column).isNotNull())
    columns = [by_position(number).alias(name) for number, name in enumerate(names)]
    if plan.marker is not None and plan.marker.label is not None:
        columns[plan.marker.column] = marked_as(by_position(plan.marker.column), ~found, plan.marker.label)
    columns += [F.col(f"{_ANSWER}.r{number}").alias(part.name) for number, part in enumerate(added)]
    return answered.select(*columns)
