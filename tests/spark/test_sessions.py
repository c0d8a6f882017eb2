"""The session for one machine: what it sets in the JVM that it starts."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import pyspark.sql.types as st
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

pytestmark = pytest.mark.spark

TYPES = "id bigint, text string, day date, price decimal(12,2), flag boolean, size double, inner struct<a:int,b:string>"


def test_arrow_does_not_check_the_bounds_of_each_value(spark: SparkSession) -> None:
    arrow = spark._jvm.org.apache.arrow
    assert not arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED
    assert arrow.vector.NullCheckingForGet.NULL_CHECKING_ENABLED


def test_a_null_where_none_is_allowed_is_an_error(spark: SparkSession) -> None:
    """Spark does not look whether it is NULL; without Arrow's check it would be 0, or any other number."""
    rows = pa.table({"sizes": pa.array([[1], [None]], pa.list_(pa.int64()))})
    declared = st.StructType([st.StructField("sizes", st.ArrayType(st.LongType(), containsNull=False))])
    with pytest.raises(Py4JJavaError, match="Value at index is null"):
        spark.createDataFrame(rows, declared).collect()


def test_nulls_of_all_types_come_back_from_python(spark: SparkSession) -> None:
    full = (1, "a", date(2026, 1, 2), Decimal("3.40"), True, 0.5, (7, "b"))
    rows = spark.createDataFrame([full, (2, *[None] * 6), (3, "", None, None, False, None, (None, None))], TYPES)
    same = rows.mapInArrow(lambda batches: batches, TYPES)
    assert sorted(map(tuple, same.collect())) == sorted(map(tuple, rows.collect()))
    assert same.where(F.col("text").isNull() & F.col("price").isNull() & F.col("inner").isNull()).count() == 1
