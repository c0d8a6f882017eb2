"""Join a DataFrame, streaming or not, with a relation.

::

    stream  ──shuffle by key──▶  task i: batches in ──▶ join of its shard, its share of memory ──▶ batches out
              pmod(xxhash64(key), n)                    (drained at the end of the micro-batch)
                                                          │ cache of frequent tuples
                                                   files of the shard, kept warm for the next micro-batch

Where each row has one answer, in the order of the stream, only keys go to the task and only R's columns come back; such
joins are done in one pass with each other, and without a shuffle if R is held whole (`semistream.spark.joining.star`).
Else whole rows go to the task.

R is opened once, for a plan, and everything that can be wrong is found then; no job starts before the query does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from semistream.joins import How
from semistream.relation.relation import Relation
from semistream.spark.joining.arrival import ARRIVAL, arrival
from semistream.spark.joining.join_plan import ALGORITHM, MEMORY, plan_join
from semistream.spark.joining.join_task import JoinTask
from semistream.spark.joining.missing import MISSING_IN, After, OnMissing
from semistream.spark.joining.parking import parked
from semistream.spark.joining.plan_parts import PlannedJoin
from semistream.spark.joining.star.stage import Stage, remembered, staged, task_memory
from semistream.spark.joining.warm_cleanup import forget_when_ended
from semistream.spark.monitoring.metrics import observed, with_sentinel
from semistream.spark.relations.key_expressions import positional, quoted

__all__ = ["join", "joined"]


def join(
    stream: DataFrame,
    relation: Relation | str | os.PathLike[str],
    *,
    on: str | Sequence[str],
    how: How | None = None,
    on_missing: OnMissing | None = None,
    park_for: str | float | timedelta | None = None,
    after_park: After | None = None,
    park_idle: bool = True,
    memory: int | float | str = MEMORY,
    algorithm: str = ALGORITHM,
    columns: Sequence[str] | None = None,
    surrogate: str | None = None,
    unknown: Any = None,
    suffix: str = "_right",
    prefix: str = "",
    warm: bool = True,
    hold: bool | None = None,
    metrics: str | Observation | None = None,
    pins: str | os.PathLike[str] | None = None,
    local: int | float | str | None = None,
    missing_keys: bool = True,
    **options: Any,
) -> DataFrame:
    """Return the stream's rows with the relation's columns beside them.

    Lazy, and usable wherever a DataFrame is: streaming or batch, any source and sink, ``DataFrame.transform``.
    The result is exactly that of SQL's ``JOIN`` or ``LEFT JOIN``, each row once; a NULL key matches nothing.

    Parameters
    ----------
    stream
        A DataFrame, usually streaming.
    relation
        A relation, or the path of one, on storage that the driver and all executors see under that name, or its address
        in a store, such as ``s3://bucket/products``; credentials are those that each process finds in its environment
        or has from its instance. Each
        micro-batch of a streaming query reads the version that was newest when the batch began, and a replay of the
        batch reads that version again. A batch DataFrame reads the version that is newest now.
    on
        The stream's key column, or columns in the order of the relation's key. Their names may differ.
    how
        ``"left"`` (the default) or ``"inner"``: in other words, ``on_missing`` is ``"null"`` or ``"drop"``.
    on_missing
        What becomes of rows without a partner: ``"null"`` keeps them, with NULLs; ``"drop"`` drops them;
        ``"dead_letter"`` keeps them marked with this join's name (``metrics``, or the relation's directory) in the
        column ``missing_in``, for `semistream.spark.write_stream` to send elsewhere, and later joins pass them on as
        they are; ``"park"`` has them wait in Spark's state store, tries them again with each new version of the
        relation, and gives them up after ``park_for``. Rows with a NULL key do not wait.
    park_for
        How long a parked row waits, such as ``"1 hour"``.
    after_park
        What happens to a row after that time: ``"null"``, ``"drop"`` or ``"dead_letter"``. By default as ``how`` says,
        ``"null"`` without it.
    park_idle
        True tends to parked rows at every trigger, with micro-batches that have no rows if need be: give the query a
        processing-time trigger, for with ``availableNow`` it would never end. False tends to them in micro-batches
        that have rows. A checkpoint stays with the one or the other.
    memory
        What the joins of all shards may hold together on one machine, caches between micro-batches included: bytes,
        text such as ``"64MB"``, or a share of the relation such as ``"5%"``. A share is never less than the join needs,
        and holds a relation of up to 16 MB whole. Each of the shards gets the same part of it.
    algorithm
        One of `semistream.algorithms`. Those with a cache of single tuples (``adaptivejoin``, the default,
        ``cachejoin`` and its relatives) keep it from one micro-batch to the next. ``"auto"`` takes the one of these
        that the cost models expect most of, for this relation, its disk, the memory and ``exponent``, the stream's
        Zipf exponent.
    columns
        The relation's columns that are wanted, by default all but its key. Others are neither decoded nor sent, which
        a ``select`` after the join cannot bring about.
    surrogate
        A column of the relation that replaces the stream's key.
    unknown
        The value of ``surrogate`` for rows without a partner.
    prefix
        Put before the names of all of the relation's columns in the result, ``surrogate`` included. Two joins with one
        relation need a prefix each: ``prefix="ship_"``.
    suffix
        Added to the names of the relation's columns that the stream has too.
    warm
        False empties the caches after every micro-batch: less to hold between them, more to read in each.
    hold
        A relation that fits into ``memory`` is held whole on each machine, one copy for all tasks, and the stream is
        not shuffled. False always reads it by page, which is better if its versions change with every micro-batch; True
        raises if it does not fit.
    metrics
        A name under which every micro-batch's progress shows what the join's tasks did, pages read, bytes held and so
        on: ``semistream.spark.counters_of(query.lastProgress["observedMetrics"][name])`` are the sums, and
        `semistream.spark.stream_statistics` those of the whole query. For a batch DataFrame an ``Observation``.
        Tasks whose rows are not read to the end, as with a ``limit`` after the join, tell nothing.
    missing_keys
        False keeps the keys that the relation does not have, of which the most frequent are else told as text with the
        ``metrics``, out of Spark's progress and its event log. How many rows have no partner is counted all the same.
    pins
        A directory for notes of which version a micro-batch reads, if the relation's own cannot be written: one that
        the driver and all executors see, such as one beside the checkpoint. By default, with a local master, one of the
        user's. `vacuum` does not see such pins, so have versions kept for as long as a batch may be done again.
    local
        Of a relation in a store: what each machine may keep of it on its disk, such as ``"20GB"`` or ``"25%"`` of R, in
        ``$SEMISTREAM_LOCAL_DIR``. By default what ``$SEMISTREAM_LOCAL`` says there, or nothing.
    options
        Parameters of the algorithm's own; see its class.

    Raises
    ------
    ValueError
        One of the subclasses in `semistream.core.errors`: no such key column, key types that do not fit, a path that
        is not a relation, an algorithm that does not exist, too little memory. Raised here, before anything runs.

    Examples
    --------
    >>> sales = spark.readStream.schema("id long, amount double").parquet("sales/")      # doctest: +SKIP
    >>> enriched = semistream.join(sales, "/data/products", on="id", how="left",
    ...                            memory="5%")                                          # doctest: +SKIP
    >>> enriched.writeStream.format("parquet").option("checkpointLocation", "check/").start("facts/")  # doctest: +SKIP
    """
    return joined(
        plan_join(
            stream, relation, on=on, how=how, on_missing=on_missing, park_for=park_for, after_park=after_park,
            park_idle=park_idle, memory=memory, algorithm=algorithm, columns=columns, surrogate=surrogate,
            unknown=unknown, suffix=suffix, prefix=prefix, warm=warm, hold=hold, metrics=metrics, pins=pins,
            local=local, missing_keys=missing_keys, **options,
        )
    )  # fmt: skip


def joined(plan: PlannedJoin) -> DataFrame:
    """Return the frame of a join that was planned; if the stream is the result of joins, in one pass with them."""
    if plan.algorithm.by_key:
        before = remembered(plan.stream.before)
        return staged((before and before.with_join(plan)) or Stage((plan,)))
    frame = _rows(plan)
    return frame if plan.columns.surrogate is None else _with_surrogate(frame, plan)


def _with_surrogate(frame: DataFrame, plan: PlannedJoin) -> DataFrame:
    """Return the frame with one of R's columns in the place of the stream's key."""
    columns, added = plan.columns, plan.added
    assert columns.surrogate is not None
    parked_away = plan.missing.marker is not None and not plan.missing.keep_mark
    value = quoted(added[columns.surrogate])
    if columns.unknown is not None:
        kind = columns.result[added[columns.surrogate]].dataType
        value = F.coalesce(value, F.lit(columns.unknown).cast(kind))
    kept = [
        value.alias(columns.prefix + columns.surrogate) if name == plan.stream.on[0] else quoted(name)
        for name in plan.stream.frame.columns
        if not (parked_away and name == MISSING_IN)
    ]
    return frame.select(*kept, *(quoted(name) for part, name in added.items() if part != columns.surrogate))


def _rows(plan: PlannedJoin) -> DataFrame:
    """Return the stream's columns and R's, by a join that sees whole rows."""
    stream, algorithm, tasks = plan.stream.frame, plan.algorithm, plan.memory.tasks
    if algorithm.cache is not None and stream.isStreaming:
        forget_when_ended(stream.sparkSession)
    task = JoinTask(
        plan.relation.for_tasks(), algorithm.name, task_memory(plan), tuple(algorithm.given.names), plan.added_schema,
        algorithm.settings, counted=plan.metrics.name is not None, missing_keys=plan.metrics.missing_keys, parts=tasks,
        shards=plan.routing.shards, cache=algorithm.cache, marker=plan.missing.marker, timed=stream.isStreaming,
    )  # fmt: skip
    sharded = positional(stream).repartitionById(tasks, plan.routing.part_of(stream, plan.stream.on, plan.relation.key))
    sharded = sharded.select("*", arrival(stream.isStreaming).alias(ARRIVAL))
    if plan.missing.rule.park_for is not None:
        return parked(sharded, task, plan)
    if plan.metrics.name is None:
        return sharded.mapInArrow(task, plan.columns.result)
    return observed(sharded.mapInArrow(task, with_sentinel(plan.columns.result)), plan.metrics.name)
