"""What the installed PySpark offers. All differences between its versions are decided here, by feature.

| feature | since | without it |
|---|---|---|
| functions of columns that return Arrow arrays | 4.1 | `older.whole_rows`: whole rows go to Python |
| ``repartitionById`` | 4.1 | `older.direct_partitions`: a shuffle by numbers with known hashes |
| ``transformWithState`` | 4.1 | `older.state_in_pandas` |
| functions of SQL that return Arrow arrays | 4.1 | refused |
| sources that receive conditions | 4.1 | all pages are read |
| sources that are asked for a number of rows | 4.2 | `older.read_limits`: the reader limits micro-batches itself |
| state partitions other than those of shuffles | 4.1 | the query's own number of shuffle partitions is changed |
| arrays among the metrics of an ``Observation`` | 4.1 | `items_of` |
| times, geometries | 4.1 | no column can have these types |
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, datasource
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.pandas import functions as pandas_functions
from pyspark.sql.pandas import types as pandas_types

from semistream.core.errors import UnsupportedJoinError
from semistream.spark.older.direct_partitions import to_partition
from semistream.spark.older.read_limits import Unlimited
from semistream.spark.older.whole_rows import WholeRows

__all__ = [
    "HAS_TIMES",
    "ROCKSDB",
    "EqualNullSafe",
    "EqualTo",
    "Filter",
    "GreaterThan",
    "GreaterThanOrEqual",
    "In",
    "LessThan",
    "LessThanOrEqual",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_function",
    "arrow_type",
    "checkpoint_files",
    "is_transferred_as_struct",
    "items_of",
    "sent_to_partition",
    "state_partitions_setting",
    "stream_reader",
    "with_answers",
    "with_state",
]

_HAS_ARROW_UDFS = hasattr(pandas_functions, "ArrowUDFType")
_HAS_FILTERS = hasattr(datasource, "Filter")
_HAS_LIMITS = find_spec("pyspark.sql.streaming.datasource") is not None
HAS_TIMES = hasattr(st, "TimeType")
"""Whether Spark has a type for the time of day."""
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""Spark's state store in RocksDB, which ``transformWithState`` requires."""


# -- plans --------------------------------------------------------------------------------------------------------


def sent_to_partition(df: DataFrame, partitions: int, partition: Column) -> DataFrame:
    """Shuffle each row to the partition that an expression gives."""
    if hasattr(df, "repartitionById"):
        return df.repartitionById(partitions, partition)
    return to_partition(df, partitions, partition)


def with_answers(
    df: DataFrame,
    name: str,
    function: Callable[[Iterator[Any]], Iterator[pa.Array]],
    kind: st.StructType,
    arguments: list[str | Column],
) -> DataFrame:
    """Return the rows with one more column: what a Python function answers, once for each row.

    Parameters
    ----------
    df
        The rows.
    name, kind
        The name and the type of the answers.
    function
        Receives tuples of Arrow arrays, and yields arrays with one answer per row, in order.
    arguments
        What the function receives: columns of ``df`` by name, and expressions.
    """
    if _HAS_ARROW_UDFS:
        called = arrow_function(function, kind)
        return df.withColumn(name, called(*(F.col(one) if isinstance(one, str) else one for one in arguments)))
    names = df.columns
    expressions = [one for one in arguments if isinstance(one, Column)]
    added = iter(range(len(names), len(names) + len(expressions)))
    places = tuple(names.index(one) if isinstance(one, str) else next(added) for one in arguments)
    whole = df.select("*", *(one.alias(f"argument{at}") for at, one in enumerate(expressions)))
    _check_transferable(whole.schema)
    result = st.StructType([*df.schema.fields, st.StructField(name, kind)])
    return whole.mapInArrow(WholeRows(function, name, places, len(names)), result)


