"""Changes of R and facts that are joined with it flow at once, in a driver that is killed again and again.

``python tests/spark/relations/kills_soak.py --kills 20 --seed 1``

Each file of changes is a micro-batch, and so a version of R; the row of key 0 says which. In the end R is what the
changes make of it, each of them was applied once, and every fact has the row of the one version that its batch read.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

import semistream
import semistream.spark
from semistream.relation.storage import manifest as manifests
from semistream.spark import write_changes
from semistream.spark.sinks import DeltaSink, write_stream

KEYS, BATCH = 600, 2_000
START = "start"


def drive(folder: Path, files: int) -> None:
    """Run both queries, until all files are done if there are so many."""
    settings = {
        "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false",
        # it lives for seconds: what is compiled well does not pay
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }  # fmt: skip
    spark = semistream.spark.session("changes", master="local[2]", memory="1g", settings=settings)
    feed = spark.readStream.schema("id long, name string, op string, at long").option("maxFilesPerTrigger", 1)
    changes = write_changes(feed.json(f"{folder}/feed"), folder / "r", order="at")
    changing = changes.option("checkpointLocation", f"{folder}/changes").trigger(processingTime="0 seconds").start()
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", BATCH).option("numPartitions", 2)
    keyed = stream.load().selectExpr("value", f"if(value % {BATCH} = 0, 0, value * 7 % {KEYS}) AS key")
    joined = semistream.join(keyed, folder / "r", on="key", memory="2MB")
    writer = write_stream(joined, DeltaSink(folder / "facts")).option("checkpointLocation", f"{folder}/joining")
    joining = writer.trigger(processingTime="500 milliseconds").start()
    print("started", flush=True)
    done = False
    while not done:
        time.sleep(0.2)
        for query in (changing, joining):
            if not query.isActive:
                sys.exit(f"a query has ended: {query.exception()}")
        last = changing.lastProgress
        done = bool(
            files and last and last["batchId"] >= files - 1 and (joining.lastProgress or {}).get("numInputRows")
        )
    joining.stop()
    changing.stop()
    spark.stop()


def make_changes(folder: Path, files: int, chance: random.Random) -> dict[str, dict[int, str]]:
    """Write R and files of changes; return what R holds after each, by what key 0 has then."""
    (folder / "feed").mkdir()
    table = pa.table({"id": range(500), "name": [START] * 500})
    semistream.Relation.build(table, folder / "r", "id", shards=2, page_size=1024).close()
    state = dict.fromkeys(range(500), START)
    states = {START: dict(state)}
    at = 0
    for number in range(files):
        rows: list[tuple[int, str | None, str, int]] = []
        for _ in range(chance.randrange(3, 120)):
            at += 1
            key = chance.randrange(1, KEYS)
            if chance.random() < 0.25:
                rows.append((key, None, "d", at))
                state.pop(key, None)
            else:
                rows.append((key, f"{number} {at}", chance.choice("cu"), at))
                state[key] = f"{number} {at}"
        at += 1
        state[0] = f"clock {number}"
        rows.append((0, state[0], "u", at))
        states[state[0]] = dict(state)
        chance.shuffle(rows)
        file = folder / "feed" / f"{number:05d}.json"
        file.write_text("\n".join(json.dumps(dict(zip(("id", "name", "op", "at"), row, strict=True))) for row in rows))
        os.utime(file, (1.7e9 + number,) * 2)  # Spark takes the oldest first
    return states


def commits(checkpoint: Path) -> int:
    return max((int(file.name) + 1 for file in (checkpoint / "commits").glob("[0-9]*")), default=0)


def started(folder: Path, files: int) -> subprocess.Popen[str]:
    with open(folder / "log", "ab") as log:
        command = [sys.executable, __file__, "--drive", str(folder), "--files", str(files)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n", (folder / "log").read_text()[-3000:]
    return process


def kill(process: subprocess.Popen[str]) -> None:
    for each in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.Error):
            if each.name() == "java":
                each.kill()
    process.kill()
    process.wait()


def check(folder: Path, states: dict[str, dict[int, str]]) -> str:
    from deltalake import DeltaTable

    with semistream.Relation.open(folder / "r") as relation:
        table = relation.to_table()
    assert dict(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True)) == list(states.values())[-1]
    operations = [version.operation for version in semistream.history(folder / "r")]
    assert operations.count("changes") == len(states) - 1, operations
    facts = DeltaTable(str(folder / "facts")).to_pyarrow_table().sort_by("value")
    value, key, name = facts["value"].to_numpy(), facts["key"].to_pylist(), facts["name"].to_pylist()
    assert np.array_equal(value, np.arange(value.size))
    assert value.size % BATCH == 0
    seen = set()
    for begin in range(0, value.size, BATCH):
        expected = states[name[begin]]
        seen.add(name[begin])
        assert all(name[at] == expected.get(key[at]) for at in range(begin, begin + BATCH)), f"facts {begin} on"
    return (
        f"{len(states) - 1} changes once each, {operations.count('compact')} compactions, version "
        f"{manifests.load(folder / 'r').version}; {value.size // BATCH} batches of facts saw {len(seen)} versions"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--files", type=int, default=0, help="of changes; by default three for each kill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drive", type=Path, help="be the driver that is killed, in this directory")
    given = parser.parse_args()
    if given.drive is not None:
        drive(given.drive, given.files)
        return
    chance = random.Random(given.seed)
    files = given.files or 3 * given.kills
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        states = make_changes(folder, files, chance)
        began = time.monotonic()
        for number in range(given.kills):
            process = started(folder, 0)
            goal, deadline = commits(folder / "changes") + chance.randrange(0, 3), time.monotonic() + 120
            while commits(folder / "changes") < min(goal, files) and time.monotonic() < deadline:
                assert process.poll() is None, (folder / "log").read_text()[-3000:]
                time.sleep(0.02)
            time.sleep(chance.random() * 1.5)
            kill(process)
            done = f"{commits(folder / 'changes')} batches of changes, {commits(folder / 'joining')} of facts"
            print(f"{time.monotonic() - began:6.1f} s: kill {number + 1} after {done}", flush=True)
        process = started(folder, files)
        assert process.wait(600) == 0, (folder / "log").read_text()[-3000:]
        print(f"{time.monotonic() - began:6.1f} s: {check(folder, states)}")


if __name__ == "__main__":
    main()
