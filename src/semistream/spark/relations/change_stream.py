"""Master data as a stream: each micro-batch of changes becomes exactly one version of R.

::

    changes ──▶ last change per key ───▶ shuffle by shard ──▶ task i: pages of shard i that change
                                                                        │
    driver: one manifest with the new pages and "query q: batch 7" ◀────┘

A query that joins with R uses the new version from its next micro-batch on. A batch that is replayed after a driver
died finds its number in the manifest and changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import DataType, LongType, StringType, StructType

from semistream.core.errors import RelationBuildError
from semistream.relation.keys.valid_times import ValidTimes
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.manifest import Manifest
from semistream.relation.stores.store_path import place_of
from semistream.spark.relations.key_expressions import quoted
from semistream.spark.relations.types import check_collations, spark_type
from semistream.spark.relations.update_jobs import apply_changes, compact

__all__ = ["debezium_changes", "write_changes"]

_GONE, _WRONG = "__gone", "__wrong"
_NO_OP = "NULL, or a message was not understood"
_STAYS = ("insert", "update", "upsert", "c", "r", "u", "i")
_GOES = ("delete", "d")
NOTE = "changes of "
"""Prefix of manifest properties that hold the last batch of each query that changed R."""


def write_changes(
    changes: DataFrame,
    path: str | os.PathLike[str],
    *,
    op: str = "op",
    order: str | None = None,
    at: str | None = None,
    query: str | None = None,
    compact_above: float = 0.25,
) -> DataStreamWriter:
    """Return a writer that makes each micro-batch of changes a version of R. Give it a checkpoint and start it.

    Parameters
    ----------
    changes
        A streaming DataFrame with R's columns and ``op``. For a deleted key only the key columns are used.
    path
        A clustered relation. After a change a key has exactly one row; in a history, one more, or one that ends.
    op
        Column with the operation: ``insert``, ``update``, ``upsert`` or ``delete``, or Debezium's letters ``c``, ``r``,
        ``u`` and ``d``. An insert of an existing key replaces its row.
    order
        Column that orders the changes of a key within a micro-batch, such as Kafka's ``offset``; Spark does not keep
        the order of rows. Without it, a key that occurs twice in a micro-batch stops the query. With it, the query
        stops if the last change of a key is ambiguous. In a history, this is about changes of a key at the same time.
    at
        For a history (R was built with ``valid_from``): the column with the time of each change. The row that was valid
        then ends, and the new one begins; both columns of times are set, and the changes need not have them. A change
        that arrives after later ones of its key gets its place between them. A delete needs ``valid_to``. A delete at a
        time at which its key has no row has no effect.
    query
        A name that identifies this query among all that change R; by default the id in Spark's checkpoint. R stores the
        last batch of each name. A checkpoint that is behind it is an error.
    compact_above
        Compact R if the pages of updates exceed this share of all pages. That micro-batch takes longer.

    Examples
    --------
    >>> feed = spark.readStream.format("kafka").options(**options).load()                        # doctest: +SKIP
    >>> changes = debezium_changes(feed, "id long, name string, price double")                   # doctest: +SKIP
    >>> writer = write_changes(changes, "/data/products", order="offset")                        # doctest: +SKIP
    >>> writer.option("checkpointLocation", "check/").start()                                    # doctest: +SKIP
    """
    if not changes.isStreaming:
        raise RelationBuildError(
            "changes must be a streaming DataFrame; use semistream.spark.upsert and delete for others"
        )
    if not compact_above > 0:
        raise ValueError(f"compact_above is a share of R's pages above 0, such as 0.25, not {compact_above!r}")
    manifest = manifests.load(place_of(path))
    check_collations(changes.schema, manifest.key)
    _check_dated(manifest, at, changes)
    own = [] if at is None else [manifest.valid_from, manifest.valid_to]
    others = [name for name in manifest.schema.names if name not in own]
    needed = [*others, op, *([order] if order else []), *([at] if at else [])]
    if missing := [name for name in needed if name not in changes.columns]:
        raise RelationBuildError(f"the changes lack the column {missing[0]!r}; they have {', '.join(changes.columns)}")
    if op in manifest.schema.names:
        raise RelationBuildError(f"{op!r} is a column of R; give the column of operations another name")
    writer = _ChangeWriter(str(place_of(path).absolute()), op, None if order == at else order, query, compact_above, at)
    return changes.writeStream.foreachBatch(writer)


def _check_dated(manifest: Manifest, at: str | None, changes: DataFrame) -> None:
    """Refuse changes of a history without a time, a time for other relations, and times of another kind than R's."""
    times = manifest.times
    if times is None:
        if at is not None:
            raise RelationBuildError(
                f"at={at!r} needs a history, but rows of this relation have no times; leave at out, or build the "
                "relation with valid_from"
            )
        return
    if at is None:
        raise RelationBuildError(
            "this relation is a history, so changes need their times; give at=, the column of a change's time, of "
            f"type {spark_type(times.valid_from, times.type).simpleString()}"
        )
    for name in (times.valid_from, times.valid_to):
        if name is not None and name != at and name in changes.columns:
            raise RelationBuildError(
                f"the changes have a column {name!r}, which at={at!r} sets; drop it, or rename it if it is another one"
            )
    if at in changes.columns:
        wanted, found = spark_type(times.valid_from, times.type), changes.schema[at].dataType
        if found != wanted:
            raise RelationBuildError(
                f"at={at!r} is {found.simpleString()}, but R's {times.valid_from!r} is {wanted.simpleString()}; cast it"
            )


