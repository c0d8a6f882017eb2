"""Filters of absent keys in streaming queries: built by Spark jobs, read by tasks that found them worth it before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import semistream
from feeding import BATCH, ROWS, SHARDS, feed
from forced_filters import filters_built
from semistream.relation.relation import Relation
from semistream.spark import build
from semistream.workloads import ZipfKeys

pytestmark = pytest.mark.spark


def price_of(key: int) -> int | None:
    return key // 2 % 1000 if key % 2 == 0 and key < 2 * ROWS else None


def added_keys() -> list[int]:
    """Return two keys of the second batch that R does not have."""
    keys = ZipfKeys(ROWS + 5000, 1.0, "random", seed=9).keys(BATCH, BATCH)
    return np.unique(keys[keys % 2 == 1])[:2].tolist()


def test_tasks_read_the_filter_that_the_last_task_found_worth_it(spark: SparkSession, tmp_path: Path) -> None:
    ids = np.arange(ROWS)
    table = pa.table({"id": 2 * ids, "price": ids % 1000, "name": [f"product {i}" for i in range(ROWS)]})
    with filters_built():
        Relation.build(table, tmp_path / "r", "id", shards=SHARDS, page_size=512, encoding="plain").close()
    with feed(spark, tmp_path / "r", tmp_path / "q", memory=2_000_000) as fed:
        without = fed.add(0)
        caches = list(fed.caches[0].glob("*/*-of-*"))
        assert len(caches) == SHARDS
        for cache in caches:
            (cache / "filter planes.note").write_text("3")
        one, other = added_keys()
        semistream.upsert(tmp_path / "r", pa.table({"id": [one, other], "price": [0, 1], "name": ["new", "new"]}))
        filtered = fed.add(1)
        fed.add(2)
        facts = spark.read.parquet(str(fed.folder / "facts")).select("id", "price").toArrow().to_pydict()
    found = set(zip(facts["id"], facts["price"], strict=True))
    added = {(one, 0), (other, 1)}
    assert found - added == {(key, price_of(key)) for key, _ in found - added}
    assert added <= found
    # pages between useful ones are read with them
    less = filtered["pages_useful"] / without["pages_useful"]
    assert less < 0.8, f"{less:.2f} of the pages; half of the keys are absent, and both caches were empty"
    assert filtered["bytes_held"] <= filtered["memory"]


def test_spark_jobs_build_and_keep_filters(spark: SparkSession, tmp_path: Path) -> None:
    count = 70_000
    rows = spark.range(count).selectExpr("2 * id as id", "cast(id as int) as n")
    with build(rows, tmp_path / "r", "id", shards=1) as relation:
        built = relation.stored.shards[0].filter
        assert built is not None
        assert built.keys == count
        assert (relation.place / built.file).stat().st_size == built.nbytes
    more = spark.createDataFrame([(1, -1), (2, -2)], "id long, n int")
    semistream.spark.upsert(more, tmp_path / "r")
    with Relation.open(tmp_path / "r") as relation:
        kept = relation.stored.shards[0].filter
        assert kept is not None
        assert (kept.file, kept.added) == (built.file, 1)
        assert relation.lookup([1, 2, 3, 4])["n"].to_pylist() == [-1, -2, None, 2]
    semistream.spark.compact(spark, tmp_path / "r")
    with Relation.open(tmp_path / "r") as relation:
        again = relation.stored.shards[0].filter
        assert again is not None
        assert (again.keys, again.added) == (count + 1, 0)
