"""Only the columns of R that are asked for, and one of them in the place of the key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import semistream
from semistream.core.errors import KeyTypeError, UnknownColumnsError, UnsupportedJoinError

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


def test_what_is_wrong_is_told_at_once(spark: SparkSession, relation: Path) -> None:
    sales = spark.range(3)
    for wrong in (["title"], ["name", "name"], "name", ["id"]):
        with pytest.raises(UnknownColumnsError, match="must name columns of R, each once: key, name, price, at"):
            semistream.join(sales, relation, on="id", columns=wrong)
    with pytest.raises(UnknownColumnsError, match=r"columns=\['code'\]"):
        semistream.join(sales, relation, on="id", surrogate="code")
    with pytest.raises(UnsupportedJoinError, match="name that column: surrogate"):
        semistream.join(sales, relation, on="id", unknown=-1)
    with pytest.raises(UnsupportedJoinError, match="the stream has a column 'key' too; rename it"):
        semistream.join(sales.selectExpr("id", "id AS KEY"), relation, on="id", surrogate="key")
    with pytest.raises(KeyTypeError, match=r"'id' has the collation UTF8_LCASE.*byte by byte"):
        semistream.join(sales.selectExpr("string(id) COLLATE UTF8_LCASE AS id"), relation, on="id")
    with pytest.raises(UnsupportedJoinError, match="one key column, not of 2"):
        semistream.join(sales, relation, on=["id", "id"], surrogate="key")
