"""Join a DataFrame, streaming or not, with a relation.

::

    stream  ──shuffle by key──▶  task i: batches in ──▶ join of its shard, its share of memory ──▶ batches out
              pmod(xxhash64(key), n)                    (drained at the end of the micro-batch)
                                                          │ cache of frequent tuples
                                                   files of the shard, kept warm for the next micro-batch

If each row has one answer, in the order of the stream, only keys go to the task and only R's columns come back. Several
such joins are done in one pass, without a shuffle if R is held whole (`semistream.spark.joining.star`). Otherwise whole
rows go to the task.

R is opened once, when the join is planned. Errors are raised then, and no job starts before the query does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from semistream.joins import How
from semistream.joins.interface.conditions import ConditionName
from semistream.relation.relation import Relation
from semistream.relation.storage.secondary_index import Columns
from semistream.spark.features import sent_to_partition
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
    by: Columns | None = None,
    how: How | None = None,
    on_missing: OnMissing | None = None,
    park_for: str | float | timedelta | None = None,
    after_park: After | None = None,
    park_idle: bool = True,
    memory: int | float | str = MEMORY,
    algorithm: str = ALGORITHM,
    condition: ConditionName = "equal",
    as_of: str | None = None,
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
    """Return the stream's rows with the relation's columns added.

    The result is a lazy DataFrame, streaming or batch, for any source and sink. It is exactly the result of SQL's
    ``JOIN`` or ``LEFT JOIN``, each row once; a NULL key matches nothing.

    Parameters
    ----------
    stream
        A DataFrame, usually streaming.
    relation
        A relation; or its path, on storage that the driver and all executors see under the same name; or its address in
        a store, such as ``s3://bucket/products``. Each process takes credentials from its environment or its instance.
        Each micro-batch of a streaming query reads the version that was newest when the batch began, and a replay of
        the batch reads that version again. A batch DataFrame reads the version that is newest now.
    on
        The stream's key column, or columns in the order of the relation's key. Their names may differ. With
        ``condition="between"``, the low and the high bound.
    by
        Columns of a secondary index of the relation, to join on these instead of its key. The result then also has the
        relation's key. See `semistream.Relation.add_index`.
    how
        ``"left"`` (the default) or ``"inner"``: the same as ``on_missing="null"`` or ``on_missing="drop"``.
    on_missing
        What happens to rows without a match. ``"null"`` keeps them, with NULLs. ``"drop"`` drops them.
        ``"dead_letter"`` keeps them, marked with this join's name (``metrics``, or the relation's directory) in the
        column ``missing_in``; later joins pass them on unchanged, and `semistream.spark.write_stream` can send them to
        another sink. ``"park"`` keeps them in Spark's state store and retries them with each new version of the
        relation, for as long as ``park_for``. Rows with a NULL key do not wait.
    park_for
        How long a parked row waits, such as ``"1 hour"``.
    after_park
        What happens to a row after that time: ``"null"``, ``"drop"`` or ``"dead_letter"``. The default follows
        ``how``; without ``how`` it is ``"null"``.
    park_idle
        True retries and expires parked rows at every trigger, if necessary in micro-batches without rows. Then give the
        query a processing-time trigger; with ``availableNow`` it would never end. False does so only in micro-batches
        with rows. The choice cannot be changed for an existing checkpoint.
    memory
        What the joins of all shards may hold together on one machine, including caches between micro-batches: bytes,
        text such as ``"64MB"``, or a share of the relation such as ``"5%"``. A share is never less than the join needs,
        and always enough to hold a relation of up to 16 MB whole. All shards get equal parts.
    algorithm
        One of `semistream.algorithms`. Those with a cache of single tuples (``adaptivejoin``, the default,
        ``cachejoin`` and its variants) keep it between micro-batches. ``"auto"`` chooses the one of these with the
        highest predicted rate for this relation, its disk, the memory and ``exponent``, the stream's Zipf exponent.
    condition
        ``"equal"``, or ``"between"`` for ``R.key BETWEEN low AND high``: the relation's key is one number, date or time
        column, and a row of the stream is joined with all rows within its bounds. The algorithm is ``adaptivejoin``,
        ``ssij`` or ``oracle``. Each task opens all shards, so ranges are fastest in a relation built with ``shards=1``.
    as_of
        The stream's column of times, if the relation is a history (built with ``valid_from``). Each row is joined with
        the row of its key that was valid at its time, at most one. A row that is older than the first version of its
        key has no match, and neither has a row with a NULL time. The algorithm is ``adaptivejoin``, ``inlj`` or
        ``oracle``.
    columns
        The relation's columns to add, by default all but its key; with ``condition="between"``, all. Other columns are
        neither decoded nor sent. A ``select`` after the join does not save that work.
    surrogate
        A column of the relation that replaces the stream's key.
    unknown
        The value of ``surrogate`` for rows without a match.
    prefix
        Prefix of the names of all of the relation's columns in the result, including ``surrogate``. Two joins with the
        same relation need different prefixes, such as ``prefix="ship_"``.
    suffix
        Added to the names of columns of the relation that the stream also has.
    warm
        False empties the caches after every micro-batch: no memory is held between them, but each reads more pages.
    hold
        A relation that fits into ``memory`` is held whole on each machine, one copy for all tasks, and the stream is
        not shuffled. False always reads it by page, which is better if it has a new version in every micro-batch. True
        raises an error if it does not fit.
    metrics
        A name under which the progress of every micro-batch shows counters of the join's tasks, such as pages read and
        bytes held. ``semistream.spark.counters_of(query.lastProgress["observedMetrics"][name])`` returns the sums of a
        micro-batch, `semistream.spark.stream_statistics` those of the whole query. For a batch DataFrame, pass an
        ``Observation``. Counters are incomplete if a ``limit`` follows the join: a task reports at the end of its rows.
    missing_keys
        By default, the ``metrics`` list the most frequent keys that the relation does not have, as text. False keeps
        these keys out of Spark's progress and its event log. The number of rows without a match is always counted.
    pins
        A directory for pins if the relation's own cannot be written. A pin records which version a micro-batch reads.
        The driver and all executors must see the directory; a good place is next to the checkpoint. With a local
        master, the default is a directory of the user. `vacuum` does not see such pins, so keep versions for as long
        as a batch may be replayed.
    local
        For a relation in a store: what each machine may keep of it on its disk, in ``$SEMISTREAM_LOCAL_DIR``, such as
        ``"20GB"`` or ``"25%"`` of R. The default is ``$SEMISTREAM_LOCAL`` of the machine, or nothing.
    options
        Further parameters of the algorithm; see its class.

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
            stream, relation, on=on, by=by, how=how, on_missing=on_missing, park_for=park_for, after_park=after_park,
            park_idle=park_idle, memory=memory, algorithm=algorithm, condition=condition, as_of=as_of, columns=columns,
            surrogate=surrogate, unknown=unknown, suffix=suffix, prefix=prefix, warm=warm, hold=hold, metrics=metrics,
            pins=pins, local=local, missing_keys=missing_keys, **options,
        )
    )  # fmt: skip


