"""``spark.read.format("semistream").load(path)``: a relation as a table, for Spark SQL.

A task for each shard reads all pages of it. For a look into R, for reports, and for joins in which all of R takes part;
a stream is joined by `semistream.join`, which reads only what it needs.
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
"""Pages that a task has in memory at once."""


class RelationOptionError(SemistreamError, ValueError):
    """An option that a relation as a table does not have, or a value it cannot take."""


class RelationDataSource(DataSource):
    """A relation as a table: the path is given to ``load``, and perhaps the option ``version``; else it is the newest.

    Examples
    --------
    >>> products = spark.read.format("semistream").load("products")                      # doctest: +SKIP
    >>> products.createOrReplaceTempView("products")                                     # doctest: +SKIP
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): text for name, text in options.items()}
        unknown = sorted(given.keys() - {"path", "version"})
        if unknown:
            raise RelationOptionError(f"a relation has no option {unknown[0]!r}; it has version, and a path to load")
        if "path" not in given:
            raise RelationOptionError("a relation has a path; give it to load, or as the option path")
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
