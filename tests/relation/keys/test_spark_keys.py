"""Keys and shards are those that Spark computes."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from raw_keys import codec, encode, from_raw
from semistream.relation.keys.key_codec import KeyCodec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

number = decimal.Decimal

SPARK_COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.int8(), [-128, 127, 0]),
    "small": (pa.int16(), [-(2**15), 2**15 - 1, 5]),
    "whole": (pa.int32(), [-(2**31), 2**31 - 1, 17]),
    "big": (pa.int64(), [-(2**63), 2**63 - 1, 17]),
    "flag": (pa.bool_(), [True, False, True]),
    "day": (pa.date32(), [dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(1970, 1, 1)]),
    "moment": (pa.timestamp("us", "UTC"), [dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC)] * 3),
    "clock": (pa.timestamp("us"), [dt.datetime(2024, 2, 29, 1, 2, 3, 4), dt.datetime(1900, 1, 1), dt.datetime.min]),
    "lapse": (pa.duration("us"), [dt.timedelta(days=-3, microseconds=5), dt.timedelta(0), dt.timedelta(days=400)]),
    "price": (pa.decimal128(18, 4), [number("-1.2345"), number("0"), number("99999999999999.9999")]),
    "sum": (pa.decimal128(38, 4), [number("-1.2345"), number("0"), number("9999999999999999999999999999999999.9999")]),
    "name": (pa.string(), ["", "Ünïcödé", "x" * 100]),
    "blob": (pa.binary(), [b"", b"\x00\xff", b"y" * 33]),
}  # fmt: skip


@pytest.mark.spark
def test_keys_and_shards_are_sparks(spark: SparkSession) -> None:
    """Spark, reading each column as the codec says, computes the same shards and the same hashed keys."""
    table = pa.table({name: pa.array([*values, None], type_) for name, (type_, values) in SPARK_COLUMNS.items()})
    (batch,) = table.to_batches()
    frame = spark.createDataFrame(table).coalesce(1)
    keys = [[name] for name in SPARK_COLUMNS] + [["big", "name"], list(SPARK_COLUMNS)]
    expressions = []
    for i, names in enumerate(keys):
        codec_ = KeyCodec.for_schema(table.schema, names)
        columns = ", ".join(f"try_cast({name} as {sql})" for name, sql in zip(names, codec_.sql_types, strict=True))
        expressions += [f"xxhash64({columns}) as hash{i}", f"pmod(xxhash64({columns}), 13) as shard{i}"]
    answers = frame.selectExpr(*expressions).toArrow()
    for i, names in enumerate(keys):
        codec_ = KeyCodec.for_schema(table.schema, names)
        encoded, valid = codec_.encode(batch)
        assert valid.tolist() == [True, True, True, False]
        assert codec_.shards(encoded, 13)[:3].tolist() == answers[f"shard{i}"].to_pylist()[:3], names
        if not codec_.exact:
            assert encoded[:3].tolist() == answers[f"hash{i}"].to_pylist()[:3], names


@pytest.mark.spark
@pytest.mark.parametrize(
    ("type_", "raw", "sql"),
    [
        (pa.uint8(), [0, 255], ["0", "255"]),
        (pa.uint16(), [0, 65535], ["0", "65535"]),
        (pa.uint32(), [0, 2**32 - 1], ["0L", "4294967295L"]),
        (pa.uint64(), [0, 200, 2**64 - 1], ["0", "200", "18446744073709551615"]),
        (pa.date64(), [86_400_000, -86_400_000], ["date'1970-01-02'", "date'1969-12-31'"]),
        (pa.timestamp("s"), [1], ["timestamp_ntz'1970-01-01 00:00:01'"]),
        (pa.timestamp("ms", "UTC"), [-1], ["timestamp'1969-12-31 23:59:59.999'"]),
        (pa.timestamp("ns"), [1000], ["timestamp_ntz'1970-01-01 00:00:00.000001'"]),
        (pa.time32("s"), [45296], ["time'12:34:56'"]),
        (pa.time64("us"), [45296123456], ["time'12:34:56.123456'"]),
        (pa.duration("s"), [86400], ["interval '1' day"]),
    ],
    ids=str,
)
def test_types_that_spark_lacks_shard_as_what_it_reads_them_as(
    spark: SparkSession, type_: pa.DataType, raw: list[int], sql: list[str]
) -> None:
    key = codec(type_)
    keys, _ = encode(key, from_raw(raw, type_))
    casts = ", ".join(f"pmod(xxhash64(cast({literal} as {key.sql_types[0]})), 101)" for literal in sql)
    spark.conf.set("spark.sql.timeType.enabled", "true")  # off unless asked for, in this version
    try:
        answers = list(spark.sql(f"select {casts}").first())
    finally:
        spark.conf.unset("spark.sql.timeType.enabled")
    assert key.shards(np.array(keys), 101).tolist() == answers
