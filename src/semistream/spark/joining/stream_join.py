"""Join a DataFrame, streaming or not, with a relation.

::

    stream  ──shuffle by shard──▶  task i: batches in ──▶ join of shard i, its share of memory ──▶ batches out
              pmod(xxhash64(key), n)                      (drained at the end of the micro-batch)
                                                            │ cache of frequent tuples
                                                   files of shard i, kept warm for the next micro-batch

Everything that can be wrong is found on the driver, when `join` is called; no job starts before the query does.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from semistream.core.errors import BudgetTooSmallError, KeyColumnError, UnsupportedJoinError
from semistream.core.paths import local_path, user_data
from semistream.core.units import format_bytes, parse_bytes
from semistream.joins import How, Join, find
from semistream.joins.families.front_stage import FrontStage
from semistream.joins.interface.output import output_schema
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.manifest import Manifest
from semistream.relation.versions.pins import PINS
from semistream.spark.joining.choosing import AUTO, choose_join
from semistream.spark.joining.join_task import JoinTask
from semistream.spark.joining.missing import MISSING_IN, After, Marker, OnMissing, has_marker, missing_rule, with_marker
from semistream.spark.joining.parking import DEADLINE, PARKED, check_can_park, parked
from semistream.spark.joining.warm_cleanup import forget_when_ended
from semistream.spark.monitoring.metrics import observed, with_sentinel
from semistream.spark.relations.build_job import SPARK_SCHEMA
from semistream.spark.relations.key_expressions import positional, shard_of
from semistream.spark.relations.types import arrow_schema, spark_type

__all__ = ["join"]

_TUNED: dict[str, dict[str, Any]] = {"cachejoin": {"cache_share": 0.8, "disk_share": 0.7, "in_flight": 1024}}
"""A micro-batch is drained, so few tuples wait behind the cache: room for them is better used for cache and pages."""
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
    memory: int | float | str = "64MB",
    algorithm: str = "cachejoin",
    suffix: str = "_right",
    warm: bool = True,
    metrics: str | Observation | None = None,
    pins: str | os.PathLike[str] | None = None,
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
        A relation, or the path of one, on storage that the driver and all executors see under that name. Each
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
    if algorithm != AUTO:
        find(algorithm)
    if options.get("condition", "equal") != "equal":
        raise UnsupportedJoinError(
            f"condition {options['condition']!r} does not work on Spark, where rows meet by the hash of their key; "
            "join on equality, or use semistream.create on one machine"
        )
    rule = missing_rule(how, on_missing, park_for, after_park)
    waits, keep_mark = rule.park_for is not None, rule.way == "dead_letter" or has_marker(stream)
    if waits:
        check_can_park(stream)
    if waits or keep_mark:
        stream = with_marker(stream)
    path, manifest = _located(relation)
    keys = (on,) if isinstance(on, str) else tuple(on)
    stream_schema = arrow_schema(stream.schema)
    _check_names(stream_schema)
    with Relation.open(path, version=manifest.version) as opened:
        opened.key.check_stream(stream_schema, keys)
        result = _result_schema(stream, stream_schema, opened, manifest, suffix)
        total = parse_bytes(memory, of=opened.nbytes)
        shard = shard_of(stream, keys, opened.key, len(manifest.shards))
    if algorithm == AUTO:
        algorithm, options = choose_join(path, manifest, memory, stream_schema, options)
    kind = find(algorithm)
    join_how = "inner" if rule.way == "drop" and not waits else "left"
    settings = {"on": keys, "how": join_how, "suffix": suffix, **_TUNED.get(algorithm, {}), **options}
    share, least = _share(kind, path, manifest, total, stream_schema, settings, 0.75 if waits else 1.0)
    added = result.fields[len(stream_schema) :]
    label = metrics if isinstance(metrics, str) else path.name
    marker = None
    if waits or keep_mark:
        mark = PARKED if waits else label if rule.way == "dead_letter" else None
        marker = Marker(stream.columns.index(MISSING_IN), mark)
    cache = None
    if warm and issubclass(kind, FrontStage):
        # One cache for joins that would fill it alike, also after the query was stopped and started again.
        described = [str(path), algorithm, total, sorted(settings.items()), stream_schema.to_string(), result.names]
        cache = hashlib.sha256(repr(described).encode()).hexdigest()[:16]
        if stream.isStreaming:
            forget_when_ended(stream.sparkSession)
    task = JoinTask(
        str(path), manifest.version, algorithm, share, tuple(stream_schema.names), arrow_schema(st.StructType(added)),
        settings, counted=metrics is not None, shards=len(manifest.shards), stored=manifest.schema, key=manifest.key,
        cache=cache, timed=stream.isStreaming, pins=_elsewhere(stream, path, pins),
        results=max(0, min(share // 16, _MOST_RESULTS, (share - least) * 3 // 4)), marker=marker,
    )  # fmt: skip
    sharded = positional(stream).repartitionById(len(manifest.shards), shard)
    if stream.isStreaming:
        # Spark replaces this by the time of the micro-batch, which a replay has too. Other than the query's id, it also
        # reaches what threads of a foreachBatch do with the frame.
        sharded = sharded.select("*", F.unix_millis(F.current_timestamp()).alias("now"))
    if waits:
        timed = stream_schema.append(pa.field(DEADLINE, pa.int64()))
        part, _ = _share(kind, path, manifest, total, timed, settings, 0.25)
        return parked(
            sharded, task, result, rule, columns=stream_schema, groups=manifests.load(path).most_shards, label=label,
            memory=part, idle=park_idle, keep_mark=keep_mark,
        )  # fmt: skip
    if metrics is None:
        return sharded.mapInArrow(task, result)
    return observed(sharded.mapInArrow(task, with_sentinel(result)), metrics)


def _located(relation: Relation | str | os.PathLike[str]) -> tuple[Path, Manifest]:
    """Return the path of a relation and the manifest of the version to read."""
    if not isinstance(relation, Relation):
        path = local_path(relation, "relation").absolute()
        return path, manifests.load(path)
    if relation.path is None:
        raise UnsupportedJoinError(
            "this relation has no files, so Spark's tasks cannot open it; build one with semistream.spark.build"
        )
    path = relation.path.absolute()
    manifest = manifests.load(path, relation.version)
    if len(relation.indexes) != len(manifest.shards):
        raise UnsupportedJoinError(
            f"{path} was opened with {len(relation.indexes)} of its {len(manifest.shards)} shards; give the path, or "
            "the relation opened whole"
        )
    return path, manifest


def _elsewhere(stream: DataFrame, path: Path, given: str | os.PathLike[str] | None) -> str | None:
    """Return where pins go if not into the relation's own directory."""
    own = path / PINS
    if not stream.isStreaming or os.access(own if own.is_dir() else path, os.W_OK | os.X_OK):
        return None
    if given is None and not str(stream.sparkSession.conf.get("spark.master", "")).startswith("local"):
        raise UnsupportedJoinError(
            f"{path} cannot be written, and a streaming query notes there which version each micro-batch reads; give "
            "join pins, a directory that the driver and all executors see and may write to"
        )
    place = user_data() / "pins" if given is None else local_path(given, "directory of pins").absolute()
    return str(place / hashlib.sha256(str(path).encode()).hexdigest()[:16])


