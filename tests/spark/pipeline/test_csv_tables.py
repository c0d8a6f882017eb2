"""The same CSV files with Spark and without it: the same table, or a refusal, never another value."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from semistream.cli.relations.csv_files import InputError
from semistream.cli.relations.table_files import InputFiles
from semistream.core.errors import SemistreamError
from semistream.spark.pipeline.csv_tables import CSV, read_csv
from semistream.spark.relations.types import spark_type

pytestmark = pytest.mark.spark

TEXTS: dict[pa.DataType, list[str]] = {
    pa.string(): [
        "", '""', " x ", '" "', "NA", "null", "007", '"a ""b"" c"', 'a"b', '"1,000"', '"one\ntwo"', "\\", "é€😀",
    ],
    pa.int32(): [
        "", '""', "0", "-7", "007", " 1", "+2", "1.0", "1e3", "NA", "2147483648", '"8"', '"1,000"', "0x10", "x",
    ],
    pa.int64(): ["9223372036854775807", "9223372036854775808", "-9223372036854775808"],
    pa.float64(): ["", "1", "-1.5e300", "1e400", "NaN", "nan", "inf", "-Infinity", "1.5d", " 1.5", ".5", "1,5", "x"],
    pa.decimal128(8, 2): ["", "1", "1.25", "1.2", "1.250", "-0.01", "999999.99", "1000000", "1e2", "1.005", "x"],
    pa.bool_(): ["", "true", "False", "TRUE", "yes", "1", "0", "t"],
    pa.date32(): [
        "", "2024-02-29", "2023-02-29", "2024-1-2", "2024", "2024-01-02 00:00:00", "0001-01-01", "9999-12-31",
    ],
    pa.timestamp("us", "UTC"): [
        "", "2024-01-02", "2024-01-02 03:04", "2024-01-02 03:04:05", "2024-01-02T03:04:05.1",
        "2024-01-02 03:04:05.123456", "2024-01-02 03:04:05.1234567", "2024-01-02T03:04:05Z",
        "2024-01-02 03:04:05+02:00", "2024-01-02 03:04:05.5-0930", "2024-01-02 03:04:05+02", "2024-03-10 02:30:00",
        "2024", "1700000000", "2024-13-01 00:00:00", "1582-10-10 00:00:00",
    ],
    pa.timestamp("us"): [
        "", "2024-01-02", "2024-01-02 03:04:05", "2024-03-10 02:30:00.000001", "2024-01-02 03:04:05.1234567",
        "2024-01-02 03:04:05Z", "2024-01-02 03:04:05+02:00", "2024-01-02 24:00:00", "9999-12-31 23:59:59.999999",
    ],
}  # fmt: skip
REFUSED = "refused"
ONE_REFUSES = {  # by Spark, or by Arrow; nothing else may differ
    "int32": {" 1", "+2", "0x10"}, "int64": set(), "string": set(), "bool": {"1", "0"}, "date32[day]": set(),
    "double": {"nan", "inf", "1.5d"}, "decimal128(8, 2)": {"1.005"},
    "timestamp[us, tz=UTC]": set(), "timestamp[us]": set(),
}  # fmt: skip


def without_spark(path: Path, types: dict[str, pa.DataType]) -> Any:
    try:
        return InputFiles.find([path], known=types).reader().read_all().to_pylist()
    except InputError:
        return REFUSED


def with_spark(spark: SparkSession, path: Path, types: dict[str, pa.DataType]) -> Any:
    try:
        return read_csv(spark, [str(path)], types).toArrow().to_pylist()
    except (PySparkException, SemistreamError):
        return REFUSED


def shown(value: Any) -> Any:
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def test_values(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text as every type: Spark takes all rows of a type at once and tells which are malformed."""
    monkeypatch.setenv("TZ", "America/New_York")
    one_refuses, wrong = {}, []
    for number, (kind, texts) in enumerate(TEXTS.items()):
        place = tmp_path / f"{number}.csv"
        place.write_text("n,v\n" + "".join(f"{at},{text}\n" for at, text in enumerate(texts)))
        schema = StructType([
            StructField("n", spark_type("n", pa.int32())), StructField("v", spark_type("v", kind)),
            StructField("bad", StringType()),
        ])  # fmt: skip
        options = {**CSV, "header": "true", "columnNameOfCorruptRecord": "bad"}
        rows = spark.read.schema(schema).options(**options).csv(str(place)).toArrow().to_pylist()
        assert [row["n"] for row in rows] == list(range(len(texts)))
        one_refuses[str(kind)] = differing = set()
        for text, row in zip(texts, rows, strict=True):
            place.write_text(f"n,v\n0,{text}\n")
            plain = without_spark(place, {"n": pa.int32(), "v": kind})
            found = (REFUSED if row["bad"] is not None else shown(row["v"]), plain)
            if plain is not REFUSED:
                found = (found[0], shown(plain[0]["v"]))
            if found[0] != found[1]:
                differing.add(text)
                wrong += [] if REFUSED in found else [(str(kind), text, found)]
    assert wrong == []
    assert one_refuses == ONE_REFUSES


FILES = {
    "BOM, CRLF": b'\xef\xbb\xbfid,name\r\n1,x\r\n2,"y\r\nz"\r\n\r\n3,\r\n',
    "other order, more columns": b"more,name,id\n,b,2\nx,a,1\n",
    "no last line end": b'id,name\n1,"a"',
    "header alone": b"id,name\n",
    "a field too few": b"id,name\n1,a\n2\n",
    "a field too many": b"id,name\n1,a\n2,b,c\n",
    "a name twice": b"id,id\n1,2\n",
    "a name twice, not ours": b"id,name,x,x\n1,a,2,3\n",
    "a column without a name": b",id,name\n0,1,a\n",
    "names that end in numbers": b"id,a,a1,a2,name\n1,x,y,z,n\n",
    "a key column less": b"name\nx\n",
    "quoted header": b'"id","name"\n1,x\n',
}


def test_files(spark: SparkSession, tmp_path: Path) -> None:
    types = {"id": pa.int64(), "name": pa.string()}
    found = {}
    for name, text in FILES.items():
        (tmp_path / f"{name}.csv").write_bytes(text)
        plain = without_spark(tmp_path / f"{name}.csv", types)
        if plain is not REFUSED:
            plain = [{key: row[key] for key in sorted(row) if key in types} for row in plain]
        by_spark = with_spark(spark, tmp_path / f"{name}.csv", types)
        if by_spark is not REFUSED:
            by_spark = [dict(sorted(row.items())) for row in by_spark]
        found[name] = (by_spark, plain)
    assert {name: pair for name, pair in found.items() if pair[0] != pair[1]} == {}
    refused = {name for name, pair in found.items() if pair[0] is REFUSED}
    assert refused == {"a field too few", "a field too many", "a name twice", "a name twice, not ours"}


def test_files_together(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,a\n")
    (tmp_path / "b.csv").write_text("name,id\nb,2\nNA,3\n")
    paths = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    types = {"id": pa.int64(), "name": pa.string()}
    rows = read_csv(spark, paths, types, null="NA").sort("id").collect()
    assert [tuple(row) for row in rows] == [(1, "a"), (2, "b"), (3, None)]
    with pytest.raises(SemistreamError, match=r"no column 'nome'; did you mean 'name'\?"):
        read_csv(spark, paths, types, {"nome": pa.string()})
    (tmp_path / "b.csv").write_text("name,id\nb,2\nc,x\n")
    with pytest.raises(
        PySparkException, match=r"MalformedRowError: file:.*b\.csv: this row is malformed: c,x; the col"
    ):
        read_csv(spark, paths, types).collect()
