"""Joins that see only keys, while the stream's other columns stay in the JVM: the same rows as joins that see all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Observation, SparkSession

import semistream
from feeding import feed
from semistream.relation import updates
from semistream.spark.joining.join_plan import plan_join
from semistream.spark.monitoring.metrics import counters_of
from semistream.workloads import ZipfKeys

pytestmark = pytest.mark.spark

ROWS = 3000


@pytest.fixture(scope="module")
def relation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("by_key") / "products"
    ids = np.arange(ROWS)
    columns = {"code": [f"p{i}" for i in ids], "kind": ids % 7, "name": [f"n{i}" * (i % 3) or None for i in ids]}
    semistream.Relation.build(pa.table({**columns, "price": ids}), path, ["code", "kind"], shards=3).close()
    return path


@pytest.fixture
def sales(spark: SparkSession) -> DataFrame:
    """Some keys are not in R, some are NULL, one column has a dot in its name."""
    return spark.range(20_000).selectExpr(
        "id AS sale", "'p' || (id * 7919 % 3500) AS code", "id AS `a.b`",
        "if(id % 50 = 0, NULL, id * 7919 % 3500 % 7) AS kind",
    )  # fmt: skip


def rows_of(joined: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, joined.collect()))


@pytest.mark.sampled
@pytest.mark.parametrize("on_missing", ["null", "drop", "dead_letter"])
def test_the_same_rows_and_counters_as_of_whole_rows(
    sales: DataFrame, relation: Path, on_missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for by_key, hold in ((True, None), (True, False), (False, False)):
        told = Observation("told")
        given: dict[str, Any] = {"on": ["code", "kind"], "on_missing": on_missing, "memory": "3MB"}
        assert plan_join(sales, relation, **given, apart=False).algorithm.by_key is False
        more: dict[str, Any] = {"hold": hold} if by_key else {"apart": on_missing == "dead_letter"}
        planned = plan_join(sales, relation, **given, **more).algorithm
        assert (planned.by_key, planned.held) == (by_key, by_key and hold is None)
        joined = semistream.join(sales, relation, **given, **more, metrics=told, missing_keys=on_missing != "drop")
        twice = semistream.join(
            joined, relation, on=["code", "kind"], memory="3MB", columns=["price"], suffix="_2", **more
        )
        found.append((joined.schema, rows_of(joined), counters_of(told.get), twice.schema, rows_of(twice)))
    other, expected, other_counted, other2, expected2 = found.pop()
    for schema, rows, counted, schema2, rows2 in found:
        for one, same in ((schema, other), (schema2, other2)):  # NULLs may be in fewer columns
            assert [(part.name, part.dataType) for part in one] == [(part.name, part.dataType) for part in same]
        partners = sum(sale % 50 != 0 and sale * 7919 % 3500 < ROWS for sale in range(20_000))
        assert len(rows) == (partners if on_missing == "drop" else 20_000)
        assert rows == expected
        assert rows2 == expected2
        for name in ("rows_in", "rows_done", "null_keys", "unmatched"):
            assert counted[name] == other_counted[name], name
        assert counted["rows_out"] == partners if on_missing != "null" else 20_000
        assert bool(counted["missing"]) == bool(other_counted["missing"]) == (on_missing != "drop")
    assert found[1][2]["tasks"] == other_counted["tasks"]


def test_parts_go_by_their_own_number(spark: SparkSession, sales: DataFrame, relation: Path) -> None:
    """A task's number is another than its part's when its results are coalesced, or stand after others in a union."""
    for options in ({}, {"algorithm": "cachejoin"}):
        joined = semistream.join(sales, relation, on=["code", "kind"], memory="3MB", **options)
        expected = joined.where("price IS NULL").count()
        assert 0 < expected < 4000
        assert joined.coalesce(1).where("price IS NULL").count() == expected
        others = sales.selectExpr("*", "'other' AS name", "-1L AS price")
        assert others.union(joined).where("price IS NULL").count() == expected


@pytest.mark.long
def test_a_version_with_several_rows_a_key_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "r"
    hot = next(int(key) for key in ZipfKeys(65_000, 1.0, "random", seed=9).hottest(9) if key < 60_000)
    semistream.Relation.build(pa.table({"id": range(60_000), "price": [0] * 60_000}), path, "id", shards=2).close()
    with feed(spark, path, tmp_path / "query") as fed:
        fed.add(0, 100)
        updates.upsert(path, pa.table({"id": [hot, hot], "price": [1, 2]}))
        with pytest.raises(
            StreamingQueryException, match=r"several rows per key.*restart the query from its checkpoint"
        ):
            fed.add(1)
    with feed(spark, path, tmp_path / "query") as fed:
        assert fed.query.isActive
        fed.query.processAllAvailable()
    facts = spark.read.parquet(str(tmp_path / "query" / "facts"))
    assert facts.where(f"id = {hot} AND price = 2").count() == facts.where(f"id = {hot} AND price = 1").count() > 0


@pytest.mark.sampled
@pytest.mark.parametrize("options", [{}, {"algorithm": "inlj"}], ids=["keys", "rows"])
def test_micro_batches_run_what_the_first_has_compiled(
    spark: SparkSession, tmp_path: Path, options: dict[str, str]
) -> None:
    """The time of each was a constant of what Spark generates, so all of that was new in every one."""
    compiled = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    ids = np.arange(2000)
    semistream.Relation.build(pa.table({"id": ids, "price": ids % 1000}), tmp_path / "r", "id", shards=2).close()
    with feed(spark, tmp_path / "r", tmp_path / "query", **options) as fed:
        for number in (0, 1):
            fed.add(number, 200)
        before = compiled.getCount()
        for number in (2, 3, 4):
            fed.add(number, 200)
        assert compiled.getCount() == before
        fed.check(spark, lambda key: key % 1000 if key < 2000 else None)