def _check_names(schema: pa.Schema) -> None:
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise KeyColumnError(f"the stream has more than one column named {twice[0]!r}; rename or drop the others")


def _result_schema(
    stream: DataFrame, stream_schema: pa.Schema, relation: Relation, manifest: Manifest, suffix: str
) -> st.StructType:
    """Return the stream's columns as they are, then the relation's, in the types Spark gave them or the nearest."""
    case_sensitive = stream.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    named = output_schema(stream_schema, relation.value_schema, suffix, fold=str if case_sensitive else str.lower)
    original: dict[str, st.DataType] = {}
    if SPARK_SCHEMA in manifest.properties:
        built = st.StructType.fromJson(json.loads(manifest.properties[SPARK_SCHEMA]))
        original = {part.name: part.dataType for part in built.fields}
    added = [
        st.StructField(name, original.get(source.name) or spark_type(source.name, source.type))
        for name, source in zip(named.names[len(stream_schema) :], relation.value_schema, strict=True)
    ]
    return st.StructType([*stream.schema.fields, *added])


def _share(
    kind: type[Join],
    path: Path,
    manifest: Manifest,
    total: int,
    schema: pa.Schema,
    settings: dict[str, Any],
    part: float = 1.0,
) -> tuple[int, int]:
    """Return one shard's part of the memory and the least that would do, or raise if the largest shard needs more.

    ``part`` of all memory is for these joins: where rows are parked, a quarter is for joining them again.
    """
    shards = len(manifest.shards)
    share = max(1, int(total * part) // shards)
    largest = max(range(shards), key=lambda number: manifest.shards[number].pages)
    with Relation.open(path, version=manifest.version, shards=[largest]) as relation:
        if not kind.bounded:
            kind(relation, memory=1, **settings)  # for the checks; with the schema it would read all of the shard
            return share, 0
        minimum = kind.minimum_memory(relation, schema, **settings)
    if share < minimum:
        parking = "" if part == 1.0 else f", {part:.0%} being for {'new' if part > 0.5 else 'parked'} rows"
        needed = math.ceil(minimum * shards / part)
        raise BudgetTooSmallError(
            f"memory of {format_bytes(total)} is {format_bytes(share)} for each of the {shards} shards of {path}"
            f"{parking}, and {kind.id} needs at least {minimum:,} B for one, so {needed:,} B in all; give at least "
            "that, or build the relation with fewer shards or larger pages",
            needed,
        )
    return share, minimum