def debezium_changes(messages: DataFrame, schema: str, *, value: str = "value", at: str | None = None) -> DataFrame:
    """Return the changes in Debezium's JSON messages, as input for `write_changes`.

    Parameters
    ----------
    messages
        The output of Kafka's source; columns other than ``value``, such as ``offset``, are kept.
    schema
        R's columns, ``"id long, name string"``. Messages may have the envelope ``{"schema": …, "payload": …}`` or not.
        Tombstones, which have no value, are left out. ``op`` is NULL if a message cannot be parsed or a value does not
        fit its column's type; this stops the query that writes the changes.
    at
        Name of a column to add: the time of each change at its source, as a timestamp, for changes of a history.
    """
    try:
        row = StructType.fromDDL(schema)
    except PySparkException as error:
        raise RelationBuildError(f"{schema!r} is not a schema; write 'id long, name string'") from error
    moment = StructType().add("ts_ms", LongType())
    body = StructType().add("op", StringType()).add("before", row).add("after", row)
    body = body.add("source", moment).add("ts_ms", LongType())
    # Spark reads a message that does not fit partly, with NULL for the rest
    whole = StructType([*body.fields]).add("payload", body).add(_WRONG, StringType())
    read = F.from_json(F.col(value).cast("string"), whole, {"columnNameOfCorruptRecord": _WRONG})
    parsed = messages.where(F.col(value).isNotNull()).withColumn("__read", read)
    inner = F.coalesce(F.col("__read.payload"), F.struct(*(f"__read.{part}" for part in body.names)))
    parsed = parsed.withColumn("__change", inner)
    image = F.when(F.col("__change.op") == "d", F.col("__change.before")).otherwise(F.col("__change.after"))
    others = [name for name in messages.columns if name not in (value, "key")]
    op = F.when(F.col(f"__read.{_WRONG}").isNull(), F.col("__change.op"))
    source = F.coalesce("__change.source.ts_ms", "__change.ts_ms")
    time = [] if at is None else [F.timestamp_millis(source).alias(at)]
    return parsed.withColumn("__row", image).select("__row.*", op.alias("op"), *time, *others)


