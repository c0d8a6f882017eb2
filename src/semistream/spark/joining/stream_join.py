"""Join a DataFrame, streaming or not, with a relation.

::

    stream  ──shuffle by shard──▶  task i: batches in ──▶ join of shard i, its share of memory ──▶ batches out
              pmod(xxhash64(key), n)                      (drained at the end of the micro-batch)
                                                            │ cache of frequent tuples
                                                   files of shard i, kept warm for the next micro-batch

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
from semistream.spark.joining.join_plan import ALGORITHM, MEMORY, PlannedJoin, plan_join
from semistream.spark.joining.join_task import JoinTask
from semistream.spark.joining.missing import After, OnMissing
from semistream.spark.joining.parking import parked
from semistream.spark.joining.warm_cleanup import forget_when_ended
from semistream.spark.monitoring.metrics import observed, with_sentinel
from semistream.spark.relations.key_expressions import positional, shard_of

__all__ = ["join", "joined"]

_MOST_RESULTS = 4 << 20


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
    suffix: str = "_right",
    warm: bool = True,
    metrics: str | Observation | None = None,
    pins: str | os.PathLike[str] | None = None,
    local: int | float | str | None = None,
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
    park_for, after_park
        How long a row waits, such as ``"1 hour"``, and what becomes of it then: ``"null"``, ``"drop"`` or
        ``"dead_letter"``; by default as ``how`` says, ``"null"`` without it.
    park_idle
        True tends to parked rows at every trigger, with micro-batches that have no rows if need be: give the query a
        processing-time trigger, for with ``availableNow`` it would never end. False tends to them in micro-batches
        that have rows. A checkpoint stays with the one or the other.
    memory
        What the joins of all shards may hold together on one machine, caches between micro-batches included: bytes,
        text such as ``"64MB"``, or a share of the relation such as ``"5%"``. Each of the shards gets the same part of
        it.
    algorithm
        One of `semistream.algorithms`. Those with a cache of single tuples (``cachejoin`` and its relatives) keep it
        from one micro-batch to the next. ``"auto"`` takes the one of these that the cost models expect most of, for
        this relation, its disk, the memory and ``exponent``, the stream's Zipf exponent.
    suffix
        Added to the names of the relation's columns that the stream has too.
    warm
        False empties the caches after every micro-batch: less to hold between them, more to read in each.
    metrics
        A name under which every micro-batch's progress shows what the joins did: pages read, bytes held and so on, as
        ``query.lastProgress["observedMetrics"][name]["totals"]``; `semistream.spark.stream_statistics` adds them up.
        For a batch DataFrame an ``Observation``.
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
    plan = plan_join(
        stream, relation, on=on, how=how, on_missing=on_missing, park_for=park_for, after_park=after_park,
        park_idle=park_idle, memory=memory, algorithm=algorithm, suffix=suffix, warm=warm, metrics=metrics, pins=pins,
        local=local, **options,
    )  # fmt: skip
    return joined(plan)


def joined(plan: PlannedJoin) -> DataFrame:
    """Return the frame of a join that was planned."""
    stream, share = plan.stream, plan.share
    if plan.cache is not None and stream.isStreaming:
        forget_when_ended(stream.sparkSession)
    task = JoinTask(
        str(plan.path), plan.manifest.version, plan.algorithm, share, tuple(plan.stream_schema.names),
        plan.added_schema, plan.settings, counted=plan.metrics is not None, shards=plan.shards,
        stored=plan.manifest.schema, key=plan.manifest.key, cache=plan.cache, timed=stream.isStreaming, pins=plan.pins,
        local=plan.local,
        results=max(0, min(share // 16, _MOST_RESULTS, (share - plan.least) * 3 // 4)), marker=plan.marker,
    )  # fmt: skip
    shard = shard_of(stream, plan.on, plan.key, plan.shards)
    sharded = positional(stream).repartitionById(plan.shards, shard)
    if stream.isStreaming:
        # Spark replaces this by the time of the micro-batch, which a replay has too. Other than the query's id, it also
        # reaches what threads of a foreachBatch do with the frame.
        sharded = sharded.select("*", F.unix_millis(F.current_timestamp()).alias("now"))
    if plan.rule.park_for is not None:
        return parked(sharded, task, plan)
    if plan.metrics is None:
        return sharded.mapInArrow(task, plan.result)
    return observed(sharded.mapInArrow(task, with_sentinel(plan.result)), plan.metrics)
