"""``spark.read.format("semistream").load(path)``: a relation as a table, for Spark SQL.

One task per shard reads all its pages. Use it to look into R, for reports, and for joins that need all of R. To join a
stream use `semistream.join`, which reads only the pages it needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from semistream.core.errors import SemistreamError
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.stores.store_path import place_of
from semistream.spark.relations.build_job import SPARK_SCHEMA
from semistream.spark.relations.types import arrow_schema, fit, spark_type

__all__ = ["RelationDataSource"]

_PAGES = 512
"""Number of pages that a task reads at a time."""


class RelationOptionError(SemistreamError, ValueError):
    """An unknown option of this source, or an invalid value."""


class RelationDataSource(DataSource):
    """A relation as a table. Its path is given to ``load``, and ``version`` optionally; the default is the newest.

    Examples
    --------
    >>> products = spark.read.format("semistream").load("products")                      # doctest: +SKIP
    >>> products.createOrReplaceTempView("products")                                     # doctest: +SKIP
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): text for name, text in options.items()}
        unknown = sorted(given.keys() - {"path", "version"})
        if unknown:
            raise RelationOptionError(f"a relation has no option {unknown[0]!r}; the options are path and version")
        if "path" not in given:
            raise RelationOptionError("the path of the relation is missing; give it to load, or as the option path")
        version = given.get("version")
        if version is not None and not version.isdecimal():
            raise RelationOptionError(f"version must be a number, not {version!r}; semistream history lists them")
        self._path = str(place_of(given["path"]).absolute())
        self._manifest = manifests.load(place_of(self._path), None if version is None else int(version))

    @classmethod
    def name(cls) -> str:
        return "semistream"

    def schema(self) -> st.StructType:
        original: dict[str, st.DataType] = {}
        if SPARK_SCHEMA in self._manifest.properties:
            built = st.StructType.fromJson(json.loads(self._manifest.properties[SPARK_SCHEMA]))
            original = {part.name: part.dataType for part in built.fields}
        return st.StructType(
            [
                st.StructField(part.name, original.get(part.name) or spark_type(part.name, part.type))
                for part in self._manifest.schema
            ]
        )

    def reader(self, schema: st.StructType) -> DataSourceReader:
        return _Reader(self._path, self._manifest.version, len(self._manifest.shards), arrow_schema(schema))


@dataclass
class _Shard(InputPartition):
    number: int


class _Reader(DataSourceReader):
    """All rows of one version."""

    def __init__(self, path: str, version: int, shards: int, schema: pa.Schema) -> None:
        self._path, self._version, self._shards, self._schema = path, version, shards, schema

    def partitions(self) -> list[_Shard]:
        return [_Shard(number) for number in range(self._shards)]

    def read(self, partition: _Shard) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        with Relation.open(self._path, version=self._version, shards=[partition.number]) as relation:
            for batch in relation.to_batches(_PAGES):
                yield fit(batch, self._schema)
