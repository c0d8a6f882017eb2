"""As-of joins on Spark: each row meets the version that was valid at its time, as in DuckDB and Spark's own join."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, Observation, SparkSession

import semistream
from sales_histories import MOMENT, build, expected, history, matched, rows_of, sales_of, without_key
from semistream.core.errors import KeyColumnError, KeyTypeError, RelationBuildError, UnsupportedJoinError
from semistream.relation.relation import Relation

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    path = tmp_path_factory.mktemp("histories") / "products"
    return path, build(path, history())


@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("how", ["left", "inner"])
def test_it_is_what_duckdb_says(spark: SparkSession, products: tuple[Path, pa.Table], how: Any, hold: bool) -> None:
    path, table = products
    sales = sales_of(1)
    frame = spark.createDataFrame(sales).repartition(3)
    joined = semistream.join(frame, path, on="id", as_of="at", how=how, hold=hold, memory="4MB")
    plan = joined._jdf.queryExecution().analyzed().toString()
    assert plan.count("semistream_join(") == 1, "only the key and the time go to Python"
    found = rows_of(joined)
    assert found == expected(sales, table, how)
    assert sum(count for row, count in found.items() if row[5] is not None) > 300


@pytest.mark.parametrize("algorithm", ["inlj", "oracle", "auto"])
def test_other_algorithms(spark: SparkSession, products: tuple[Path, pa.Table], algorithm: str) -> None:
    path, table = products
    sales = sales_of(2, 200)
    joined = semistream.join(
        spark.createDataFrame(sales), path, on="id", as_of="at", algorithm=algorithm, hold=False, memory="4MB"
    )
    assert rows_of(joined) == expected(sales, table)


def test_spark_says_the_same(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own as-of join, of a history without ends that Spark builds; with a composite key and local times."""
    rows = spark.createDataFrame(history()).selectExpr(
        "id", "CAST(id % 3 AS string) AS shop", "to_timestamp_ntz(date_format(since, 'yyyy-MM-dd HH:mm:ss')) AS since",
        "price",
    )  # fmt: skip
    semistream.spark.build(rows, tmp_path / "r", key=["id", "shop"], shards=2, page_size=2048, valid_from="since")
    facts = spark.createDataFrame(sales_of(3)).selectExpr(
        "n", "id", "CAST(id % 3 AS string) AS shop", "to_timestamp_ntz(date_format(at, 'yyyy-MM-dd HH:mm:ss')) AS at"
    )
    joined = semistream.join(facts, tmp_path / "r", on=["id", "shop"], as_of="at", hold=False)
    rows.createOrReplaceTempView("as_of_rows")
    facts.createOrReplaceTempView("as_of_facts")
    spark.conf.set("spark.sql.join.asofJoin.enabled", "true")
    try:
        theirs = spark.sql(
            "SELECT s.n, r.since, r.price FROM as_of_facts s LEFT ASOF JOIN as_of_rows r "
            "MATCH_CONDITION (s.at >= r.since) ON s.id = r.id AND s.shop = r.shop"
        ).collect()
    finally:
        spark.conf.unset("spark.sql.join.asofJoin.enabled")
    assert Counter(map(tuple, joined.select("n", "since", "price").collect())) == Counter(map(tuple, theirs))
    assert sum(row.price is not None for row in theirs) > 500


@pytest.mark.parametrize(("how", "hold"), [("left", True), ("inner", False)])
def test_metrics_count_rows_with_and_without_a_version(
    spark: SparkSession, products: tuple[Path, pa.Table], how: Any, hold: bool
) -> None:
    """Unknown keys, times outside of all versions, and NULLs in either are rows without a match."""
    path, table = products
    sales, observation = sales_of(5), Observation("products")
    joined = semistream.join(
        spark.createDataFrame(sales), path, on="id", as_of="at", how=how, hold=hold, memory="4MB", metrics=observation
    )
    rows = expected(sales, table)
    assert rows_of(joined) == expected(sales, table, how)
    counted = semistream.spark.counters_of(observation.get) or {}
    found, nulls = matched(rows).total(), without_key(rows).total()
    assert 0 < nulls < 1500 - found
    assert counted["rows_in"] == counted["rows_done"] == 1500
    assert (counted["rows_out"], counted["unmatched"]) == (1500 if how == "left" else found, 1500 - found)
    assert counted["null_keys"] == nulls
    assert sum(shard["unmatched"] for shard in counted["shards"]) == 1500 - found


