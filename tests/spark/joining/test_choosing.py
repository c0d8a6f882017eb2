"""``algorithm="auto"`` on Spark: exact, chosen on the driver, and once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import semistream
from semistream.core.errors import BudgetTooSmallError, KeyColumnError
from semistream.joins import find
from semistream.relation.storage import manifest as manifests
from semistream.spark.joining import choosing

pytestmark = pytest.mark.spark

ROWS = 20_000


@pytest.fixture(scope="module")
def relation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("auto") / "relation"
    table = pa.table({"id": np.arange(ROWS), "name": [f"product {i}" for i in range(ROWS)]})
    semistream.Relation.build(table, path, key="id", shards=2).close()
    return path


def test_it_is_exact_and_chosen_once(spark: SparkSession, relation: Path, monkeypatch: pytest.MonkeyPatch):
    sales = spark.range(5_000).selectExpr("id AS sale", "pmod(id * 7919, 25000) AS id")
    asked: list[Any] = []
    monkeypatch.setattr(
        choosing, "_fastest", lambda *given, real=choosing._fastest: asked.append(given) or real(*given)
    )
    for _ in range(2):
        joined = semistream.join(sales, relation, on="id", how="left", memory="20%", algorithm="auto", exponent=0.8)
    assert len(asked) == 1
    rows = joined.toArrow().sort_by("sale")
    keys = [sale * 7919 % 25_000 for sale in range(5_000)]
    assert rows["id"].to_pylist() == keys
    assert rows["name"].to_pylist() == [f"product {key}" if key < ROWS else None for key in keys]


def test_it_keeps_a_cache_between_batches(relation: Path):
    schema = pa.schema([("sale", pa.int64()), ("id", pa.int64())])
    with semistream.Relation.open(relation, shards=[1]) as shard:
        algorithm, options = choosing.choose_join(
            shard, manifests.load(relation).shards[1], shard.nbytes // 5, schema, {"how": "left"}
        )
    assert algorithm == "adaptivejoin"
    assert options == {"how": "left"}
    assert find(algorithm).keeps_cache


def test_another_join_must_be_clearly_faster(monkeypatch: pytest.MonkeyPatch):
    rates = {"adaptivejoin": 2.0, "cachejoin": 2.9, "front+inlj": 1.0, "front+x_hybridjoin": 1.0, "front+ssij": 1.0}
    monkeypatch.setattr(choosing, "costs_of", lambda name: name)
    monkeypatch.setattr(choosing, "best_split", lambda name, *_, fixed: SimpleNamespace(rate=rates[name]))
    assert choosing._fastest(None, 1, 0.8) == "adaptivejoin"
    rates["cachejoin"] = 3.1
    assert choosing._fastest(None, 1, 0.8) == "cachejoin"


def test_the_driver_opens_r_once(spark: SparkSession, relation: Path, monkeypatch: pytest.MonkeyPatch):
    opened: list[Any] = []
    monkeypatch.setattr(
        semistream.Relation, "open",
        classmethod(lambda cls, *given, whole=semistream.Relation.open, **options: (
            opened.append(options) or whole(*given, **options)
        )),
    )  # fmt: skip
    sales = spark.readStream.format("rate").load().selectExpr("value AS id", "timestamp AS at")
    joined = semistream.join(
        sales, relation, on="id", memory="4MB", algorithm="auto", on_missing="park", park_for="1 hour", metrics="r"
    )
    assert joined.columns == ["id", "at", "name"]
    assert len(opened) == 1
    assert len(opened[0]["shards"]) == 1  # nor does the driver hold the index of all of R


def test_mistakes_are_found_on_the_driver(spark: SparkSession, relation: Path):
    sales = spark.range(10)
    with pytest.raises(KeyColumnError):
        semistream.join(sales, relation, on="other", memory="20%", algorithm="auto")
    with pytest.raises(BudgetTooSmallError, match="for each of its 2 shards"):
        semistream.join(sales, relation, on="id", memory="4KB", algorithm="auto")
