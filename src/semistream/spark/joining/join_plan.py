"""The plan of a join, made on the driver before anything runs: R, opened once, the algorithm, memory and columns.

All errors that can be detected are raised here. The driver reads R's manifest, checks the size of every file, and opens
the largest shard: each shard gets the memory that the largest one needs, and the driver need not hold all indexes.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql import DataFrame, Observation

from semistream.core.arguments import listed
from semistream.core.errors import BudgetTooSmallError, KeyColumnError, StorageError, UnsupportedJoinError
from semistream.core.paths import local_path, user_data
from semistream.core.units import SMALL_RELATION, format_bytes
from semistream.joins import AUTO, How, Join, find
from semistream.joins.interface.conditions import ConditionName, condition_for, pick_columns
from semistream.joins.interface.output import output_schema
from semistream.relation.relation import Relation
from semistream.relation.relation_files import bytes_in_memory, check_files
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.manifest import Manifest
from semistream.relation.storage.secondary_index import Columns
from semistream.relation.storage.shard_files import ShardFiles
from semistream.relation.stores.local_tier import local_tier
from semistream.relation.stores.store_path import Place, StorePath, place_of
from semistream.relation.versions.holds import hold_manifest
from semistream.relation.versions.pins import PINS
from semistream.spark.joining.held.image import MOST_HELD, RESULT_ROOM, RESULTS, room_for
from semistream.spark.joining.missing import (
    MISSING_IN,
    After,
    Marker,
    OnMissing,
    check_no_deadline,
    check_surrogate,
    has_marker,
    missing_rule,
    unknown_value,
    with_marker,
)
from semistream.spark.joining.parked_rows import DEADLINE, PARKED
from semistream.spark.joining.plan_parts import (
    PlannedAlgorithm,
    PlannedColumns,
    PlannedJoin,
    PlannedMemory,
    PlannedMetrics,
    PlannedMissing,
    PlannedRelation,
    PlannedStream,
    label_of,
)
from semistream.spark.joining.shard_budget import NEW_ROWS, WAITING_ROWS, ShardBudget, parallelism_of
from semistream.spark.joining.spreading.routing import stripe_width
from semistream.spark.joining.state_partitions import check_can_park
from semistream.spark.relations.key_expressions import folding
from semistream.spark.relations.types import arrow_schema, check_collations, relation_types

__all__ = ["ALGORITHM", "MEMORY", "plan_join"]

MEMORY = "64MB"
ALGORITHM = "adaptivejoin"
_LET_WAIT = frozenset({"wait", "apart"})
"""Options with which results do not keep the order of the stream."""


def plan_join(
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
) -> PlannedJoin:
    """Plan a join with the parameters of `semistream.spark.join`, and raise its errors."""
    if algorithm != AUTO:
        find(algorithm)
    check_no_deadline(options)
    rule = missing_rule(how, on_missing, park_for, after_park)
    waits, keep_mark = rule.park_for is not None, rule.way == "dead_letter" or has_marker(stream)
    if waits:
        check_can_park(stream)
    if as_of is not None and condition == "equal":
        condition = "as_of"
    before = stream
    if waits or keep_mark:
        stream = with_marker(stream)
    path, version = _located(relation)
    if by is None and isinstance(relation, Relation):
        by = relation.stored.by
    keys = listed(on)
    check_surrogate(stream, keys, None if surrogate is None else prefix + surrogate, unknown)
    check_collations(stream.schema, keys)
    schema = arrow_schema(stream.schema)
    _check_names(schema, waits)
    manifest, kept = hold_manifest(path, version)
    with kept:
        if by is not None:
            manifest = manifest.in_order_of(by, path)
        _check_whole(relation, path, manifest)
        _check_local(stream, path, local, manifest)
        check_files(path, manifest.shards, manifest.page_bytes)
        largest = max(range(len(manifest.shards)), key=lambda number: manifest.shards[number].pages)
        ranged = condition == "between"  # then each task opens all shards
        shards = None if ranged else [largest]
        with Relation.open(path, version=manifest.version, shards=shards, by=manifest.by) as shard:
            compared = condition_for(condition, shard, keys, as_of=as_of)
            compared.check(schema)
            values = _values(compared.fields, columns, surrogate)
            result = _result_schema(stream, schema, manifest, values, suffix, prefix)
            if surrogate is not None and unknown is not None:
                place = len(schema) + [part.name for part in values].index(surrogate)
                unknown = unknown_value(unknown, surrogate, result[place].dataType)
            budget = ShardBudget.of(shard, path, manifest, memory, tasks=1 if ranged and not waits else None)
            if algorithm == AUTO:
                files, task_bytes = manifest.shards[largest], budget.of_task(1.0)
                algorithm, options = _chosen(shard, files, task_bytes, schema, condition, options)
            kind = find(algorithm)
            settings = {
                "on": keys, "how": "inner" if rule.way == "drop" and not waits else "left", "suffix": suffix,
                "prefix": prefix, "condition": condition, **({} if as_of is None else {"as_of": as_of}),
                "columns": tuple(part.name for part in values) if ranged or columns is not None else None,
                **(kind.for_batches if budget.roomy else {}), **options,
            }  # fmt: skip
            one_answer = not ranged and (manifest.unique or as_of is not None)
            by_key = kind.in_order and one_answer and bool(values) and not waits and not _LET_WAIT & options.keys()
            given, sent = schema, PlannedStream(before, stream, schema, keys, as_of)
            if by_key:
                given, settings["how"] = pa.schema([schema.field(name) for name in sent.sent]), "left"
            elif kind.mixes and (waits or keep_mark):
                settings["apart"] = True  # rows without a match are marked, or parked
            held = _may_hold(manifest, budget, hold, by_key and warm and not options, dated=as_of is not None)
            if held:
                tasks = parallelism_of(stream.sparkSession)
                total = budget.total + RESULT_ROOM * (budget.may_grow and manifest.nbytes <= SMALL_RELATION)
                planned = PlannedMemory(total, tasks, total // RESULTS // tasks, 0, 0)
            else:
                planned = _divided(budget, stream, kind, given, schema, settings, waits)
            key, longest = shard.key, shard.page_bytes if shard.codec.variable else shard.codec.stride
            stripe = stripe_width(shard)
    marker = None
    if waits or keep_mark:
        mark = PARKED if waits else label_of(path, metrics) if rule.way == "dead_letter" else None
        marker = Marker(stream.columns.index(MISSING_IN), mark)
    cache = None
    if warm and kind.keeps_cache and not held and not ranged:
        cache = _cache_name(path, manifest, algorithm, planned.total, settings, given, result)
    groups = manifest.most_shards if version is None else _most_shards(path, manifest)
    return PlannedJoin(
        sent,
        PlannedRelation(path, manifest, key, groups, longest, stripe, _elsewhere(stream, path, pins), local),
        PlannedAlgorithm(algorithm, settings, given, by_key, held, cache),
        planned,
        PlannedColumns(result, tuple(values), prefix, surrogate, unknown),
        PlannedMissing(rule, park_idle, marker, keep_mark),
        PlannedMetrics(metrics, missing_keys),
    )


def _may_hold(
    manifest: Manifest, budget: ShardBudget, wanted: bool | None, possible: bool, *, dated: bool = False
) -> bool:
    """Return whether R is held whole; raise if ``wanted`` and not possible."""
    nbytes = bytes_in_memory(manifest)
    needed = room_for(manifest.rows, nbytes, dated=dated)
    fits = needed <= budget.total and nbytes <= MOST_HELD
    if wanted and not possible:
        raise UnsupportedJoinError(
            f"hold=True needs a relation with one row per key, or a history and as_of, joined by {ALGORITHM} without "
            f"its own options and with warm=True; this join with {budget.path} is different, so leave hold out"
        )
    if wanted and not fits:
        raise BudgetTooSmallError(
            f"memory of {format_bytes(budget.total)} is too small to hold {budget.path} whole, which needs up to "
            f"{needed:,} B; give at least that, or leave hold out",
            needed,
        )
    return possible and fits and wanted is not False


def _divided(
    budget: ShardBudget, stream: DataFrame, kind: type[Join], given: pa.Schema, schema: pa.Schema,
    settings: dict[str, Any], waits: bool,
) -> PlannedMemory:  # fmt: skip
    """Divide the memory among tasks: a multiple of the shards, up to the number that the session runs in parallel."""
    timed = schema.append(pa.field(DEADLINE, pa.int64()))
    budget = budget.enough_for(kind, settings, {NEW_ROWS: given, WAITING_ROWS: timed} if waits else {1.0: given})
    _, least = budget.share(kind, given, settings, NEW_ROWS if waits else 1.0)
    parked = budget.share(kind, timed, settings, WAITING_ROWS)[0] if waits else 0
    if not waits:  # groups of parked rows outlive the query, so their number depends on R and not on the cluster
        budget = budget.for_session(stream, least)
    return PlannedMemory(budget.total, budget.tasks, budget.of_task(NEW_ROWS if waits else 1.0), least, parked)


def _chosen(
    shard: Relation, files: ShardFiles, task_bytes: int, schema: pa.Schema, condition: ConditionName,
    options: dict[str, Any],
) -> tuple[str, dict[str, Any]]:  # fmt: skip
    """Return the algorithm that "auto" stands for, and its options."""
    if condition != "equal":
        return ALGORITHM, {name: value for name, value in options.items() if name != "exponent"}
    from semistream.spark.joining.choosing import choose_join  # imports the tuner, which other joins do not need

    return choose_join(shard, files, task_bytes, schema, options)


def _cache_name(
    path: Place, manifest: Manifest, algorithm: str, total: int, settings: dict[str, Any], given: pa.Schema,
    result: st.StructType,
) -> str:  # fmt: skip
    """Return the name of the warm caches, which stays the same when the query is restarted."""
    described = [str(path), *(manifest.by or ()), algorithm, total, sorted(settings.items()), given.to_string()]
    described.append(result.names)
    if manifest.evolution is not None:
        described.append(manifest.evolution.current.numbers)
    return hashlib.sha256(repr(described).encode()).hexdigest()[:16]


def _located(relation: Relation | str | os.PathLike[str]) -> tuple[Place, int | None]:
    """Return the path of a relation, and the version to read if it is not the newest."""
    if not isinstance(relation, Relation):
        return place_of(relation).absolute(), None
    if relation.path is None:
        raise UnsupportedJoinError(
            "this relation has no files, so Spark's tasks cannot open it; build it with semistream.spark.build"
        )
    if relation.overlay.ids.size:
        raise UnsupportedJoinError(
            f"this relation has changes in memory that are not in {relation.path}, and Spark's tasks read the files; "
            "write the changes with semistream.update, and give the path"
        )
    return relation.path.absolute(), relation.version


def _check_whole(relation: Relation | str | os.PathLike[str], path: Place, manifest: Manifest) -> None:
    if isinstance(relation, Relation) and len(relation.indexes) != len(manifest.shards):
        raise UnsupportedJoinError(
            f"{path} was opened with {len(relation.indexes)} of its {len(manifest.shards)} shards; give the path, or "
            "open the relation with all shards"
        )


def _check_local(stream: DataFrame, path: Place, local: int | float | str | None, manifest: Manifest) -> None:
    """Refuse an impossible local tier.

    With a local master, this machine's disk is checked as well.
    """
    if not isinstance(path, StorePath):
        if local is not None:
            raise UnsupportedJoinError(f"local={local!r} is for relations in a store, but {path} is not; leave it out")
        return
    master = str(stream.sparkSession.conf.get("spark.master", ""))
    if master.startswith("local") and (tier := local_tier(local, manifest.nbytes)) is not None:
        tier.check()


def _most_shards(path: Place, manifest: Manifest) -> int:
    """Return the maximum number of shards of any version, including versions newer than ``manifest``."""
    return max(manifest.most_shards, manifests.load(path).most_shards)


def _elsewhere(stream: DataFrame, path: Place, given: str | os.PathLike[str] | None) -> str | None:
    """Return the directory for pins, or None for the relation's own directory."""
    if not stream.isStreaming or _may_pin(path):
        return None
    if given is None and not str(stream.sparkSession.conf.get("spark.master", "")).startswith("local"):
        raise UnsupportedJoinError(
            f"{path} cannot be written, but a streaming query records there which version each micro-batch reads; "
            "pass pins=, a directory that the driver and all executors can read and write"
        )
    place = user_data() / "pins" if given is None else local_path(given, "directory of pins").absolute()
    return str(place / hashlib.sha256(str(path).encode()).hexdigest()[:16])