@dataclass(frozen=True)
class _ChangeWriter:
    """The function that Spark calls for every micro-batch."""

    path: str
    op: str
    order: str | None
    query: str | None
    compact_above: float
    at: str | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        query = self.query or rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise RelationBuildError("Spark does not report which query this is; give write_changes the argument query")
        manifest = manifests.load(place_of(self.path))
        times, key = manifest.times, list(manifest.key)
        dated = self.at is not None and times is not None
        if times is not None and dated:
            rows, key = self._with_times(rows, times), [*key, times.valid_from]
        if missing := [name for name in manifest.schema.names if name not in rows.columns]:
            raise RelationBuildError(
                f"the changes lack the column {missing[0]!r}, which R has since its columns were changed; restart the "
                "query with changes that have R's present columns"
            )
        changes = self._last_of_each_key(rows, key, manifest.schema.names)
        made = apply_changes(changes, self.path, _GONE, (NOTE + query, batch), dated=dated)
        shards = (made or manifest).shards
        updates = sum(pages for shard in shards for _, pages in shard.deltas)
        if updates > self.compact_above * sum(shard.pages for shard in shards):
            compact(rows.sparkSession, self.path)

    def _with_times(self, rows: DataFrame, times: ValidTimes) -> DataFrame:
        """Return changes with R's columns of times: each row begins at the time of its change, and has no end."""
        assert self.at is not None
        rows = rows.withColumn(times.valid_from, quoted(self.at))
        if times.valid_to is None:
            return rows
        return rows.withColumn(times.valid_to, F.lit(None).cast(spark_type(times.valid_to, times.type)))

    def _last_of_each_key(self, rows: DataFrame, key: Sequence[str], columns: Sequence[str]) -> DataFrame:
        """Return one change per key, and whether it deletes the key; an invalid change stops the job."""
        gone = self._gone(key)
        change = F.struct(*(quoted(name).alias(name) for name in columns), gone.alias(_GONE))
        grouped = rows.groupBy(*(quoted(name) for name in key))
        if self.order is None:
            once, last = F.count(F.lit(1)) == 1, F.first(change)
            twice = f"a key was changed twice in one micro-batch of changes to {self.path}; give order= a column"
        else:
            # The last change of a key is ambiguous if two different changes have the highest order: then the largest
            # and the smallest of their hashes differ.
            mark = F.xxhash64(*(quoted(name) for name in columns if not _has_map(rows.schema[name].dataType)), gone)
            order = quoted(self.order)
            high, low = (F.max(F.struct(order.alias("at"), each.alias("mark"))) for each in (mark, F.bitwise_not(mark)))
            once, last = high["mark"] == F.bitwise_not(low["mark"]), F.max_by(change, order)
            twice = (
                f"two changes of a key in one micro-batch of changes to {self.path} are the last by column "
                f"{self.order}; give order= a column that tells them apart"
            )
        sure = F.when(once, last).otherwise(F.raise_error(F.lit(twice)))
        return grouped.agg(sure.alias("__last")).select("__last.*")

    def _gone(self, key: Sequence[str]) -> Column:
        """Return whether a change deletes its key."""
        ops = F.lower(quoted(self.op))
        told = F.concat(
            F.lit(f"column {self.op} says "), F.coalesce(F.concat(F.lit("'"), ops, F.lit("'")), F.lit(_NO_OP)),
            F.lit(f"; it must be one of {', '.join((*_STAYS, *_GOES))}"),
        )  # fmt: skip
        gone = F.when(ops.isNull() | ~ops.isin(*_GOES, *_STAYS), F.raise_error(told).cast("boolean"))
        for name in [*key, *([self.order] if self.order else [])]:
            time = self.at is not None and name == key[-1]
            what = "the time" if time else "the key" if name in key else "the order"
            text = f"column {name}, {what} of changes to {self.path}, is NULL; leave such changes out, or mend them"
            gone = gone.when(quoted(name).isNull(), F.raise_error(F.lit(text)).cast("boolean"))
        return gone.otherwise(ops.isin(*_GOES))


def _has_map(kind: DataType) -> bool:
    """Return whether a type contains maps, which Spark cannot hash."""
    return "map<" in kind.simpleString()
