"""A star in one pass: the same rows as a chain of joins and as DuckDB, whatever happens to rows without a partner."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

import semistream
from semistream.spark.joining.star.stage import remembered

pytestmark = pytest.mark.spark

PRODUCTS, CUSTOMERS, STORES, DAYS, SALES = 20_000, 700, 40, 366, 6_000


def tables() -> dict[str, pa.Table]:
    products, customers, stores, days = (np.arange(n) for n in (PRODUCTS, CUSTOMERS, STORES, DAYS))
    segments = [None if i % 9 == 0 else f"s{i % 5}" for i in customers]
    return {
        "products": pa.table({"product": products * 3, "price": products % 997, "title": [f"t{i}" for i in products]}),
        "customers": pa.table({"customer": [f"c{i}" for i in customers], "segment": segments}),
        "stores": pa.table({"store": stores.astype(np.int32), "region": stores % 7, "name": [f"n{i}" for i in stores]}),
        "regions": pa.table({"region": np.arange(5), "country": [f"land {i}" for i in range(5)]}),
        "days": pa.table({"day": days - 50, "weekday": days % 7}),
        # several rows for a key
        "labels": pa.table({"store": np.repeat(stores, stores % 3).astype(np.int32),
                            "label": [f"l{i}" for i in range(int((stores % 3).sum()))]}),
    }  # fmt: skip


@pytest.fixture(scope="module")
def star(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("star")
    shards = {"products": 2, "customers": 3}
    for name, table in tables().items():
        key = table.column_names[0]
        semistream.Relation.build(table, folder / name, key=key, shards=shards.get(name, 1)).close()
    return folder


def sales_table() -> pa.Table:
    rng = np.random.default_rng(7)

    def keys(most: int, null: float) -> pa.Array:
        return pa.array(rng.integers(-5, most, SALES), mask=rng.random(SALES) < null)

    customers = [None if i is None else f"c{i}" for i in keys(CUSTOMERS + 80, 0.03).to_pylist()]
    return pa.table(
        {
            "sale": np.arange(SALES), "product": keys(3 * PRODUCTS + 500, 0.02), "customer": customers,
            "store": keys(STORES + 4, 0.05), "ordered": keys(DAYS, 0.1), "shipped": keys(DAYS - 40, 0.3),
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def sales(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    file = tmp_path_factory.mktemp("sales") / "sales.parquet"
    pq.write_table(sales_table(), file)
    return spark.read.parquet(str(file))


def rows_of(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(map(tuple, frame.collect()))


def by_duckdb(question: str) -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as database:
        for name, table in {**tables(), "sales": sales_table()}.items():
            database.register(name, table)
        return Counter(database.execute(question).fetchall())


WAYS = {"left": "LEFT JOIN", "inner": "JOIN"}


LEFT, MIXED, OTHERS = (
    ("left",) * 5, ("inner", "left", "inner", "left", "left"), ("left", "inner", "left", "inner", "inner"),
)  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("large", "hows"),
    [
        (0, LEFT), (0, OTHERS), (2, MIXED), (2, OTHERS), (None, MIXED),
        *(pytest.param(*both, marks=pytest.mark.long) for both in
          [(0, MIXED), (2, LEFT), (None, LEFT), (None, OTHERS)]),
    ],
)  # fmt: skip
def test_a_star_is_what_duckdb_says(sales: DataFrame, star: Path, hows: tuple[str, ...], large: int | None) -> None:
    """The large relation stands first, in the middle, or there is none; days are used twice."""
    names = ["customers", "stores", "days", "days"]
    keys = ["customer", "store", "ordered", "shipped"]
    names.insert(large or 0, "products")
    keys.insert(large or 0, "product")
    dimensions = [
        semistream.dimension(
            star / name, on=key, how=how, suffix=f"_{number}", metrics=f"{number}",
            hold=False if name == "products" and large is not None else None,
        )
        for number, (name, key, how) in enumerate(zip(names, keys, hows, strict=True))
    ]  # fmt: skip
    found = semistream.enrich(sales, dimensions)
    stage = remembered(found)
    assert stage is not None
    assert len(stage.plans) == 5
    assert [plan.algorithm.held for plan in stage.plans].count(False) == (large is not None)
    joins = [f"{WAYS[how]} {name} AS r{number} ON s.{key} = r{number}.{tables()[name].column_names[0]}"
             for number, (name, key, how) in enumerate(zip(names, keys, hows, strict=True))]  # fmt: skip
    values = [f"r{number}.{column}" for number, name in enumerate(names) for column in tables()[name].column_names[1:]]
    expected = by_duckdb(f"SELECT s.*, {', '.join(values)} FROM sales AS s {' '.join(joins)}")
    assert rows_of(found) == expected
    assert len(expected) > 500


@pytest.mark.long
def test_dead_letters_of_a_star_are_those_of_a_chain(sales: DataFrame, star: Path) -> None:
    def dimensions(hold: bool | None) -> list[tuple[Path, dict[str, Any]]]:
        return [
            (star / "stores", {"on": "store", "on_missing": "dead_letter", "columns": ["region"], "hold": hold}),
            (star / "products", {"on": "product", "on_missing": "dead_letter", "hold": False, "surrogate": "price"}),
            (star / "customers", {"on": "customer", "how": "inner", "hold": hold}),
            (star / "days", {"on": "ordered", "metrics": "days", "hold": hold, "surrogate": "weekday", "unknown": -1}),
        ]

    chain = sales
    for path, settings in dimensions(False):
        chain = semistream.join(chain.select("*"), path, **settings)
    found = semistream.enrich(sales, [semistream.dimension(path, **settings) for path, settings in dimensions(None)])
    assert len(remembered(found).plans) == 4  # type: ignore[union-attr]
    assert found.schema == chain.schema
    assert rows_of(found) == rows_of(chain)
    assert {row.missing_in for row in found.select("missing_in").distinct().collect()} == {None, "stores", "products"}


def test_snowflakes_and_several_rows_a_key_start_another_pass(sales: DataFrame, star: Path) -> None:
    found = semistream.enrich(
        sales,
        [
            semistream.dimension(star / "stores", on="store", columns=["region"]),
            semistream.dimension(star / "regions", on="region"),
            semistream.dimension(star / "labels", on="store", how="inner"),
            semistream.dimension(star / "days", on="ordered"),
        ],
        memory="5%",
    )
    assert [plan.relation.path.name for plan in remembered(found).plans] == ["days"]  # type: ignore[union-attr]
    expected = by_duckdb(
        "SELECT s.*, t.region, country, label, weekday FROM sales AS s LEFT JOIN stores AS t USING (store) "
        "LEFT JOIN regions ON t.region = regions.region JOIN labels ON s.store = labels.store "
        "LEFT JOIN days ON s.ordered = days.day"
    )
    assert rows_of(found) == expected


def test_a_chain_of_joins_is_one_pass(sales: DataFrame, star: Path) -> None:
    chain = semistream.join(sales, star / "stores", on="store")
    chain = semistream.join(chain, star / "customers", on="customer", how="inner")
    chain = semistream.join(chain, star / "products", on="product", hold=False)
    assert len(remembered(chain).plans) == 3  # type: ignore[union-attr]
    assert remembered(chain.where("sale > 3")) is None
    cached = semistream.join(sales, star / "stores", on="store").cache()
    assert remembered(cached) is None
    cached.unpersist()
    expected = by_duckdb(
        "SELECT s.*, region, name, segment, price, title FROM sales AS s LEFT JOIN stores USING (store) "
        "JOIN customers USING (customer) LEFT JOIN products USING (product)"
    )
    assert rows_of(chain) == expected
