"""Join a DataFrame, streaming or not, with a relation.

::

    stream  ──shuffle by shard──▶  task i: batches in ──▶ join of shard i, its share of memory ──▶ batches out
              pmod(xxhash64(key), n)                      (drained at the end of the micro-batch)
                                                            │ cache of frequent tuples
                                                   files of shard i, kept warm for the next micro-batch

Where each row has one answer, in the order of the stream, only keys go to the task and only R's columns come back
(`semistream.spark.joining.by_key`); else whole rows do.

R is opened once, for a plan, and everything that can be wrong is found then; no job starts before the query does.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from semistream.core.signatures import arguments_of
from semistream.spark.joining.arrival import ARRIVAL, arrival
from semistream.spark.joining.by_key import answered_by_key
from semistream.spark.joining.join_plan import PlannedJoin, plan_join
from semistream.spark.joining.join_task import JoinTask, parts_beside
from semistream.spark.joining.missing import MISSING_IN
from semistream.spark.joining.parking import parked
from semistream.spark.joining.spreading.hot_keys import HotKeys
from semistream.spark.joining.warm_cleanup import forget_when_ended
from semistream.spark.monitoring.metrics import observed, with_sentinel
from semistream.spark.relations.key_expressions import positional, quoted, shard_of

__all__ = ["join", "joined"]

_MOST_GUESTS = 256 << 10


@arguments_of(plan_join)
def join(*given: Any, **named: Any) -> DataFrame:
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
    return joined(plan_join(*given, **named))


def joined(plan: PlannedJoin) -> DataFrame:
    """Return the frame of a join that was planned."""
    frame = _rows(plan)
    return frame if plan.surrogate is None else _with_surrogate(frame, plan)


def _with_surrogate(frame: DataFrame, plan: PlannedJoin) -> DataFrame:
    """Return the frame with one of R's columns in the place of the stream's key."""
    assert plan.surrogate is not None
    parked_away = plan.marker is not None and not plan.keep_mark
    value = quoted(plan.added[plan.surrogate])
    if plan.unknown is not None:
        kind = plan.result[plan.added[plan.surrogate]].dataType
        value = F.coalesce(value, F.lit(plan.unknown).cast(kind))
    kept = [
        value.alias(plan.settings["prefix"] + plan.surrogate) if name == plan.on[0] else quoted(name)
        for name in plan.stream.columns
        if not (parked_away and name == MISSING_IN)
    ]
    return frame.select(*kept, *(quoted(name) for part, name in plan.added.items() if part != plan.surrogate))


def _for_guests(plan: PlannedJoin) -> int:
    """Return the part of a task's memory for rows of hot keys of other shards; 0 if none are spread."""
    room = max(4096, min(_MOST_GUESTS, plan.share // 16))
    enough = room // 2 >= plan.longest and plan.share >= 4 * plan.least + 2 * room
    return room if plan.by_key and plan.shards > 1 and enough and HotKeys.possible(plan.stream) else 0


def _rows(plan: PlannedJoin) -> DataFrame:
    """Return the stream's columns beside R's."""
    stream, share, guests = plan.stream, plan.share, _for_guests(plan)
    look_up = plan.least if guests else 0
    if plan.cache is not None and stream.isStreaming:
        forget_when_ended(stream.sparkSession)
    task = JoinTask(
        str(plan.path), plan.manifest.version, plan.algorithm, share, tuple(plan.given.names),
        plan.added_schema, plan.settings, counted=plan.metrics is not None, shards=plan.shards,
        stored=plan.manifest.schema, key=plan.manifest.key, cache=plan.cache, timed=stream.isStreaming, pins=plan.pins,
        local=plan.local, missing_keys=plan.missing_keys, marker=plan.marker, guests=guests, look_up=look_up,
        **parts_beside(share, plan.least + guests + look_up, missing=plan.missing_keys and plan.metrics is not None),
    )  # fmt: skip
    home = part = shard_of(stream, plan.on, plan.key, plan.shards)
    hot = HotKeys(stream, plan.shards, guests // 2 // plan.longest) if guests else None
    if hot is not None:
        part = hot.part_of(stream, plan.on, plan.key)
    sharded = positional(stream).repartitionById(plan.shards, part)
    arrived = arrival(stream.isStreaming, None if hot is None else home)
    sharded = sharded.select("*", arrived.alias(ARRIVAL))
    if plan.by_key:
        return answered_by_key(sharded, task, plan, hot)
    if plan.rule.park_for is not None:
        return parked(sharded, task, plan)
    if plan.metrics is None:
        return sharded.mapInArrow(task, plan.result)
    return observed(sharded.mapInArrow(task, with_sentinel(plan.result)), plan.metrics)