def joined(plan: PlannedJoin) -> DataFrame:
    """Return the frame of a planned join.

    If the stream is the result of joins, all are done in one pass.
    """
    if plan.algorithm.by_key:
        before = remembered(plan.stream.before)
        return staged((before and before.with_join(plan)) or Stage((plan,)))
    frame = _rows(plan)
    return frame if plan.columns.surrogate is None else _with_surrogate(frame, plan)


def _with_surrogate(frame: DataFrame, plan: PlannedJoin) -> DataFrame:
    """Return the frame with one of R's columns in place of the stream's key."""
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
    """Return the stream's columns and R's, from a join that receives whole rows."""
    stream, algorithm, tasks = plan.stream.frame, plan.algorithm, plan.memory.tasks
    if algorithm.cache is not None and stream.isStreaming:
        forget_when_ended(stream.sparkSession)
    task = JoinTask(
        plan.relation.for_tasks(), algorithm.name, task_memory(plan), tuple(algorithm.given.names), plan.added_schema,
        algorithm.settings, counted=plan.metrics.name is not None, missing_keys=plan.metrics.missing_keys, parts=tasks,
        shards=plan.routing.shards, cache=algorithm.cache, marker=plan.missing.marker, timed=stream.isStreaming,
    )  # fmt: skip
    part = plan.routing.part_of(stream, plan.stream.on, plan.relation.key)
    sharded = sent_to_partition(positional(stream), tasks, part)
    sharded = sharded.select("*", arrival(stream.isStreaming).alias(ARRIVAL))
    if plan.missing.rule.park_for is not None:
        return parked(sharded, task, plan)
    if plan.metrics.name is None:
        return sharded.mapInArrow(task, plan.columns.result)
    return observed(sharded.mapInArrow(task, with_sentinel(plan.columns.result)), plan.metrics.name)