def _may_pin(path: Place) -> bool:
    """Return whether pins can be written into a relation; a store without conditional puts is refused."""
    own = path / PINS
    if isinstance(own, StorePath):
        try:
            own.store.require_conditional(own.key)
        except StorageError as error:
            if error.errno not in (errno.EACCES, errno.EPERM):
                raise
            return False
        return True
    return os.access(own if own.is_dir() else path, os.W_OK | os.X_OK)


def _check_names(schema: pa.Schema, waits: bool) -> None:
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise KeyColumnError(f"the stream has more than one column named {twice[0]!r}; rename or drop the others")
    if waits and DEADLINE in schema.names:
        raise KeyColumnError(
            f"the stream has a column {DEADLINE!r}, a name that parked rows use for their deadline; rename it"
        )


def _values(ours: list[pa.Field], columns: Sequence[str] | None, surrogate: str | None) -> list[pa.Field]:
    """Return the requested columns of R, in that order; by default all of ``ours``."""
    chosen = list(ours) if columns is None else pick_columns(ours, columns)
    if surrogate is not None and surrogate not in [part.name for part in chosen]:
        chosen += pick_columns(ours, [surrogate])
    return chosen


def _result_schema(
    stream: DataFrame, schema: pa.Schema, manifest: Manifest, values: Sequence[pa.Field], suffix: str, prefix: str
) -> st.StructType:
    """Return the stream's columns unchanged, then the relation's, with Spark's original types or the nearest ones."""
    named = output_schema(schema, pa.schema(values), suffix, folding(stream), prefix)
    kinds = relation_types(manifest, values)
    added = [st.StructField(name, kind) for name, kind in zip(named.names[len(schema) :], kinds, strict=True)]
    return st.StructType([*stream.schema.fields, *added])
