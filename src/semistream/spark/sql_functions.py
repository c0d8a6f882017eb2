"""``semistream.register``: relations in Spark SQL, as views for reports and as functions that look up rows.

::

    SELECT sale, p.name, p.price
    FROM (SELECT *, lookup_products(id) AS p FROM sales)
    WHERE p IS NOT NULL                                       -- an inner join; without it a left join

A function looks up the keys of a batch together, in a cache that stays in the Python worker from one micro-batch to the
next. All tasks of a micro-batch read one version, and its replays read the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as st
from pyspark import TaskContext
from pyspark.sql import SparkSession

from semistream.core.errors import SemistreamError, UnsupportedJoinError
from semistream.core.units import parse_bytes
from semistream.lookups.lookups import Lookups
from semistream.relation.relation import Relation
from semistream.relation.storage.manifest import Manifest
from semistream.relation.stores.store_path import Place, place_of
from semistream.relation.versions.holds import hold_manifest
from semistream.relation.versions.pins import Pin
from semistream.spark.features import arrow_function
from semistream.spark.joining.task_relation import TaskRelation
from semistream.spark.relations.types import arrow_schema, fit, relation_types
from semistream.spark.sales_source import register_sources

__all__ = ["LookUpFunction", "register"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def register(
    spark: SparkSession,
    relations: Mapping[str, str | os.PathLike[str]] | None = None,
    *,
    memory: int | str = "64MB",
    columns: Mapping[str, Sequence[str]] | None = None,
) -> list[str]:
    """Make relations available in Spark SQL; return the names of the functions that were registered.

    For a relation named ``products`` it registers

    * the view ``products``: all rows of the version that is newest now.
    * ``lookup_products(key)``, which returns a struct of the other columns, or NULL for a key that R does not have. It
      is registered if each key has one row.
    * ``lookup_all_products(key)``, which returns an array of such structs, for keys with several rows.
    * both for each secondary index, such as ``lookup_products_by_email(email)``; keys of several columns take several
      arguments.

    Also registers the sources of `semistream.spark.register_sources`.

    Parameters
    ----------
    spark
        The session.
    relations
        Names for SQL, and the paths of the relations.
    memory
        Bytes that a function may hold in each Python worker; Spark has about one worker per core. Use
        `semistream.join` for one budget for a machine, and for parked rows, dead letters and metrics.
    columns
        For a name in ``relations``: the columns to return, by default all.

    Examples
    --------
    >>> semistream.register(spark, {"products": "/data/products"})                       # doctest: +SKIP
    ['lookup_products', 'lookup_all_products']
    """
    register_sources(spark)
    names: list[str] = []
    for name, given in (relations or {}).items():
        if not _NAME.fullmatch(name):
            raise UnsupportedJoinError(
                f"{name!r} cannot be part of the name of a function; use letters, digits and underscores"
            )
        path = place_of(given).absolute()
        manifest, held = hold_manifest(path)
        with held:
            for order in (manifest, *(manifest.in_order_of(index.key, path) for index in manifest.indexes)):
                own = None if columns is None else columns.get(name)
                names += _registered(spark, name, path, order, parse_bytes(memory), own)
        view = spark.read.format("semistream").option("version", manifest.version).load(str(path))
        view.createOrReplaceTempView(f"`{name}`")
    return names


def _registered(
    spark: SparkSession, name: str, path: Place, manifest: Manifest, memory: int, columns: Sequence[str] | None
) -> list[str]:
    """Register the functions of a relation in one order; return their names."""
    by = "" if manifest.by is None else "_by_" + "_".join(re.sub(r"\W", "_", part) for part in manifest.by)
    result = _result(manifest, columns)
    relation = TaskRelation(
        str(path), manifest.version, manifest.schema, manifest.key, by=manifest.by, layouts=manifest.row_layouts
    )
    with Relation.open(path, version=manifest.version, by=manifest.by) as opened:
        Lookups(opened, memory=memory).close()  # raises if the memory is too small
    names = []
    for many in (False, True):
        if not many and not manifest.unique:
            continue
        function = f"lookup_{'all_' if many else ''}{name}{by}"
        task = LookUpFunction(relation, tuple(result.names), arrow_schema(result), memory, many)
        kind: Any = st.ArrayType(result) if many else result
        spark.udf.register(function, arrow_function(task.look_up, kind))
        names.append(function)
    return names


def _result(manifest: Manifest, columns: Sequence[str] | None) -> st.StructType:
    ours = [part.name for part in manifest.schema if part.name not in manifest.key]
    chosen = ours if columns is None else [name for name in columns if name not in manifest.key]
    if unknown := [name for name in chosen if name not in ours]:
        raise UnsupportedJoinError(f"the relation has no column {unknown[0]!r}; it has {', '.join(ours)}")
    if not chosen:
        raise UnsupportedJoinError("the relation has no columns but its key, so a look-up has nothing to return")
    kinds = relation_types(manifest, [manifest.schema.field(name) for name in chosen])
    return st.StructType([st.StructField(name, kind) for name, kind in zip(chosen, kinds, strict=True)])


@dataclass(frozen=True)
class LookUpFunction:
    """A function of SQL: the columns of R for each key."""

    relation: TaskRelation
    columns: tuple[str, ...]
    schema: pa.Schema
    """The columns, as Spark expects them."""
    memory: int
    many: bool

    def look_up(self, batches: Iterator[Any]) -> Iterator[pa.Array]:
        """Yield a struct, or a list of structs, for each row of each batch of keys."""
        context = TaskContext.get()
        assert context is not None, "runs only inside a Spark task"
        pin = self.relation.pin(context, None, self.relation.key)
        lookups = _opened(self, pin.version)
        for batch in batches:
            keys = batch if isinstance(batch, tuple) else (batch,)
            yield self._answer(lookups, pa.record_batch(list(keys), list(self.relation.key)))
        pin.wait()

    def _answer(self, lookups: Lookups, keys: pa.RecordBatch) -> pa.Array:
        found = lookups.get(keys, self.columns, found="__found", many=self.many)
        known = found.column(found.num_columns - 1)
        rows = found.select(list(range(found.num_columns - 1)))
        if not self.many:
            fitting = fit(rows, self.schema)
            return pa.StructArray.from_arrays(fitting.columns, fields=list(self.schema), mask=pc.invert(known))
        lists = rows.columns
        inner = pa.RecordBatch.from_arrays([column.values for column in lists], list(self.columns))
        fitting = fit(inner, self.schema)
        structs = pa.StructArray.from_arrays(fitting.columns, fields=list(self.schema))
        return pa.ListArray.from_arrays(lists[0].offsets, structs)


_open: dict[tuple[Any, ...], tuple[int, Lookups]] = {}
"""Look-ups of this Python worker, with the edition of the version that each shows. They outlive a task.

Functions that were registered before and after a change of R's columns have different look-ups.
"""


def _opened(function: LookUpFunction, version: int) -> Lookups:
    """Return look-ups in a version. Those of another version are closed."""
    task = function.relation
    layout = None if task.layouts is None else (task.layouts.lineage, task.layouts.number)
    named = (task.identity, str(task.schema), layout, function.columns, function.memory, function.many)
    edition = task.edition(Pin(version))
    if (held := _open.get(named)) is not None:
        if held[0] == edition:
            return held[1]
        _open.pop(named)
        held[1].close()
        held[1].relation.close()
    relation = task.opened(Pin(version))
    try:
        task.check_columns(relation.version, relation.schema, relation.key.names, function.columns)
        lookups = Lookups(relation, memory=function.memory)
    except SemistreamError:
        relation.close()
        raise
    _open[named] = edition, lookups
    return lookups