def test_the_session_time_zone_does_not_matter(spark: SparkSession, products: tuple[Path, pa.Table]) -> None:
    path, table = products
    sales = sales_of(4, 300)
    frame = spark.createDataFrame(sales)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        found = [rows_of(semistream.join(frame, path, on="id", as_of="at", hold=hold)) for hold in (True, False)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert found == [expected(sales, table)] * 2


def test_types_of_times(spark: SparkSession, tmp_path: Path) -> None:
    """Dates against local timestamps, and numbers outside of R's type; a time within a day is of that day."""
    days = pa.table({"id": [1, 1], "since": pa.array([10, 20], pa.date32()), "v": [1, 2]})
    Relation.build(days, tmp_path / "days", "id", valid_from="since").close()
    facts = spark.range(14).selectExpr(
        "id", "1 AS k", "timestamp_ntz '1970-01-10 12:00:00' + make_dt_interval(CAST(id AS int)) AS at"
    )
    for hold in (True, False):
        found = semistream.join(facts, tmp_path / "days", on="k", as_of="at", hold=hold).select("id", "v").collect()
        assert dict(map(tuple, found)) == {0: None, **dict.fromkeys(range(1, 11), 1), 11: 2, 12: 2, 13: 2}
    with pytest.raises(KeyTypeError, match=r"'at'.*timestamp\[us, tz=.*'since' is date32.*cast"):
        semistream.join(facts.selectExpr("k", "timestamp(at) AS at"), tmp_path / "days", on="k", as_of="at")
    numbers = pa.table({"id": [1, 1], "since": pa.array([-5, 5], pa.int16()), "v": [1, 2]})
    Relation.build(numbers, tmp_path / "numbers", "id", valid_from="since").close()
    ours = facts.selectExpr("id", "k", "(id - 6) * 100000000000L AS at")
    for hold in (True, False):
        found = semistream.join(ours, tmp_path / "numbers", on="k", as_of="at", hold=hold).select("id", "v").collect()
        assert dict(map(tuple, found)) == {**dict.fromkeys(range(6)), 6: 1, **dict.fromkeys(range(7, 14), 2)}


def test_a_star_of_then_and_now(spark: SparkSession, products: tuple[Path, pa.Table], tmp_path: Path) -> None:
    """Two histories, one read by page and one held, the former again at another time, and a dimension as it is now."""
    path, table = products
    shops = pa.table({
        "shop": ["a", "a", "b"], "begin": pa.array([0, 300, 100], pa.timestamp("s", "UTC")),
        "city": ["Ulm", "Bonn", "Kiel"],
    })  # fmt: skip
    Relation.build(shops, tmp_path / "shops", "shop", valid_from="begin").close()
    Relation.build(pa.table({"shop": ["a", "b"], "owner": ["X", "Y"]}), tmp_path / "owners", "shop").close()
    sales = sales_of(5)
    frame = spark.createDataFrame(sales).selectExpr(
        "*", "IF(n % 3 = 0, 'a', 'b') AS shop", "at + INTERVAL 100 SECOND AS paid"
    )
    joined = semistream.enrich(frame, [
        semistream.dimension(path, on="id", as_of="at", hold=False),
        semistream.dimension(tmp_path / "shops", on="shop", as_of="at", columns=["city"], on_missing="dead_letter"),
        semistream.dimension(tmp_path / "owners", on="shop"),
        semistream.dimension(path, on="id", as_of="paid", columns=["price"], prefix="paid_"),
    ], memory="8MB")  # fmt: skip
    assert joined._jdf.queryExecution().analyzed().toString().count("semistream_join(") == 1
    rows = joined.collect()
    assert len(rows) == sales.num_rows
    later = [None if at is None else at + datetime.timedelta(seconds=100) for at in sales["at"].to_pylist()]
    then = {row[0]: row[5] for row in expected(sales, table)}
    paid = {row[0]: row[5] for row in expected(sales.set_column(2, "at", pa.array(later, MOMENT)), table)}
    assert {row.n: row.price for row in rows} == then
    begins = {"a": [(300, "Bonn"), (0, "Ulm")], "b": [(100, "Kiel")]}
    moments = dict(zip(sales["n"].to_pylist(), sales["at"].to_pylist(), strict=True))
    for row in rows:
        at = moments[row.n]
        city = None if at is None else next((name for t, name in begins[row.shop] if at.timestamp() >= t), None)
        assert row.city == city
        assert row.missing_in == (None if city else "shops")
        assert row.owner == (city and {"a": "X", "b": "Y"}[row.shop])
        assert row.paid_price == (city and paid[row.n])


def test_a_history_built_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    """It is the same as one that is built on one machine; overlaps and missing begins are refused, with examples."""
    table = history()
    frame = spark.createDataFrame(table).repartition(5)
    times = {"valid_from": "since", "valid_to": "until"}
    semistream.spark.build(frame, tmp_path / "r", key="id", shards=3, page_size=1024, **times).close()
    sales = sales_of(6)
    joined = semistream.join(spark.createDataFrame(sales), tmp_path / "r", on="id", as_of="at", hold=False)
    assert rows_of(joined) == expected(sales, table)
    cdc = frame.withColumnsRenamed({"since": "__START_AT", "until": "__END_AT"})
    with semistream.spark.build(cdc, tmp_path / "cdc", key="id", shards=2) as recognised:
        assert recognised.stored.valid_from == "__START_AT"
    with pytest.raises(RelationBuildError, match=r"begin when another row of their key begins, such as \(id"):
        semistream.spark.build(frame.unionAll(frame), tmp_path / "x", key="id", shards=2, valid_from="since")
    unknown = frame.selectExpr("id", "IF(id = 4, NULL, since) AS since")
    with pytest.raises(RelationBuildError, match="have no 'since'"):
        semistream.spark.build(unknown, tmp_path / "x", key="id", shards=2, valid_from="since")
    with pytest.raises(RelationBuildError, match="valid_from='sinse' must name one column"):
        semistream.spark.build(frame, tmp_path / "x", key="id", valid_from="sinse")


def test_what_cannot_work_is_refused(spark: SparkSession, products: tuple[Path, pa.Table], tmp_path: Path) -> None:
    path, _ = products
    frame = spark.createDataFrame(sales_of(0)).selectExpr("*", "timestamp_ntz '2020-01-01' AS wall")

    def joined(relation: Path = path, **options: Any) -> DataFrame:
        return semistream.join(frame, relation, **{"on": "id", "as_of": "at"} | options)

    with pytest.raises(KeyColumnError, match="'sold_at'"):
        joined(as_of="sold_at")
    with pytest.raises(KeyTypeError, match=r"'wall'.*timestamp\[us\].*'since' is timestamp\[us, tz=UTC\].*cast"):
        joined(as_of="wall")
    with pytest.raises(UnsupportedJoinError, match="hybridjoin does not support condition 'as_of'; use 'adaptivejoin'"):
        joined(algorithm="hybridjoin")
    Relation.build(pa.table({"id": [1], "v": [1]}), tmp_path / "plain", "id").close()
    with pytest.raises(UnsupportedJoinError, match=r"needs a history.*valid_from="):
        joined(tmp_path / "plain")
    with pytest.raises(UnsupportedJoinError, match="as_of='at' does not fit condition 'between'"):
        joined(condition="between", on=["n", "id"])
