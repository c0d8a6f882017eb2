"""Warm caches in streaming queries: more shards than workers, workers that come and go, versions, and the bound."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import semistream
from semistream.relation import versions
from semistream.spark.warm import places
from semistream.stream import ZipfKeys

pytestmark = pytest.mark.spark

ROWS, SHARDS, BATCH = 60_000, 6, 5_000
MEMORY = 4_000_000


@pytest.fixture(scope="module")
def relation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """R: six shards, and no more than two tasks run at once."""
    path = tmp_path_factory.mktemp("warm") / "products"
    ids = np.arange(ROWS)
    table = pa.table({"id": ids, "price": ids % 1000, "name": [f"product {i}" for i in range(ROWS)]})
    semistream.Relation.build(table, path, key="id", shards=SHARDS, page_size=4096).close()
    return path


class Feed:
    """A query over files that come one by one, each a micro-batch."""

    def __init__(self, spark: SparkSession, relation: Path, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.files: list[pa.Table] = []
        (folder / "in").mkdir(parents=True, exist_ok=True)
        stream = spark.readStream.schema("id long, sale long").option("maxFilesPerTrigger", 1).parquet(f"{folder}/in")
        joined = semistream.join(stream, relation, on="id", how="left", memory=MEMORY, metrics="join", **options)
        self.query: StreamingQuery = (
            joined.writeStream.format("parquet")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .option("path", str(folder / "facts"))
            .start()
        )

    def add(self, number: int, rows: int = BATCH) -> dict[str, Any]:
        """Run one micro-batch; return what its tasks counted."""
        self.give(number, rows)
        self.query.processAllAvailable()
        return self.counters()[-1]

    def give(self, number: int, rows: int = BATCH) -> None:
        keys = ZipfKeys(ROWS + 5000, 1.0, "random", seed=9).keys(number * BATCH, rows)  # some are not in R
        table = pa.table({"id": keys, "sale": np.arange(number * BATCH, number * BATCH + rows)})
        pq.write_table(table, self.folder / "file.parquet")
        (self.folder / "file.parquet").rename(self.folder / "in" / f"{number:05d}.parquet")
        self.files.append(table)

    def counters(self) -> list[dict[str, Any]]:
        found = [progress["observedMetrics"].get("join") for progress in self.query.recentProgress]
        counted = [row if isinstance(row, dict) else row.asDict() for row in found if row is not None]
        return [row for row in counted if row["rows_in"]]

    @property
    def caches(self) -> list[Path]:
        return [root / self.query.id for root in places() if (root / self.query.id).exists()]

    @property
    def cache_bytes(self) -> int:
        """Memory that the caches hold, tasks running or not."""
        return sum(file.stat().st_blocks * 512 for root in self.caches for file in root.rglob("*.array"))

    def check(self, spark: SparkSession, price: Callable[[int], int | None]) -> None:
        """Compare all that came out with what should have."""
        expected = Counter(
            (sale, key, price(key))
            for table in self.files
            for key, sale in zip(*table.to_pydict().values(), strict=True)
        )
        facts = spark.read.parquet(str(self.folder / "facts")).select("sale", "id", "price").toArrow()
        assert Counter(zip(*facts.to_pydict().values(), strict=True)) == expected


def price_of(key: int) -> int | None:
    return key % 1000 if key < ROWS else None


@contextmanager
def feed(spark: SparkSession, relation: Path, folder: Path, **options: Any) -> Iterator[Feed]:
    fed = Feed(spark, relation, folder, **options)
    try:
        yield fed
    finally:
        fed.query.stop()


def hit_ratio(counters: dict[str, Any]) -> float:
    return float(counters["cache_hits"] / counters["rows_done"])


def workers() -> list[psutil.Process]:
    """Return the Python workers of this session: children of Spark's daemon."""
    parents: dict[psutil.Process, int] = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # gone meanwhile
            if "daemon" in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                parents[process] = process.ppid()
    daemons = {process.pid for process in parents}
    return [process for process, parent in parents.items() if parent in daemons]


