"""A join whose tuples leave together, with and without a partner, keeps them apart where they are marked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import semistream
from semistream.joins import algorithms, find

pytestmark = pytest.mark.spark

MIXING = [name for name in algorithms() if find(name).mixes]


@pytest.mark.parametrize("algorithm", MIXING)
def test_rows_without_a_partner_are_marked_and_no_others(spark: SparkSession, tmp_path: Path, algorithm: str) -> None:
    products = pa.table({"id": range(0, 4000, 2), "v": range(2000)})
    semistream.Relation.build(products, tmp_path / "r", "id", shards=2).close()
    keys = np.random.default_rng(1).integers(0, 4200, 5000)
    pq.write_table(pa.table({"id": keys, "n": np.arange(keys.size)}), tmp_path / "s.parquet")
    sales = spark.read.parquet(str(tmp_path / "s.parquet"))
    joined = semistream.join(
        sales, tmp_path / "r", on="id", memory="2MB", algorithm=algorithm, on_missing="dead_letter"
    ).toArrow()
    assert sorted(joined["n"].to_pylist()) == list(range(keys.size))
    found = {row["n"]: (row["v"], row["missing_in"] is not None) for row in joined.to_pylist()}
    for number, key in enumerate(keys.tolist()):
        there = key % 2 == 0 and key < 4000
        assert found[number] == (key // 2 if there else None, not there)


def test_there_is_a_join_that_mixes() -> None:
    assert MIXING == ["adaptivejoin"]
