"""Only the columns of R that are asked for, and one of them in the place of the key."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import pyspark.sql.types as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import semistream
from semistream.core.errors import KeyColumnError, KeyTypeError, UnknownColumnsError, UnsupportedJoinError
from semistream.spark.joining.missing import unknown_value

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def relation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("columns") / "r"
    ids = np.arange(0, 4000, 2)
    table = pa.table({"id": ids, "key": ids + 10**6, "name": [f"n{i}" for i in ids], "price": ids % 100, "at": ids})
    semistream.Relation.build(table, path, "id", shards=2).close()
    return path


@pytest.mark.parametrize("algorithm", ["adaptivejoin", "cachejoin", "ssij"])
def test_only_those_asked_for_in_their_order(spark: SparkSession, relation: Path, algorithm: str) -> None:
    sales = spark.range(300).selectExpr("id AS sale", "id * 17 % 4400 AS id", "id AS at")
    joined = semistream.join(sales, relation, on="id", memory="2MB", algorithm=algorithm, columns=["at", "name"])
    assert joined.columns == ["sale", "id", "at", "at_right", "name"]
    for row in joined.collect():
        there = row.id % 2 == 0 and row.id < 4000
        assert (row.at_right, row.name) == ((row.id, f"n{row.id}") if there else (None, None))
    none = semistream.join(sales, relation, on="id", how="inner", memory="2MB", algorithm=algorithm, columns=[])
    assert none.columns == ["sale", "id", "at"]
    assert none.count() == sum(n * 17 % 4400 % 2 == 0 and n * 17 % 4400 < 4000 for n in range(300))


def test_a_surrogate_takes_the_place_of_the_key(spark: SparkSession, relation: Path) -> None:
    sales = spark.range(300).selectExpr("id AS sale", "id * 17 % 4400 AS id", "id AS more")
    joined = semistream.join(
        sales, relation, on="id", memory="2MB", columns=["price"], surrogate="key", unknown=-1, on_missing="dead_letter"
    )
    assert joined.columns == ["sale", "key", "more", "missing_in", "price"]
    for row in joined.collect():
        key = row.sale * 17 % 4400
        there = key % 2 == 0 and key < 4000
        assert (row.key, row.price, row.missing_in) == ((key + 10**6, key % 100, None) if there else (-1, None, "r"))
    every = semistream.join(sales, relation, on="id", surrogate="key")
    assert every.columns == ["sale", "key", "more", "name", "price", "at"]


def test_two_joins_with_one_relation_have_a_prefix_each(spark: SparkSession, relation: Path) -> None:
    sales = spark.range(20).selectExpr("id * 2 AS seller", "id * 4 AS buyer", "id AS name")
    settings: dict[str, Any] = {"memory": "2MB", "surrogate": "key", "columns": ["name"]}
    joined = semistream.join(sales, relation, on="seller", **settings)
    joined = semistream.join(joined, relation, on="buyer", prefix="buyer_", unknown=-1, **settings)
    assert joined.columns == ["key", "buyer_key", "name", "name_right", "buyer_name"]
    for row in joined.collect():
        seller, buyer = row.name * 2, row.name * 4
        assert tuple(row) == (seller + 10**6, buyer + 10**6, row.name, f"n{seller}", f"n{buyer}")
    with pytest.raises(UnsupportedJoinError, match=r"the stream already has a column 'key'; .*give prefix"):
        semistream.join(semistream.join(sales, relation, on="seller", **settings), relation, on="buyer", **settings)
    clashing = sales.selectExpr("seller", "1 AS a_name", "2 AS a_name_right")
    with pytest.raises(
        KeyColumnError,
        match=r"'name' would be called 'a_name_right' in .* stream's column 'a_name_right'; .* prefix other than 'a_'",
    ):
        semistream.join(clashing, relation, on="seller", columns=["name"], prefix="a_")


DAY, MOMENT = datetime.date(2026, 3, 1), datetime.datetime(2026, 3, 1, 2, 30)
SURROGATES = {
    "small": pa.array([1, 2], pa.int32()), "exact": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
    "code": pa.array(["a", "b"]), "share": pa.array([0.5, 1.5], pa.float32()), "wide": pa.array([1, 2], pa.uint64()),
    "day": pa.array([DAY, DAY]), "wall": pa.array([MOMENT, MOMENT], pa.timestamp("us")),
    "instant": pa.array([MOMENT, MOMENT], pa.timestamp("us", "UTC")), "parts": pa.array([[1], [2]]),
}  # fmt: skip


@pytest.fixture(scope="module")
def dimension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("surrogates") / "r"
    semistream.Relation.build(pa.table({"id": [1, 2]} | SURROGATES), path, "id").close()
    return path


@pytest.fixture(params=["true", "false"], ids=["ansi", "no ansi"])
def ansi(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", request.param)
    yield
    spark.conf.set("spark.sql.ansi.enabled", str(before))


@pytest.mark.usefixtures("ansi")
def test_an_unknown_key_is_the_value_that_was_given(spark: SparkSession, dimension: Path) -> None:
    integer, decimal, day = st.IntegerType(), st.DecimalType(9, 2), st.DateType()
    fitting: list[tuple[st.DataType, Any, Any]] = [
        (integer, -1, -1), (integer, " -1", -1), (integer, 3.0, 3), (integer, Decimal("4.00"), 4),
        (decimal, "-1", Decimal("-1.00")), (decimal, 2.5, Decimal("2.50")), (st.StringType(), "none", "none"),
        (st.StringType(), -1, "-1"), (st.FloatType(), 0.25, 0.25), (day, "1900-01-01", datetime.date(1900, 1, 1)),
        (st.DecimalType(20, 0), 2**64 - 1, Decimal(2**64 - 1)), (day, DAY, DAY),
        (st.TimestampNTZType(), MOMENT, MOMENT), (st.TimestampNTZType(), "2026-03-01 02:30:00", MOMENT),
    ]  # fmt: skip
    columns = [F.lit(unknown_value(given, "key", kind)).cast(kind) for kind, given, _ in fitting]
    instant = F.lit(unknown_value(MOMENT.replace(tzinfo=datetime.UTC), "key", st.TimestampType())).cast("timestamp")
    found = spark.range(1).select(*columns, F.unix_seconds(instant)).first()
    assert found == (*(expected for _, _, expected in fitting), MOMENT.replace(tzinfo=datetime.UTC).timestamp())
    sales = spark.createDataFrame([(7,)], "id long")
    joined = semistream.join(sales, dimension, on="id", columns=[], surrogate="small", unknown=" -1")
    assert joined.first() == (-1,)


@pytest.mark.usefixtures("ansi")
def test_an_unknown_key_that_would_become_another_value_is_refused(spark: SparkSession, dimension: Path) -> None:
    sales = spark.createDataFrame([(7,)], "id long")
    for surrogate, given, kind in (
        ("small", 3.7, "int"), ("small", 2**40, "int"), ("small", "abc", "int"), ("small", "3.7", "int"),
        ("small", 2**70, "int"), ("small", "", "int"), ("small", float("nan"), "int"), ("small", DAY, "int"),
        ("exact", "1.005", r"decimal\(9,2\)"), ("exact", 10**8, r"decimal\(9,2\)"), ("share", 0.1, "float"),
        ("share", 2**24 + 1, "float"), ("day", "2026-02-30", "date"), ("day", MOMENT, "date"),
        ("wide", 10**20, "decimal"), ("parts", 1, "array<bigint>"),
    ):  # fmt: skip
        with pytest.raises(UnsupportedJoinError, match=rf"'{surrogate}' of type {kind}.* cannot hold exactly; give"):
            semistream.join(sales, dimension, on="id", surrogate=surrogate, unknown=given)


def test_deadlines_are_refused(spark: SparkSession, dimension: Path) -> None:
    """Rows past their deadline were dropped, in no counter, and the deadline was compared with a task's own clock."""
    sales = spark.createDataFrame([(1, 5)], "id long, n long")
    for options in (
        {"deadline": "n"}, {"deadline": "n", "on_overload": "shed"}, {"on_overload": "shed"}, {"on_overload": "block"},
        {"algorithm": "ssij", "deadline": 0.5},
    ):  # fmt: skip
        with pytest.raises(UnsupportedJoinError, match=r"(deadline|on_overload).* does not work on Spark.*filter"):
            semistream.join(sales, dimension, on="id", how="left", **options)  # type: ignore[arg-type]


def test_what_is_wrong_is_told_at_once(spark: SparkSession, relation: Path) -> None:
    sales = spark.range(3)
    for wrong in (["title"], ["name", "name"], "name", ["id"]):
        with pytest.raises(UnknownColumnsError, match="must name columns of R, each once: key, name, price, at"):
            semistream.join(sales, relation, on="id", columns=wrong)
    with pytest.raises(UnknownColumnsError, match=r"columns=\['code'\]"):
        semistream.join(sales, relation, on="id", surrogate="code")
    with pytest.raises(UnsupportedJoinError, match="name the surrogate column too"):
        semistream.join(sales, relation, on="id", unknown=-1)
    with pytest.raises(UnsupportedJoinError, match="the stream already has a column 'key'; rename it"):
        semistream.join(sales.selectExpr("id", "id AS KEY"), relation, on="id", surrogate="key")
    with pytest.raises(KeyTypeError, match=r"'id' has the collation UTF8_LCASE.*byte by byte"):
        semistream.join(sales.selectExpr("string(id) COLLATE UTF8_LCASE AS id"), relation, on="id")
    with pytest.raises(UnsupportedJoinError, match="a key of one column, but this key has 2"):
        semistream.join(sales, relation, on=["id", "id"], surrogate="key")
