"""Made-up micro-batches, as a `StatisticsListener` reports them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from semistream.core.statistics import JoinStatistics

SPLIT = {"stream_bytes": 100, "cache_bytes": 700, "reading_bytes": 100, "results_bytes": 50, "index_bytes": 50}


def task(shard: int, rows: int, version: int = 1, stored: bool = False) -> dict[str, Any]:
    counted = JoinStatistics(
        rows_in=rows, rows_out=rows, rows_done=rows, cache_hits=rows * 3 // 4, unmatched=rows // 10,
        null_keys=rows // 100, pages_read=rows // 8, pages_useful=rows // 16, busy_seconds=rows / 1e5,
        store_requests=9 if stored else 0, local_pages=rows // 16 if stored else 0,
    )  # fmt: skip
    told = {"bytes_held": 1000, "memory": 2000, "tasks": 1, "shard": shard, "version": version, **SPLIT}
    return {**counted.as_dict(), "other_bytes": 0, **told}


def batch(
    number: int, rows: int = 1000, *, run: str = "a", version: int = 1, parked: int | None = None, stored: bool = False
) -> dict[str, Any]:
    shards = [task(shard, rows // 2, version, stored) for shard in range(2)]
    counters: dict[str, Any] = {name: sum(one[name] for one in shards) for name in shards[0]}
    counters["shards"] = shards
    counters["missing"] = {"<4711>": 5, "-1": 2}
    if parked is not None:
        counters["parked"] = {"waiting": parked, "found_late": 1, "expired": 2}
    return {
        "query": "sales", "query_id": "i", "run_id": run, "batch": number,
        "began": datetime.fromtimestamp(1_790_000_000 + number, UTC).isoformat(), "rows": rows, "malformed": 0,
        "seconds": {"triggerExecution": 0.1 + 0.01 * number}, "arrival_rate": 5000.0, "service_rate": 20000.0,
        "backlog": {"rows": 70}, "dead": 3, "joins": {"products": counters},
    }  # fmt: skip