def arrow_function(function: Callable[[Iterator[Any]], Iterator[pa.Array]], kind: st.DataType) -> Any:
    """Return a function of columns, as `with_answers` takes it, that Spark does not call twice for a row.

    Raises
    ------
    UnsupportedJoinError
        Before Spark 4.1, which has no such functions.
    """
    if not _HAS_ARROW_UDFS:
        raise UnsupportedJoinError("functions that look up rows in SQL need PySpark 4.1 or newer; use semistream.join")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about type hints: there may be any number of columns
        # the stubs do not know that a function may return a struct
        made: Any = pandas_functions.arrow_udf(  # type: ignore[call-overload]
            function, kind, pandas_functions.ArrowUDFType.SCALAR_ITER
        )
        return made.asNondeterministic()


def _check_transferable(schema: st.StructType) -> None:
    for number, field in enumerate(schema.fields, start=1):
        try:
            arrow_type(field.dataType)
        except (PySparkException, NotImplementedError, TypeError) as error:
            raise UnsupportedJoinError(
                f"column {number} of the stream is {field.dataType.simpleString()}; before Spark 4.1, all columns go "
                "to Python as Arrow data, which has no such type: cast it to another type, or drop it"
            ) from error


def with_state(df: DataFrame, key: str, processor: Any, result: str, time_mode: str) -> DataFrame:
    """Return the rows that a stateful processor yields for the rows of each key, in append mode."""
    grouped = df.groupBy(key)
    if hasattr(grouped, "transformWithState"):
        return grouped.transformWithState(processor, result, "append", time_mode)
    from semistream.spark.older.state_in_pandas import StateInPandas

    return grouped.transformWithStateInPandas(StateInPandas(processor), result, "append", time_mode)


def state_partitions_setting(conf: Any) -> str:
    """Return the setting of a query's session, in the JVM, for the number of its state partitions."""
    own = "spark.sql.streaming.internal.stateStore.partitions"
    return own if conf.isModifiable(own) else "spark.sql.shuffle.partitions"


def checkpoint_files(spark: SparkSession) -> str | None:
    """Return Spark's class that writes checkpoints as plain files; None if the JVM is out of reach."""
    jvm: Any = getattr(spark, "_jvm", None)
    streaming = "org.apache.spark.sql.execution.streaming"
    for package in (f"{streaming}.checkpointing", streaming):
        name = f"{package}.FileSystemBasedCheckpointFileManager"
        if jvm is not None and jvm.org.apache.spark.util.Utils.classIsLoadable(name):
            return name
    return None


def items_of(observed: Any) -> list[Any]:
    """Return the items of an array in the metrics of an ``Observation``; before Spark 4.1 it is the JVM's."""
    if hasattr(observed, "apply"):
        return [observed.apply(at) for at in range(observed.size())]
    return list(observed or ())


# -- types --------------------------------------------------------------------------------------------------------

_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(pandas_types.to_arrow_type).parameters else {}
)


def arrow_type(kind: st.DataType) -> pa.DataType:
    """Return the type of a Spark column in Python, with timestamps in UTC."""
    return pandas_types.to_arrow_type(kind, **_UTC)


def is_transferred_as_struct(arrow: pa.DataType) -> bool:
    """Return whether an Arrow struct with metadata is one of Spark's own types, such as a variant."""
    known = [getattr(pandas_types, name, None) for name in ("is_variant", "is_geometry", "is_geography")]
    return any(check(arrow) for check in known if check is not None)


# -- sources ------------------------------------------------------------------------------------------------------

if TYPE_CHECKING or _HAS_FILTERS:
    from pyspark.sql.datasource import (
        EqualNullSafe,
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        LessThan,
        LessThanOrEqual,
    )
else:
    from semistream.spark.older.filters import (
        EqualNullSafe,
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        LessThan,
        LessThanOrEqual,
    )

if TYPE_CHECKING or _HAS_LIMITS:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
else:
    from semistream.spark.older.read_limits import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow


def stream_reader(reader: DataSourceStreamReader) -> DataSourceStreamReader:
    """Return a reader that Spark can use, for one whose ``latestOffset`` takes a start and a limit."""
    return reader if _HAS_LIMITS else Unlimited(reader)
