from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import pyspark.sql.types as st

from semistream.spark.relations.types import UnsupportedTypeError, arrow_schema, fit, spark_type

DAY = datetime.date(2020, 2, 29)
INSTANT = datetime.datetime(2020, 2, 29, 12, tzinfo=datetime.UTC)

CASES: list[tuple[pa.DataType, str, list[Any], list[Any]]] = [
    # Arrow type, Spark type, values, values in Spark
    (pa.int8(), "tinyint", [-128, None], [-128, None]),
    (pa.uint8(), "smallint", [255, None], [255, None]),
    (pa.uint16(), "int", [65535, None], [65535, None]),
    (pa.uint32(), "bigint", [2**32 - 1, None], [2**32 - 1, None]),
    (pa.uint64(), "decimal(20,0)", [2**64 - 1, None], [decimal.Decimal(2**64 - 1), None]),
    (pa.float16(), "float", [1.5, None], [1.5, None]),
    (pa.large_string(), "string", ["é", None], ["é", None]),
    (
        pa.string_view(),
        "string",
        ["a string longer than twelve bytes", None],
        ["a string longer than twelve bytes", None],
    ),
    (pa.binary(2), "binary", [b"ab", None], [b"ab", None]),
    (pa.date64(), "date", [DAY, None], [DAY, None]),
    (pa.time32("s"), "time(6)", [datetime.time(1, 2, 3), None], [datetime.time(1, 2, 3), None]),
    (pa.time64("ns"), "time(6)", [1_001, None], [datetime.time(0, 0, 0, 1), None]),
    (pa.timestamp("s"), "timestamp_ntz", [INSTANT.replace(tzinfo=None)], [INSTANT.replace(tzinfo=None)]),
    (pa.timestamp("ms", "Europe/Paris"), "timestamp", [INSTANT, None], [INSTANT, None]),
    (pa.duration("s"), "interval day to second", [datetime.timedelta(3), None], [datetime.timedelta(3), None]),
    (pa.decimal64(9, 2), "decimal(9,2)", [decimal.Decimal("1.25"), None], [decimal.Decimal("1.25"), None]),
    (pa.decimal256(38, 1), "decimal(38,1)", [decimal.Decimal("1.5"), None], [decimal.Decimal("1.5"), None]),
    (pa.dictionary(pa.int8(), pa.string()), "string", ["a", "b", "a", None], ["a", "b", "a", None]),
    (pa.large_list(pa.uint8()), "array<smallint>", [[200, None], None, []], [[200, None], None, []]),
    (pa.list_(pa.int64(), 2), "array<bigint>", [[1, 2], None], [[1, 2], None]),
    (pa.map_(pa.string(), pa.uint16()), "map<string,int>", [[("a", 1)], None], [[("a", 1)], None]),
    (pa.struct({"a": pa.uint8()}), "struct<a:smallint>", [{"a": 9}, None], [{"a": 9}, None]),
    (pa.null(), "void", [None, None], [None, None]),
]


@pytest.mark.parametrize(("arrow", "spark", "values", "expected"), CASES, ids=lambda value: str(value)[:40])
def test_nearest_type(arrow: pa.DataType, spark: str, values: list[Any], expected: list[Any]) -> None:
    found = spark_type("c", arrow)
    assert found.simpleString() == spark
    wanted = arrow_schema(st.StructType([st.StructField("c", found)]))
    fitted = fit(pa.record_batch([pa.array(values, arrow)], names=["c"]), wanted)
    fitted.validate(full=True)
    assert fitted.schema == wanted
    assert fitted.column(0).to_pylist() == expected


def test_run_ends_and_extensions_are_taken_off() -> None:
    wanted = pa.schema({"c": pa.string(), "d": pa.binary()})
    runs = pa.RunEndEncodedArray.from_arrays([2, 3], ["a", None])
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16, None, b"1" * 16], pa.binary(16)))
    fitted = fit(pa.record_batch([runs, uuids], names=["c", "d"]), wanted)
    assert fitted.to_pydict() == {"c": ["a", "a", None], "d": [b"0" * 16, None, b"1" * 16]}
    assert spark_type("c", runs.type) == st.StringType()
    assert spark_type("d", uuids.type) == st.BinaryType()


def test_columns_that_fit_are_not_copied() -> None:
    column = pa.array([1, 2, 3])
    fitted = fit(pa.record_batch([column], names=["c"]), pa.schema({"other": pa.int64()}))
    assert fitted.column(0).buffers()[1].address == column.buffers()[1].address
    assert fitted.schema.names == ["other"]


@pytest.mark.parametrize(
    "arrow",
    [
        pa.month_day_nano_interval(),
        pa.sparse_union([pa.field("a", pa.int8())]),
        pa.list_view(pa.int8()),  # its cast to list is broken in Arrow
        pa.struct({"deep": pa.list_(pa.month_day_nano_interval())}),
        pa.decimal256(50, 0),
    ],
    ids=str,
)
def test_what_spark_has_no_type_for(arrow: pa.DataType) -> None:
    with pytest.raises(UnsupportedTypeError, match=r"column 'span' of the relation is .*; build"):
        spark_type("span", arrow)


def test_sparks_own_structs_keep_their_meaning() -> None:
    schema = st.StructType([st.StructField("v", st.VariantType())])
    assert spark_type("v", arrow_schema(schema).field("v").type) == st.VariantType()
