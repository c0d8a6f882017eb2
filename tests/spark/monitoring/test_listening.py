"""What a listener reports of a query's micro-batches: every shard, the memory's split, parked and dead rows."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import semistream
from feeding import patiently
from semistream.spark.monitoring.listening import BatchReport, BatchTotals, StatisticsListener, backlog_of
from semistream.spark.monitoring.metrics import SPLIT
from semistream.spark.monitoring.prometheus import PrometheusPage


class Kept(BatchReport):
    def __init__(self) -> None:
        self.batches: list[Mapping[str, Any]] = []

    def add(self, batch: Mapping[str, Any]) -> None:
        self.batches.append(batch)


@pytest.mark.spark
def test_shards_memory_parked_and_dead(spark: SparkSession, tmp_path: Path) -> None:
    known = pa.table({"id": np.arange(1000), "name": [f"p{key}" for key in range(1000)]})
    semistream.Relation.build(known, tmp_path / "products", "id", shards=2).close()
    semistream.upsert(tmp_path / "products", known.slice(0, 10))
    (tmp_path / "sales").mkdir()
    keys = pa.array([None, None, *range(0, 1200, 3), 1197, 1197], pa.int64())
    pq.write_table(pa.table({"id": keys}), tmp_path / "sales" / "a.parquet")
    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "sales"))
    parked = semistream.join(
        stream, tmp_path / "products", on="id", on_missing="park", park_for="1 hour", after_park="dead_letter",
        park_idle=False, memory="1MB", algorithm="hybridjoin", metrics="products",
    )  # fmt: skip
    kept, totals = Kept(), BatchTotals()
    listener = StatisticsListener([kept, totals], letters=["products"])
    spark.streams.addListener(listener)
    try:
        writer = parked.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))

        def to_its_end() -> str:
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            return query.runId

        assert listener.wait_for(patiently(to_its_end))
    finally:
        spark.streams.removeListener(listener)
    (batch,) = [one for one in kept.batches if one["rows"]]
    found = batch["joins"]["products"]
    assert [(one["shard"], one["version"]) for one in sorted(found["shards"], key=lambda one: one["shard"])] == [
        (0, 2),
        (1, 2),
    ]
    for name in ("rows_in", "pages_read", "bytes_held", "memory", *SPLIT):
        assert found[name] == sum(one[name] for one in found["shards"]), name
    assert found["rows_in"] == len(keys) == batch["rows"]
    assert 0 < found["pages_useful"] <= found["pages_read"]
    assert 0 < sum(found[name] for name in SPLIT) <= found["bytes_held"] <= found["memory"]
    assert found["parked"] == totals.parked["products"] == {"waiting": 68, "found_late": 0, "expired": 0}
    assert len(found["missing"]) == 16 < 66, "the most frequent"
    assert next(iter(found["missing"].items())) == ("1197", 3)
    assert totals.joins["products"].missing.most(1) == {"1197": 3}
    assert batch["dead"] == totals.dead == found["null_keys"] == 2


def test_a_query_that_no_rows_come_to_is_alive() -> None:
    """By its name, which Spark tells only when the query begins."""
    page = PrometheusPage(0)
    try:
        listener = StatisticsListener([Kept(), page])
        listener.onQueryStarted(SimpleNamespace(runId="r", id="i", name="sales"))  # type: ignore[arg-type]
        assert "semistream_alive_time_seconds{" not in page.text()
        before = time.time()
        listener.onQueryIdle(SimpleNamespace(runId="r", id="i"))  # type: ignore[arg-type]
        found = re.search(r'semistream_alive_time_seconds\{query="sales"\} (\S+)', page.text())
        assert found is not None
        assert before <= float(found[1]) <= time.time()
        assert 'semistream_batches_total{query="sales"} 0.0' in page.text()
    finally:
        page.close()


def test_what_a_source_still_has() -> None:
    class Source:
        def __init__(self, metrics: dict[str, str], end: str | None = None, latest: str | None = None) -> None:
            self.metrics, self.endOffset, self.latestOffset = metrics, end, latest

    assert backlog_of([Source({}, "0", "3")]) is None
    assert backlog_of([Source({"numFilesOutstanding": "4", "numBytesOutstanding": "1e3"})]) == {
        "files": 4,
        "bytes": 1000,
    }
    assert backlog_of([Source({"maxOffsetsBehindLatest": "7"}), Source({}, '{"sale": 3}', '{"sale": 10}')]) == {
        "rows": 14
    }
