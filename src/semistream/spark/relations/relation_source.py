"""``spark.read.format("semistream").load(path)``: a relation as a table, for Spark SQL.

One task per shard reads its pages. Use it to look into R, for reports, and for joins that need all of R. To join a
stream use `semistream.join`.

With the option ``pushdown``, conditions on the key are pushed down: only pages that can hold such keys are read. Spark
4.3 keeps what a Python data source answered last for the table of a DataFrame, not for the query. If a DataFrame or a
view is used with two conditions, in one query or in two, rows of one of them are missing. So this is an option.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from semistream.core.errors import SemistreamError
from semistream.joins.interface.conditions import pick_columns
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.manifest import Manifest
from semistream.relation.stores.store_path import place_of
from semistream.spark.features import Filter
from semistream.spark.relations.types import arrow_schema, fit, relation_types
from semistream.spark.relations.wanted_keys import RowSelection, WantedKeys

__all__ = ["RelationDataSource"]

_PAGES = 512
"""Number of pages that a task reads at a time."""
_OPTIONS = ("path", "version", "columns", "by", "pushdown")
_ON_OR_OFF = {"true": True, "false": False}


class RelationOptionError(SemistreamError, ValueError):
    """An unknown option of this source, or an invalid value."""


class RelationDataSource(DataSource):
    """A relation as a table. Its path is given to ``load``.

    Options: ``version``, by default the newest; ``columns``, such as ``"id,price"``, to decode only these columns, as
    Spark does not tell a Python data source which ones it needs; ``by``, a secondary index, in whose order R is read;
    ``pushdown``, for a DataFrame that is used with one condition only.

    Examples
    --------
    >>> products = spark.read.format("semistream").load("products")                      # doctest: +SKIP
    >>> once = spark.read.format("semistream").option("pushdown", True).load("products") # doctest: +SKIP
    >>> once.where("id = 7").show()  # reads one page                                    # doctest: +SKIP
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): text for name, text in options.items()}
        unknown = sorted(given.keys() - set(_OPTIONS))
        if unknown:
            known = f"{', '.join(_OPTIONS[:-1])} and {_OPTIONS[-1]}"
            raise RelationOptionError(f"a relation has no option {unknown[0]!r}; the options are {known}")
        if "path" not in given:
            raise RelationOptionError("the path of the relation is missing; give it to load, or as the option path")
        version = given.get("version")
        if version is not None and not version.isdecimal():
            raise RelationOptionError(f"version must be a number, not {version!r}; semistream history lists them")
        pushdown = given.get("pushdown", "false").lower()
        if pushdown not in _ON_OR_OFF:
            raise RelationOptionError(f"pushdown must be true or false, not {pushdown!r}")
        self._pushdown = _ON_OR_OFF[pushdown]
        self._path = str(place_of(given["path"]).absolute())
        manifest = manifests.load(place_of(self._path), None if version is None else int(version))
        self._manifest = manifest.in_order_of(_names(given["by"]), self._path) if "by" in given else manifest
        fields = list(self._manifest.schema)
        self._fields = pick_columns(fields, _names(given["columns"])) if "columns" in given else fields

    @classmethod
    def name(cls) -> str:
        return "semistream"

    def schema(self) -> st.StructType:
        kinds = relation_types(self._manifest, self._fields)
        named = zip(self._fields, kinds, strict=True)
        return st.StructType([st.StructField(part.name, kind) for part, kind in named])

    def reader(self, schema: st.StructType) -> DataSourceReader:
        return _Reader(self._path, self._manifest, arrow_schema(schema), pushdown=self._pushdown)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


@dataclass
class _Shard(InputPartition):
    number: int


class _Reader(DataSourceReader):
    """Rows of one version: all, or those of the pages that can hold the keys that a query wants."""

    def __init__(self, path: str, manifest: Manifest, schema: pa.Schema, *, pushdown: bool) -> None:
        self._path, self._version, self._by, self._schema = path, manifest.version, manifest.by, schema
        self._shards = range(len(manifest.shards))
        self._codec = manifest.codec
        self._clustered = manifest.clustered
        self._pushdown = pushdown
        self._wanted: WantedKeys | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Remember the conditions on the key. Spark evaluates all conditions again on the rows that are read."""
        if self._pushdown:
            self._wanted = WantedKeys.of(filters, self._codec, ranges=self._clustered)
        return filters

    def partitions(self) -> list[_Shard]:
        shards: Iterable[int] = self._shards
        if self._wanted is not None and self._wanted.keys is not None:
            shards = np.unique(self._codec.shards(self._wanted.keys, len(self._shards))).tolist()
        return [_Shard(number) for number in shards] or [_Shard(0)]

    def read(self, partition: _Shard) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        opened = Relation.open(self._path, version=self._version, shards=[partition.number], by=self._by)
        with opened as relation:
            pages = np.arange(relation.page_count) if self._wanted is None else self._wanted.pages(relation)
            rows = RowSelection(relation, self._schema.names)
            frames = relation.frames(min(_PAGES, max(1, pages.size)))
            for begin in range(0, pages.size, len(frames)):
                part = pages[begin : begin + len(frames)]
                yield fit(rows.of(part, frames[: part.size], self._wanted), self._schema)
