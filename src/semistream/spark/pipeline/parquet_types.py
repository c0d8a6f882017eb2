"""Checks whether the types of Parquet files match the schema in a pipeline file.

Spark finds a mismatch only when a task reads the first page of such a column. This check reads one file before the
query starts.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyspark.sql.types as st
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from semistream.relation.keys.key_casts import column_sql, derived_name

__all__ = ["mistyped"]

_MISMATCH = "PARQUET_COLUMN_DATA_TYPE_MISMATCH"


def mistyped(spark: SparkSession, path: str, schema: st.StructType, options: Mapping[str, str]) -> list[str]:
    """Return a message for each column that Spark cannot read as the type in ``schema``.

    Spark infers the types from the footer of one file. If a type differs, Spark tries to read a row, because it can
    read some types as others, such as an int as a bigint.
    """
    try:
        found = spark.read.options(**options).parquet(path).schema
    except (PySparkException, Py4JError):
        return []  # no file yet, or none is readable; the query will report that with the file's name
    theirs = {field.name.lower(): field.dataType for field in found.fields}
    told = []
    for field in schema.fields:
        kind = theirs.get(field.name.lower(), field.dataType)
        if kind != field.dataType and not _can_read(spark, path, field, options):
            said, is_ = field.dataType.simpleString(), kind.simpleString()
            column = column_sql(field.name)
            name = derived_name(field.name, said)
            told.append(
                f"column {field.name!r} is {said} here and {is_} in the files at {path}; write {column} {is_} in "
                f'schema, and if it is to be {said}, {name} = "try_cast({column} as {said})" under [source.derive]'
            )
    return told


def _can_read(spark: SparkSession, path: str, field: st.StructField, options: Mapping[str, str]) -> bool:
    try:
        spark.read.options(**options).schema(st.StructType([field])).parquet(path).limit(1).collect()
    except (PySparkException, Py4JError) as error:  # without Connect, errors of tasks are Py4J's
        return _MISMATCH not in str(error)
    return True