def test_hit_ratio_rises_and_stays_within_the_bound(spark: SparkSession, relation: Path, tmp_path: Path) -> None:
    with feed(spark, relation, tmp_path / "warm") as warm, feed(spark, relation, tmp_path / "cold", warm=False) as cold:
        counted = [warm.add(number) for number in range(10)]
        again = [cold.add(number) for number in range(4)]
        assert len(workers()) < SHARDS
        assert cold.caches == []
        held, hot, never = warm.cache_bytes, [hit_ratio(one) for one in counted], [hit_ratio(one) for one in again]
        directories = list(warm.caches[0].glob("*/shard-*"))
        warm.check(spark, price_of)
        cold.check(spark, price_of)
    assert [one["tasks"] for one in counted] == [SHARDS] * 10
    assert len(directories) == SHARDS
    assert abs(hot[0] - never[0]) < 0.01
    assert hot[-1] > never[-1] + 0.2, (hot, never)
    assert min(hot[5:]) > hot[0] + 0.2, hot
    assert counted[-1]["appended"] < 0.7 * again[-1]["appended"], "tuples that had to wait for a page"
    # What is held between micro-batches is part of what the tasks reserve, and that is within the bound.
    assert all(0 < one["bytes_held"] <= one["memory"] <= MEMORY for one in counted)
    assert MEMORY / 4 < held <= MEMORY
    assert held <= max(one["bytes_held"] for one in counted) + 4096 * 16 * SHARDS  # files end with a whole page


def test_caches_are_gone_when_the_query_ends(spark: SparkSession, relation: Path, tmp_path: Path) -> None:
    with feed(spark, relation, tmp_path) as fed:
        fed.add(0)
        caches = fed.caches
        assert caches
    for _ in range(100):
        if not any(cache.exists() for cache in caches):
            break
        time.sleep(0.1)
    assert not any(cache.exists() for cache in caches)


def test_caches_outlive_the_workers(spark: SparkSession, relation: Path, tmp_path: Path) -> None:
    with feed(spark, relation, tmp_path) as fed:
        ratios = [hit_ratio(fed.add(number)) for number in range(5)]
        before = workers()
        assert before
        for process in before:
            process.kill()
        psutil.wait_procs(before, timeout=10)
        ratios.append(hit_ratio(fed.add(5)))
        assert {process.pid for process in workers()}.isdisjoint(process.pid for process in before)
        fed.check(spark, price_of)
    assert ratios[-1] > ratios[0] + 0.15, ratios


def test_workers_killed_at_random_cost_no_row(spark: SparkSession, relation: Path, tmp_path: Path) -> None:
    rng = random.Random(4)
    stop = threading.Event()
    killed = []

    def kill_now_and_then() -> None:
        # Spark gives a task up after three failures, so at most two for each micro-batch.
        batch, kills = -1, 0
        while not stop.wait(rng.uniform(0.5, 2.0)):
            progress = fed.query.lastProgress
            if progress is not None and progress["batchId"] != batch:
                batch, kills = progress["batchId"], 0
            if kills < 2 and (found := workers()):
                os.kill(rng.choice(found).pid, signal.SIGKILL)
                killed.append(time.monotonic())
                kills += 1

    with feed(spark, relation, tmp_path) as fed:
        fed.add(0)
        killer = threading.Thread(target=kill_now_and_then)
        killer.start()
        try:
            for number in range(1, 13):
                fed.give(number, 4 * BATCH)
            fed.query.processAllAvailable()
        finally:
            stop.set()
            killer.join()
        fed.add(13)
        fed.check(spark, price_of)
    assert killed


def test_a_new_version_is_never_served_from_an_old_cache(spark: SparkSession, relation: Path, tmp_path: Path) -> None:
    ids = np.arange(ROWS)
    path = tmp_path / "products"
    semistream.Relation.build(pa.table({"id": ids, "price": ids % 1000}), path, key="id", shards=SHARDS).close()
    keys = ZipfKeys(ROWS + 5000, 1.0, "random", seed=9)
    hottest = [int(key) for key in keys.hottest(3) if key < ROWS]
    with feed(spark, path, tmp_path / "query") as fed:
        ratios = [hit_ratio(fed.add(number)) for number in range(4)]
        old = list(fed.files)
        versions.upsert(path, pa.table({"id": hottest[:1], "price": [-1]}))
        versions.delete(path, pa.array(hottest[1:]))
        ratios += [hit_ratio(fed.add(number)) for number in range(4, 7)]
        assert len(list(fed.caches[0].glob("*/shard-*"))) == SHARDS, "caches of two versions at once"
        changed = dict.fromkeys(hottest[1:]) | {hottest[0]: -1}
        facts = (
            spark.read.parquet(str(tmp_path / "query" / "facts")).select("sale", "id", "price").toArrow().to_pydict()
        )
    last_old = max(table["sale"].to_numpy().max() for table in old)
    for sale, key, price in zip(*facts.values(), strict=True):
        assert price == (price_of(key) if sale <= last_old else changed.get(key, price_of(key))), (sale, key)
    # Shards that the update did not touch keep their caches.
    assert ratios[4] > ratios[0] + 0.05, ratios
