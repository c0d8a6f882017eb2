"""Stars in streaming queries: versions of single dimensions change, workers are killed, more tasks than shards."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

import semistream
from feeding import workers
from semistream.spark.joining import shard_budget
from semistream.spark.joining.warm import places
from semistream.spark.monitoring.metrics import counters_of
from semistream.workloads import ZipfKeys

pytestmark = pytest.mark.spark

PRODUCTS, STORES, DAYS, BATCH = 8_000, 30, 40, 4_000
HOT = 17
"""A product of a third of the sales."""


def build(folder: Path, shards: int) -> Path:
    ids, days = np.arange(PRODUCTS), np.arange(DAYS)
    products = pa.table({"id": ids, "price": ids % 1000, "title": [f"product {i}" for i in ids]})
    semistream.Relation.build(products, folder / "products", key="id", shards=shards, page_size=4096).close()
    semistream.Relation.build(pa.table({"day": days, "week": days // 7}), folder / "days", key="day").close()
    stores = pa.table({"store": [f"s{i}" for i in range(STORES)], "region": np.arange(STORES) % 4})
    semistream.Relation.build(stores, folder / "stores", key="store").close()
    return folder


def sales(number: int) -> pa.Table:
    rows = np.arange(number * BATCH, (number + 1) * BATCH)
    products = ZipfKeys(PRODUCTS + 700, 1.0, "random", seed=3).keys(number * BATCH, BATCH)
    products[rows % 3 == 0] = HOT
    return pa.table({
        "sale": rows, "product": pa.array(products, mask=rows % 50 == 1),
        "store": [f"s{i % (STORES + 2)}" for i in rows], "ordered": rows % (DAYS + 1), "shipped": (rows * 7) % DAYS,
    })  # fmt: skip


class Star:
    """A query over files that come one by one."""

    def __init__(self, spark: SparkSession, folder: Path, relations: Path) -> None:
        self.folder, self.count = folder, 0
        (folder / "in").mkdir(parents=True, exist_ok=True)
        schema = "sale long, product long, store string, ordered long, shipped long"
        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(f"{folder}/in")
        self.query = (
            self.joined(stream, relations)
            .writeStream.format("parquet")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .start(f"{folder}/facts")
        )

    @staticmethod
    def joined(stream: DataFrame, relations: Path) -> DataFrame:
        return semistream.enrich(stream, [
            semistream.dimension(relations / "stores", on="store", metrics="stores"),
            semistream.dimension(relations / "products", on="product", metrics="products", memory="3MB", hold=False),
            semistream.dimension(relations / "days", on="ordered", how="inner", prefix="order_", metrics="ordered"),
            semistream.dimension(relations / "days", on="shipped", prefix="ship_", metrics="shipped"),
        ])  # fmt: skip

    def give(self) -> None:
        unfinished = self.folder / "file.parquet"
        pq.write_table(sales(self.count), unfinished)
        unfinished.rename(self.folder / "in" / f"{self.count:05d}.parquet")
        self.count += 1

    def add(self) -> dict[str, dict[str, Any]]:
        self.give()
        self.query.processAllAvailable()
        names = ("stores", "products", "ordered", "shipped")
        told = [one for one in self.query.recentProgress if one["numInputRows"]][-1]["observedMetrics"]
        return {name: counters_of(told[name]) or {} for name in names}

    @property
    def images(self) -> list[str]:
        return sorted(one.name.split("-")[0] for root in places() for one in (root / self.query.id).glob("held-*/0*"))

    def check(self, spark: SparkSession, week_of: Any) -> None:
        found = Counter(map(tuple, spark.read.parquet(f"{self.folder}/facts").collect()))
        expected: Counter[tuple[Any, ...]] = Counter()
        for number in range(self.count):
            for sale, product, store, ordered, shipped in zip(*sales(number).to_pydict().values(), strict=True):
                if ordered >= DAYS:
                    continue
                known = product is not None and product < PRODUCTS
                region = int(store[1:]) % 4 if int(store[1:]) < STORES else None
                values = (product % 1000, f"product {product}") if known else (None, None)
                weeks = week_of(number, ordered), week_of(number, shipped)
                expected[sale, product, store, ordered, shipped, region, *values, *weeks] += 1
        assert found == expected


@contextmanager
def running(spark: SparkSession, folder: Path, relations: Path) -> Iterator[Star]:
    star = Star(spark, folder, relations)
    try:
        yield star
    finally:
        star.query.stop()


@pytest.mark.long
def test_versions_of_a_dimension_change_between_micro_batches(spark: SparkSession, tmp_path: Path) -> None:
    relations = build(tmp_path, shards=1)
    with running(spark, tmp_path / "query", relations) as star:
        first = star.add()
        assert first["products"]["tasks"] == 2, "a relation of one shard, on two cores"
        assert star.images == ["000000000001"] * 2, "days and stores, each once"
        for name, counted in first.items():
            rows = BATCH - sum(sales(0)["ordered"].to_numpy() >= DAYS) if name == "shipped" else BATCH
            assert counted["rows_in"] == counted["rows_done"] == rows, name
        assert first["ordered"]["pages_read"] > 0
        assert first["shipped"]["pages_read"] == first["shipped"]["cache_bytes"] == 0, "held already, for another key"
        assert 0 < first["ordered"]["bytes_held"] <= first["ordered"]["memory"]
        assert first["ordered"]["missing"] == {str(DAYS): BATCH // (DAYS + 1)}
        assert star.add()["ordered"]["pages_read"] == 0
        semistream.upsert(relations / "days", pa.table({"day": [3, 5], "week": [1003, 1005]}))
        assert star.add()["ordered"]["shards"][0]["version"] == 2
        assert star.images == ["000000000001", "000000000002"]
        star.add()
    for _ in range(600):  # a listener removes them
        if star.images == []:
            break
        time.sleep(0.1)
    assert star.images == [], "removed when the query has ended"
    star.check(spark, lambda number, day: 1000 + day if number >= 2 and day in (3, 5) else day // 7)


@pytest.mark.long
def test_eight_tasks_on_two_shards_with_hot_keys_and_kills(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_budget, "parallelism_of", lambda _: 8)
    relations = build(tmp_path, shards=2)
    with running(spark, tmp_path / "query", relations) as star:
        assert star.add()["products"]["tasks"] == 8
        for _ in range(3):
            star.give()
            for process in workers()[:1]:
                os.kill(process.pid, signal.SIGKILL)
            star.query.processAllAvailable()
        counted = star.add()["products"]
        rows = [task["rows_in"] for task in counted["shards"]]
        assert sum(rows) == BATCH
        assert max(rows) < BATCH / 4, "a third of the sales are of one product, and are spread"
        kept = [one.name for root in places() for one in (root / star.query.id).glob("*/*-of-*")]
        assert sorted(kept) == [f"{part:05d}-of-00008" for part in range(8)]
    monkeypatch.setattr(shard_budget, "parallelism_of", lambda _: 4)
    with running(spark, tmp_path / "query", relations) as again:  # from the same checkpoint
        again.count = star.count
        assert again.add()["products"]["tasks"] == 4
        kept = [one.name for root in places() for one in (root / again.query.id).glob("*/*-of-*")]
        assert sorted(kept) == [f"{part:05d}-of-00004" for part in range(4)]
    again.check(spark, lambda _, day: day // 7)
