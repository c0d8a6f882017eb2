"""A cluster whose machines share no directory: relation and facts are in a store, and everything fails once.

``make kills KILLS=20`` goes on with kills at random, of drivers too.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import semistream
from cluster import Cluster, Machine
from cluster_driver import BATCH, KEYS, LOCAL, MEMORY, ROWS, STREAMS, R, facts, noise, storage
from semistream.relation.stores import object_store
from store_relay import StoreRelay

# a group of its own: it does without the session that all others share, and takes as long as many of them
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("cluster")]
KILLS, SEED = int(os.environ.get("SEMISTREAM_KILLS", "0")), int(os.environ.get("SEMISTREAM_SEED", "1"))


@pytest.fixture
def relay(s3proxy: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreRelay]:
    relay = StoreRelay(s3proxy)
    for name, value in {
        "AWS_ENDPOINT_URL": relay.url, "AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "very-secret-word",
        "AWS_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    object_store._opened.clear()
    yield relay
    object_store._opened.clear()
    relay.close()


class Driver:
    """The driver's process, which may be started again, and what it tells of each micro-batch."""

    def __init__(self, master: str, folder: Path) -> None:
        self.log = folder / "driver.log"
        self.last = dict.fromkeys(STREAMS, -1)
        self.counters: dict[str, Any] = {}
        self._command = [sys.executable, "-m", "cluster_driver", master, str(folder)]
        self.start()

    def start(self) -> None:
        here = [str(Path(__file__).parent.parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self._command, env={**os.environ, "PYTHONPATH": os.pathsep.join(here)},
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True).start()

    def _listen(self, told: Iterator[str]) -> None:
        for line in told:
            with suppress(ValueError):  # half a line of one that was killed
                how, batch, self.counters[how] = json.loads(line)
                self.last[how] = batch

    def wait_for(self, more: int, seconds: float = 600.0) -> None:
        """Wait for so many micro-batches more of each query."""
        self.reach({how: batch + more for how, batch in self.last.items()}, seconds)

    def reach(self, batches: dict[str, int], seconds: float = 600.0) -> None:
        """Wait for micro-batches to be done."""
        deadline = time.monotonic() + seconds
        while any(self.last[how] < batch for how, batch in batches.items()):
            late = self.process.poll() is not None or time.monotonic() > deadline
            assert not late, f"{self.last} of {batches}: {self.log.read_text(errors='replace')[-3000:]}"
            time.sleep(0.05)

    def lose(self) -> None:
        """Kill it with its JVM."""
        with suppress(psutil.Error):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                process.kill()
        self.process.kill()
        self.process.wait()


def held_by(machine: Machine) -> tuple[int, int]:
    """Return the bytes of all caches in a machine's memory, and those of its local tier."""
    while True:
        with suppress(FileNotFoundError):  # a file that is just going
            caches = machine.path("/dev/shm").rglob("*.array")
            tier = machine.path("/tmp/tier").glob("*/*")
            return sum(one.stat().st_blocks * 512 for one in caches), sum(one.stat().st_blocks * 512 for one in tier)


def of_page(request: str) -> bool:
    return request.startswith("GET") and ".pages" in request


def of_pin(request: str) -> bool:
    return "/.pins/" in request


@pytest.mark.long
def test_machines_executors_and_the_store_fail_and_no_row_does(relay: StoreRelay, tmp_path: Path) -> None:
    began = time.monotonic()

    def tell(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s: {what}", flush=True)

    @contextmanager
    def amid(kind: Callable[[str], bool], count: int = 1) -> Iterator[None]:
        """Have something happen while so many requests of a micro-batch wait, and the micro-batch be done then."""
        with relay.holding(kind, count):
            time.sleep(0.3)  # till the one before it is told
            before = dict(running.last)
            yield
        running.reach({how: batch + 1 for how, batch in before.items()})

    cluster = Cluster(tmp_path)
    running = Driver(cluster.address, tmp_path)
    try:
        tell("started")
        running.wait_for(1)
        tell("first micro-batches")
        with semistream.Relation.open(R) as built:
            assert built.packing is not None
        changed = range(0, ROWS, 5)
        semistream.upsert(R, pa.table({"id": changed, "name": [f"1 {id}" for id in changed]}))
        with amid(of_pin, 2):  # a task on each machine
            workers(cluster, running)
            a_machine(cluster, running)
        tell("Python workers killed, a machine lost and another added")
        with amid(of_page):
            an_executor(cluster, running)
        tell("an executor killed")
        for _ in range(5):
            with relay.holding(of_page, 1, most=1):  # its task does not go on, so its twin has to
                running.wait_for(2)
            if any(task["Speculative"] for task in done(tmp_path / "events")):  # or the request was given up before
                break
        tell("a task that did not go on")
        relay.fault = lambda request: 500 if relay.requests % 5 == 0 else None
        time.sleep(4)
        relay.fault, relay.delay = None, 0.2
        tell("the store answered 500")
        time.sleep(4)
        relay.delay = 0.0
        tell("the store was slow")
        with amid(lambda _: True):
            time.sleep(10)
        tell("the store did not answer for ten seconds")
        for number, kill in enumerate(random.Random(SEED).choices(KINDS, k=KILLS)):
            time.sleep(random.Random(f"{SEED} {number}").random() * 3)
            before = dict(running.last)
            kill(cluster, running)
            running.reach({how: batch + 1 for how, batch in before.items()})
            tell(f"kill {number + 1}: {kill.__name__}")
        for machine in cluster.machines:
            until = time.monotonic() + 60
            while not all(held := held_by(machine)) and time.monotonic() < until:
                time.sleep(0.1)  # one that has just lost its executor may have had no task since
            caches, tier = held
            assert 0 < caches <= len(STREAMS) * MEMORY
            assert 0 < tier <= LOCAL
        for told in running.counters.values():
            assert 0 < told["bytes_held"] <= told["memory"] <= MEMORY
        other = pa.table({"id": range(ROWS), "name": [f"2 {id}" for id in range(ROWS)]})
        semistream.Relation.build(other, R, "id", shards=3, page_size=1024, encoding="plain", overwrite=True).close()
        running.wait_for(3)
        tell("R built again with other shards")
    finally:
        running.lose()
        cluster.close()
    for how in STREAMS:
        check(how, running.last[how])
    check_events(tmp_path / "events")
    tell("done")


def a_driver(_: Cluster, running: Driver) -> None:
    running.lose()
    running.start()


def a_machine(cluster: Cluster, _: Driver) -> None:
    cluster.machines.pop(0).lose()
    cluster.add()


def an_executor(cluster: Cluster, _: Driver) -> None:
    for process in cluster.machines[0].processes("CoarseGrainedExecutorBackend"):
        process.kill()


def workers(cluster: Cluster, _: Driver) -> None:
    for machine in cluster.machines:
        for process in machine.python_workers():
            process.kill()


KINDS = [a_driver, a_machine, an_executor, workers]


def check(how: str, last: int) -> None:
    """Every fact of every micro-batch is there once, with its row of the one version that its batch has read."""
    from deltalake import DeltaTable

    table = DeltaTable(facts(how), storage_options=storage()).to_pyarrow_table().sort_by("value")
    value, key = table["value"].to_numpy(), table["key"].to_numpy()
    every = np.arange((value.max() // BATCH + 1) * BATCH)
    assert every.size >= (last + 1) * BATCH
    keys = every * STREAMS[how] % KEYS
    wanted = every if how == "left" else every[keys < ROWS]
    assert np.array_equal(value, wanted)
    assert np.array_equal(key, keys[wanted])
    parts = pc.split_pattern(table["name"], " ", max_splits=1).combine_chunks()
    version = pc.list_element(pc.fill_null(parts, ["-1", ""]), 0).cast(pa.int64()).to_numpy()
    assert np.array_equal(version < 0, key >= ROWS), "those without a partner, and no others"
    batches = []
    for number in range(every.size // BATCH):
        here = (value // BATCH == number) & (key < ROWS)
        found = set(version[here & (key % 5 == 0)]), set(version[here & (key % 5 != 0)])
        assert found in [({0}, {0}), ({1}, {0}), ({2}, {2})], f"one version in micro-batch {number}: {found}"
        batches.append(found[0].pop())
    assert batches == sorted(batches)
    assert set(batches) == {0, 1, 2}
    names = pc.list_element(parts.filter(pa.array(version >= 0)), 1)
    texts = [noise(id) + str(id) if old == 0 else str(id) for id, old in zip(key, version, strict=True) if old >= 0]
    assert names.to_pylist() == texts


def tasks(folder: Path) -> list[dict[str, Any]]:
    lines = [line for file in folder.iterdir() for line in file.read_text().splitlines(keepends=True)]
    events = [json.loads(line) for line in lines if line.endswith("}\n")]  # the last one is cut off by the kill
    return [one for one in events if one["Event"] == "SparkListenerTaskEnd" and one.get("Task Metrics")]


def done(folder: Path) -> list[dict[str, Any]]:
    return [one["Task Info"] for one in tasks(folder) if one["Task End Reason"]["Reason"] == "Success"]


def check_events(folder: Path) -> None:
    """What was meant to happen did: a twin was faster, and a shard was at several machines."""
    assert any(task["Speculative"] for task in done(folder))
    joins = [one for one in tasks(folder) if one["Task Metrics"]["Shuffle Read Metrics"]["Total Records Read"]]
    assert len({one["Task Info"]["Host"] for one in joins if one["Task Info"]["Index"] == 0}) > 1
