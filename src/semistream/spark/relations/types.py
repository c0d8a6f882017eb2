"""Conversion between the types of Spark and Arrow.

Spark reads the result of a Python task as the declared types, without a check: an ``int64`` where it expects ``int`` is
garbage or a crash. So every batch that is returned to Spark is cast to exactly `arrow_schema`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as st
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type

from semistream.core.errors import KeyTypeError, SemistreamError
from semistream.relation.storage.manifest import SPARK_SCHEMA, Manifest
from semistream.spark.features import HAS_TIMES, arrow_type, is_transferred_as_struct

__all__ = [
    "UnsupportedTypeError",
    "arrow_schema",
    "check_collations",
    "fit",
    "relation_types",
    "spark_type",
    "together",
]

_BINARY = "UTF8_BINARY"
# Integers that Spark lacks become its next larger type, as when Spark reads them from Parquet.
_LARGER: dict[pa.DataType, st.DataType] = {
    pa.uint8(): st.ShortType(),
    pa.uint16(): st.IntegerType(),
    pa.uint32(): st.LongType(),
    pa.uint64(): st.DecimalType(20, 0),
    pa.float16(): st.FloatType(),
    pa.date64(): st.DateType(),
    pa.string_view(): st.StringType(),
    pa.binary_view(): st.BinaryType(),
    pa.null(): st.NullType(),
}


class UnsupportedTypeError(SemistreamError, ValueError):
    """A column whose type cannot be converted between Spark and Arrow."""


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """Return the Arrow schema of the batches of a DataFrame of ``schema`` in Python.

    Spark marks timestamps with the session's time zone. A relation stores them in UTC, whatever the session.
    """
    return pa.schema([pa.field(field.name, _arrow_type(field), field.nullable) for field in schema.fields])


def check_collations(schema: st.StructType, keys: Iterable[str]) -> None:
    """Raise for keys with a collation: relations order and hash keys byte by byte."""
    for name in keys:
        kind = next((field.dataType for field in schema.fields if field.name == name), None)
        if isinstance(kind, st.StringType) and (collation := getattr(kind, "collation", _BINARY)) != _BINARY:
            raise KeyTypeError(
                f"key column {name!r} has the collation {collation}, but keys are compared byte by byte; make equal "
                f"keys identical first, for example with lower(), and cast them: collate(…, '{_BINARY}')"
            )


def _arrow_type(field: st.StructField) -> pa.DataType:
    try:
        return arrow_type(field.dataType)
    except (PySparkException, NotImplementedError, TypeError) as error:
        raise UnsupportedTypeError(
            f"column {field.name!r} is {field.dataType.simpleString()}, which Spark cannot pass to Python as "
            "Arrow data; cast it to another type, or drop it"
        ) from error


def relation_types(manifest: Manifest, columns: Iterable[pa.Field]) -> list[st.DataType]:
    """Return the Spark types of a relation's columns: those that a Spark job built it from, or else the nearest ones.

    Parts of nested values may be NULL, even if they could not be in the build: updates do not check that, and Spark
    would read such a NULL as any value.
    """
    original: dict[str, st.DataType] = {}
    if SPARK_SCHEMA in manifest.properties:
        built = st.StructType.fromJson(json.loads(manifest.properties[SPARK_SCHEMA]))
        original = {part.name: _with_nulls(part.dataType) for part in built.fields}
    return [original.get(column.name) or spark_type(column.name, column.type) for column in columns]


def _with_nulls(kind: st.DataType) -> st.DataType:
    """Return a type whose nested values may be NULL."""
    if isinstance(kind, st.ArrayType):
        return st.ArrayType(_with_nulls(kind.elementType))
    if isinstance(kind, st.MapType):
        return st.MapType(_with_nulls(kind.keyType), _with_nulls(kind.valueType))
    if isinstance(kind, st.StructType):
        parts = kind.fields
        return st.StructType(
            [st.StructField(part.name, _with_nulls(part.dataType), True, part.metadata) for part in parts]
        )
    return kind


def spark_type(name: str, arrow: pa.DataType) -> st.DataType:
    """Return the Spark type for a relation's column; a type that Spark lacks becomes the nearest one that holds it.

    Timestamps are truncated to microseconds, because Spark has nothing finer.
    """
    if larger := _LARGER.get(arrow):
        return larger
    if isinstance(arrow, pa.BaseExtensionType):
        return spark_type(name, arrow.storage_type)
    if pa.types.is_dictionary(arrow) or pa.types.is_run_end_encoded(arrow):
        return spark_type(name, arrow.value_type)
    if pa.types.is_map(arrow):
        return st.MapType(spark_type(name, arrow.key_type), spark_type(name, arrow.item_type))
    # Some of Spark's own types are transferred as structs with metadata.
    if pa.types.is_struct(arrow) and not is_transferred_as_struct(arrow):
        return st.StructType([st.StructField(part.name, spark_type(name, part.type)) for part in arrow])
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow):
        return st.ArrayType(spark_type(name, arrow.value_type))
    if pa.types.is_time(arrow) and HAS_TIMES:
        return st.TimeType(6)
    return _plain_type(name, arrow)


def _plain_type(name: str, arrow: pa.DataType) -> st.DataType:
    try:
        found = from_arrow_type(arrow)
    except PySparkException as error:
        raise UnsupportedTypeError(
            f"column {name!r} of the relation is {arrow}, which Spark has no type for; build the relation "
            "without it, or with the column cast to another type"
        ) from error
    if isinstance(found, st.DecimalType) and found.precision > 38:
        raise UnsupportedTypeError(
            f"column {name!r} of the relation is {arrow}, but Spark's decimals have at most 38 digits; build "
            "the relation with the column cast to string"
        )
    return found


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return ``batch`` with exactly the types of ``schema``; columns that already match are not copied."""
    columns = [
        column if column.type == field.type else _cast(column, field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def together(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Concatenate batches to at least ``size`` bytes each; every batch costs 0.33 ms on its way to the JVM.

    Up to twice as many bytes are held, for the parts and the result. With a ``size`` of 0 batches are unchanged.

    >>> parts = [pa.record_batch({"id": [part, part]}) for part in range(5)]
    >>> [batch.num_rows for batch in together(parts, 48)]
    [6, 4]
    """
    held: list[pa.RecordBatch] = []
    room = size
    for batch in batches:
        held.append(batch)
        room -= batch.nbytes
        if room <= 0:
            yield pa.concat_batches(held) if len(held) > 1 else batch
            held, room = [], size
    if held:
        yield pa.concat_batches(held)


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if isinstance(column.type, pa.BaseExtensionType):
        return _cast(column.storage, wanted)
    if pa.types.is_run_end_encoded(column.type):
        return _cast(pc.run_end_decode(column), wanted)
    # Not safe: nanoseconds, which Spark lacks, are truncated. All other casts here widen.
    if pa.types.is_time(column.type):
        column = column.cast(pa.time64("us"), safe=False)
    return column if column.type == wanted else column.cast(wanted, safe=False)
