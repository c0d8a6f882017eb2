"""``semistream bench spark --as-of``: four joins, each with the right row for every event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from semistream_lab.benchmarks.as_of.as_of_data import AsOfPlan, build_as_of, write_as_of
from semistream_lab.benchmarks.as_of.spark_as_of import _Joins, bench_as_of
from semistream_lab.cli.bench.spark import as_of_rates

pytestmark = pytest.mark.spark
PLAN = AsOfPlan(rows=4_000, batch_rows=500, batches=2, warm_up=1, fill_rows=0, spark_batches=2, memory="400KB")


@pytest.mark.long
def test_rates_of_four_joins(spark: SparkSession, tmp_path: Path) -> None:
    write_as_of(PLAN, tmp_path)
    build_as_of(spark, PLAN, tmp_path)
    joins = _Joins(spark, PLAN, tmp_path)
    events = spark.read.parquet(str(PLAN.stream(tmp_path) / "part-00000.parquet"))
    spark.conf.set("spark.sql.join.asofJoin.enabled", "true")
    try:
        for way in (joins.ours, joins.equality, joins.by_spark, joins.by_spark_filter):
            rows = way(events).select("event", "row", "price").collect()
            assert len({row.event for row in rows}) == len(rows) == 500
            assert all(row.price == 3 * row.row for row in rows)
    finally:
        spark.conf.unset("spark.sql.join.asofJoin.enabled")
    found: dict[str, Any] = bench_as_of(spark, PLAN, tmp_path)
    assert set(found["joins"]) == {"ours", "equality", "spark_as_of", "spark_filter"}
    assert found["ratio"] == pytest.approx(found["ours"] / max(found["spark_as_of"], found["spark_filter"]))
    assert found["over_equality"] == pytest.approx(found["ours"] / found["equality"])
    assert as_of_rates(found)
