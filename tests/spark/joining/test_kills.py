"""Workers and drivers that are killed at random moments: nothing is lost, and nothing doubled.

``SEMISTREAM_KILLS=20`` kills as many of each; by default it is a few.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest
from numpy.typing import NDArray

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import feeding
import semistream
from feeding import (
    BATCH,
    DAYS,
    HELD,
    ROWS,
    STORES,
    build_products,
    build_small_dimensions,
    feed,
    price_of,
    workers,
    write_sales,
)
from sales_histories import KEYS, MOMENT, build, expected, give, history, matched, rows_of
from semistream.relation.versions import pins
from semistream.spark.joining.warm import places
from semistream.workloads import ZipfKeys

pytestmark = pytest.mark.spark

KILLS = int(os.environ.get("SEMISTREAM_KILLS", "0"))


@pytest.mark.sampled
@pytest.mark.parametrize(("held", "packed"), [(False, True), (True, True), (False, False)])
def test_workers_killed_at_random_cost_no_row(spark: SparkSession, tmp_path: Path, held: bool, packed: bool) -> None:
    rng = random.Random(4)
    relation = build_products(tmp_path / "products", packed=packed)
    stop = threading.Event()
    killed: list[float] = []

    def last() -> int:
        progress = fed.query.lastProgress
        return -1 if progress is None else int(progress["batchId"])

    def kill_now_and_then() -> None:
        # Spark gives a task up after three failures, so at most two for each micro-batch.
        batch, kills = -1, 0
        while len(killed) < (KILLS or 4) and not stop.wait(rng.uniform(0.3, 1.5)):
            if batch != last():
                batch, kills = last(), 0
            found = workers() if kills < 2 else []
            if found and batch == last():
                os.kill(rng.choice(found).pid, signal.SIGKILL)
                killed.append(time.monotonic())
                kills += 1

    with feed(spark, relation, tmp_path, **HELD if held else {}) as fed:
        fed.add(0)
        killer = threading.Thread(target=kill_now_and_then)
        killer.start()
        number = 0
        try:
            while killer.is_alive():
                number += 1
                fed.give(number, 4 * BATCH)
                fed.query.processAllAvailable()
        finally:
            stop.set()
            killer.join()
        fed.add(number + 1)
        fed.check(spark, price_of)
    assert len(killed) == (KILLS or 4)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("shape", "packed"), [("paged", True), ("held", True), ("star", True), ("paged", False), ("star", False)]
)
def test_drivers_killed_at_random_cost_no_row(spark: SparkSession, tmp_path: Path, shape: str, packed: bool) -> None:
    """And, with R being updated all the while, no micro-batch has rows of two versions."""
    rng = random.Random(5)
    (tmp_path / "in").mkdir()
    files: list[pa.Table] = []
    relation = build_products(tmp_path / "products", packed=packed)
    build_small_dimensions(tmp_path)
    with updated(relation) as changed:
        for _ in range(KILLS or (3 if shape == "star" else 2)):
            files += [write_sales(tmp_path / "in", len(files) + more) for more in range(5)]
            kill_amid_work(relation, tmp_path, shape, rng)
        assert commits(tmp_path) < len(files), "drivers were killed with work before them"
        with driver(relation, tmp_path, "done", shape) as process:
            assert process.wait(300) == 0
    sales = pa.concat_tables(files).sort_by("sale")
    facts = spark.read.parquet(str(tmp_path / "facts")).toArrow().sort_by("sale")
    if shape == "star":
        sales = check_star(spark, tmp_path, sales, facts)
    sold, keys = (sales[name].to_numpy() for name in ("sale", "id"))
    assert np.array_equal(facts["sale"].to_numpy(), sold)
    assert np.array_equal(facts["id"].to_numpy(), keys)
    prices = facts["price"].combine_chunks().to_numpy(zero_copy_only=False)
    known = ~np.isnan(prices)
    assert np.array_equal(known, keys < ROWS)
    assert facts["name"].to_pylist() == [f"product {key}" if key < ROWS else None for key in keys]
    assert np.array_equal(prices[known] % 1000, keys[known] % 1000)
    often = known & np.isin(keys, changed)
    assert not prices[known & ~often].astype(int).max() // 1000
    versions = [set(prices[often & (sold // BATCH == number)].astype(int) // 1000) for number in range(len(files))]
    assert all(len(found) == 1 for found in versions), "each file is one micro-batch"
    assert max(versions[-1]) > min(versions[0]), "updates were seen"
    query = (tmp_path / "checkpoint" / "metadata").read_text().split('"')[3]
    assert not [root for root in places() if (root / query).exists()], "caches of the drivers that were killed"


@pytest.mark.long
def test_drivers_killed_at_random_cost_no_row_of_an_as_of_join(spark: SparkSession, tmp_path: Path) -> None:
    """R gets updates with ``at=`` meanwhile: each fact comes once, with the row of its time in the pinned version."""
    rng = random.Random(6)
    relation, files = tmp_path / "r", []
    build(relation, history(), shards=2)

    def change(number: int) -> None:
        """Begin new rows of many keys, and end those of a few, later than all others and earlier than some facts."""
        keys = rng.sample(range(0, 2 * KEYS, 2), 1000)
        rows = pa.table({"id": keys[100:], "price": [1_000_000 * number + key for key in keys[100:]]})
        rows = rows.append_column("name", [[f"update {number}"] * 900])
        at = pa.scalar(595_000_000 + 1_000_000 * number, MOMENT)
        semistream.update(relation, upserts=rows, deletes=pa.table({"id": keys[:100]}), at=at)

    chance = random.Random(7)
    with changing(change):
        for _ in range(3):  # pins of the last 16 micro-batches are kept
            files += give(tmp_path, range(len(files), len(files) + 5))
            kill_amid_work(relation, tmp_path, "as of", chance)
        assert commits(tmp_path) < len(files), "drivers were killed with work before them"
        with driver(relation, tmp_path, "done", "as of") as process:
            assert process.wait(300) == 0
    query = (tmp_path / "checkpoint" / "metadata").read_text().split('"')[3]
    found = rows_of(spark.read.parquet(str(tmp_path / "facts")))
    versions = [pins.version_for(relation, query, number) for number in range(len(files))]
    assert versions == sorted(versions)
    assert versions[0] < versions[-1], "updates were seen"
    newer, other = 0, 0
    with semistream.Relation.open(relation) as last:
        now = last.to_table()
    for number, (table, version) in enumerate(zip(files, versions, strict=True)):
        with semistream.Relation.open(relation, version=version) as pinned:
            right = expected(table, pinned.to_table())
        here = Counter({row: count for row, count in found.items() if row[0] // 500 == number})
        assert here == right, f"micro-batch {number} with version {version}"
        newer += sum(count for row, count in matched(right).items() if str(row[6]).startswith("update"))
        other += (here - expected(table, now)).total()
    assert found.total() == 500 * len(files)
    assert newer > 20, "facts have met rows that updates began"
    assert other > 20, "the version of a micro-batch matters"


def check_star(spark: SparkSession, folder: Path, sales: pa.Table, facts: pa.Table) -> pa.Table:
    """Check dead letters and the columns of all dimensions but R; return the sales that should be facts."""
    sold = sales["sale"].to_numpy()
    store, day = sold % (STORES + 3), sold % (DAYS + 3)
    letters = spark.read.parquet(str(folder / "letters")).toArrow().sort_by("sale")
    assert np.array_equal(letters["sale"].to_numpy(), sold[(store < STORES) & (day >= DAYS)])
    assert set(letters["missing_in"].to_pylist()) == {"days"}
    there = (store < STORES) & (day < DAYS)
    assert facts["region"].to_pylist() == (store[there] % 7).tolist()
    assert facts["week"].to_pylist() == (day[there] // 7).tolist()
    for name in ("price", "name"):
        assert facts[f"again_{name}"].to_pylist() == facts[name].to_pylist(), "one version, by page and held whole"
    return sales.filter(pa.array(there))


@contextmanager
def updated(relation: Path) -> Iterator[NDArray[np.int64]]:
    """Give keys of all shards new prices, one version after the other; yield the keys."""
    sold = ZipfKeys(ROWS + 5000, 1.0, "random", seed=9).keys(0, 300)  # as sales have them
    keys = np.unique(sold[sold < ROWS])
    names = [f"product {key}" for key in keys]

    def change(number: int) -> None:
        semistream.upsert(relation, pa.table({"id": keys, "price": keys % 1000 + 1000 * number, "name": names}))

    with changing(change):
        yield keys


@contextmanager
def changing(change: Callable[[int], None]) -> Iterator[None]:
    """Change R again and again, with 1, 2, 3 and so on."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        number = 0
        try:
            # Each version has files of its own, so they come ever slower: a driver may take long to start.
            while not stop.wait(1.0 + number / 10):
                number += 1
                change(number)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failed, failed


