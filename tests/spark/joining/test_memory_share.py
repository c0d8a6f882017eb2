"""A share of R as the memory of a join on Spark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import semistream
from semistream.core.errors import BudgetTooSmallError
from semistream.core.units import whole_relation
from semistream.spark.joining.join_plan import plan_join

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("share") / "stores"
    table = pa.table({"id": np.arange(500), "town": [f"town {i}" for i in range(500)]})
    semistream.Relation.build(table, path, "id", shards=8).close()
    return path


@pytest.mark.parametrize("memory", ["1%", "100%"])
@pytest.mark.parametrize("algorithm", ["adaptivejoin", "cachejoin"])
def test_no_share_of_a_few_rows_is_refused(spark: SparkSession, stores: Path, memory: str, algorithm: str) -> None:
    sales = spark.range(600).withColumnRenamed("id", "store")
    joined = semistream.join(sales, stores, on="store", memory=memory, algorithm=algorithm)
    assert {row.store: row.town for row in joined.collect()} == {
        n: f"town {n}" if n < 500 else None for n in range(600)
    }


def test_a_plan_says_what_a_share_comes_to(spark: SparkSession, stores: Path) -> None:
    sales = spark.readStream.format("rate").load().selectExpr("value AS store")
    with semistream.Relation.open(stores) as relation:
        whole = whole_relation(relation.nbytes, relation.row_count)
    for more in ({}, {"on_missing": "park", "park_for": "1 day"}):
        memory = plan_join(sales, stores, on="store", memory="5%", hold=False, **more).memory  # type: ignore[arg-type]
        assert memory.total >= whole
        assert memory.total - 2 * memory.tasks < memory.tasks * (memory.share + memory.parked) <= memory.total
        assert memory.share >= memory.least
    with pytest.raises(BudgetTooSmallError, match="too small"):
        plan_join(sales, stores, on="store", memory="100KB", hold=False)
