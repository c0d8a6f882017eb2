"""As-of joins of streams: versions of R, replays, kills, and facts that are older than the first version."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import semistream
from feeding import workers
from sales_histories import KEYS, Batches, build, expected, give, history, matched, run, stream, without_key

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("hold", [True, False])
def test_versions_of_r_and_replays(spark: SparkSession, tmp_path: Path, hold: bool) -> None:
    """R gets new rows between two batches; a replayed batch reads what its first attempt read."""
    old = build(tmp_path / "r", history(), shards=2)
    tables = give(tmp_path, [0, 1])
    joined = semistream.join(
        stream(spark, tmp_path), tmp_path / "r", on="id", as_of="at", memory="6MB", hold=hold, metrics="products"
    )
    seen = Batches()
    run(joined, tmp_path, seen)
    assert seen.rows() == expected(tables[0], old) + expected(tables[1], old)
    new = history(note=7)
    changed = new.filter(pc.less(new["id"], KEYS))
    semistream.upsert(tmp_path / "r", changed)
    for name in ("1", ".1.crc"):  # as if the driver had died after the batch was processed
        (tmp_path / "checkpoint/commits" / name).unlink(missing_ok=True)
    tables += give(tmp_path, [2])
    run(joined, tmp_path, seen)
    assert len(seen.tries[1]) == 2
    assert seen.tries[1][0] == seen.tries[1][1]
    now = pa.concat_tables([changed, old.filter(pc.greater_equal(old["id"], KEYS))])
    assert seen.tries[2][-1] == expected(tables[2], now)


@pytest.mark.long
def test_workers_killed_cost_no_row(spark: SparkSession, tmp_path: Path) -> None:
    table = build(tmp_path / "r", history(), shards=2)
    tables = give(tmp_path, range(6))
    joined = semistream.join(stream(spark, tmp_path), tmp_path / "r", on="id", as_of="at", memory="4MB", hold=False)
    stop, killed, seen = threading.Event(), [], Batches()

    def kill() -> None:
        while len(killed) < 3 and not stop.wait(0.5):
            batch = len(seen.tries)
            if batch not in killed and (found := workers()):
                os.kill(found[0].pid, signal.SIGKILL)
                killed.append(batch)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        run(joined, tmp_path, seen)
    finally:
        stop.set()
        killer.join()
    assert killed
    assert seen.rows() == sum((expected(one, table) for one in tables), Counter())


@pytest.mark.long
def test_facts_older_than_the_first_version_wait_for_it(spark: SparkSession, tmp_path: Path) -> None:
    """They are parked until a version of R has an earlier row; rows with a NULL time are not."""
    late = build(tmp_path / "r", history(first=1), shards=2)
    tables = give(tmp_path, [0])
    joined = semistream.join(
        stream(spark, tmp_path), tmp_path / "r", on="id", as_of="at", on_missing="park", park_for="1 hour",
        park_idle=False, memory="16MB",
    )  # fmt: skip
    seen = Batches()
    run(joined, tmp_path, seen)
    before = expected(tables[0], late)
    assert seen.rows() == matched(before) + without_key(before)
    whole = build(tmp_path / "r", history(), shards=3)
    tables += give(tmp_path, [1])
    run(joined, tmp_path, seen)
    early = {row[0] for row in matched(before)}
    then = Counter({row: n for row, n in matched(expected(tables[0], whole)).items() if row[0] not in early})
    assert then, "some sales are older than the second version of their product"
    now = expected(tables[1], whole)
    assert seen.tries[1][-1] == then + matched(now) + without_key(now)