def kill_amid_work(relation: Path, folder: Path, shape: str, rng: random.Random) -> None:
    """Start a driver and kill it some micro-batches on, anywhere between two of them."""
    with driver(relation, folder, "killed", shape) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        wait_for_commits(folder, process, rng.randrange(4))
        time.sleep(rng.uniform(0.0, 0.6))
        kill(process)


def driver(relation: Path, folder: Path, until: str, shape: str) -> subprocess.Popen[str]:
    """Start a driver of its own, on the same checkpoint as the last one."""
    script = Path(feeding.__file__).with_name("killed_driver.py")
    with open(folder / "driver.log", "a") as log:
        return subprocess.Popen(
            [sys.executable, script, relation, folder, until, shape],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a driver and its JVM; the Python workers are left to notice."""
    assert process.poll() is None, "the driver has ended by itself"
    children = psutil.Process(process.pid).children(recursive=True)
    machines = [child for child in children if child.name() == "java"]
    assert machines
    for dying in (*machines, process):
        dying.kill()


def commits(folder: Path) -> int:
    """Count the micro-batches that were committed; Spark keeps the files of the last hundred."""
    return max((int(file.name) + 1 for file in (folder / "checkpoint" / "commits").glob("[0-9]*")), default=0)


def wait_for_commits(folder: Path, process: subprocess.Popen[str], more: int) -> None:
    wanted = commits(folder) + more
    while commits(folder) < wanted and process.poll() is None:
        time.sleep(0.02)
