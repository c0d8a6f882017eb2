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
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import feeding
from feeding import BATCH, build_products, check_facts, feed, price_of, workers, write_sales
from semistream.spark.warm import places

pytestmark = pytest.mark.spark

KILLS = int(os.environ.get("SEMISTREAM_KILLS", "0"))


@pytest.fixture(scope="module")
def relation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_products(tmp_path_factory.mktemp("killed") / "products")


def test_workers_killed_at_random_cost_no_row(spark: SparkSession, relation: Path, tmp_path: Path) -> None:
    rng = random.Random(4)
    stop = threading.Event()
    killed = []

    def kill_now_and_then() -> None:
        # Spark gives a task up after three failures, so at most two for each micro-batch.
        batch, kills = -1, 0
        while len(killed) < (KILLS or 4) and not stop.wait(rng.uniform(0.3, 1.5)):
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


def test_drivers_killed_at_random_cost_no_row(spark: SparkSession, relation: Path, tmp_path: Path) -> None:
    rng = random.Random(5)
    (tmp_path / "in").mkdir()
    files: list[pa.Table] = []
    for _ in range(KILLS or 2):
        files += [write_sales(tmp_path / "in", len(files) + more) for more in range(8)]
        with driver(relation, tmp_path, "killed") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            # some micro-batches on, and then anywhere between two of them
            wait_for_commits(tmp_path, process, rng.randrange(4))
            time.sleep(rng.uniform(0.0, 0.6))
            kill(process)
    assert commits(tmp_path) < len(files), "drivers were killed with work before them"
    with driver(relation, tmp_path, "done") as process:
        assert process.wait(300) == 0
    check_facts(spark, tmp_path, files, price_of)
    query = (tmp_path / "checkpoint" / "metadata").read_text().split('"')[3]
    assert not [root for root in places() if (root / query).exists()], "caches of the drivers that were killed"


def driver(relation: Path, folder: Path, until: str) -> subprocess.Popen[str]:
    """Start a driver of its own, on the same checkpoint as the last one."""
    script = Path(feeding.__file__).with_name("killed_driver.py")
    with open(folder / "driver.log", "a") as log:
        return subprocess.Popen(
            [sys.executable, script, relation, folder, until], stdout=subprocess.PIPE, stderr=log, text=True
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
