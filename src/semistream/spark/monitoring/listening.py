"""Statistics of every micro-batch, passed to reports such as a file of JSON lines.

Spark calls a `StatisticsListener` after each micro-batch with its progress, which contains the counters of every join
with ``metrics=name`` (`metrics`). The listener passes them to all *reports*: `JsonLines` writes a line per batch;
`prometheus.PrometheusPage` keeps totals and serves them on the loopback address.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from semistream.core.paths import local_path
from semistream.spark.monitoring.metrics import StreamStatistics, counters_of

if TYPE_CHECKING:
    from semistream.relation.followed.follower import Lag

__all__ = [
    "MALFORMED",
    "PARKED",
    "SOURCE",
    "BatchReport",
    "BatchTotals",
    "JsonLines",
    "StatisticsListener",
    "add_parked",
    "backlog_of",
]

SOURCE, MALFORMED = "__source", "malformed"
"""Name of the observation, and of the metric in it, with which Spark counts the malformed rows of a source."""
PARKED = "_parked"
"""Suffix of a join's name; the observation of that name counts its parked rows."""
_BEHIND = {"maxOffsetsBehindLatest": "rows", "numFilesOutstanding": "files", "numBytesOutstanding": "bytes"}


class BatchReport(ABC):
    """Receives the statistics of each micro-batch."""

    @abstractmethod
    def add(self, batch: Mapping[str, Any]) -> None:
        """Receive a micro-batch.

        ``batch`` has ``query``, ``query_id``, ``run_id``, ``batch``, ``began``, the number of input ``rows``,
        ``seconds`` by phase, ``arrival_rate`` and ``service_rate`` in rows per second, the ``backlog`` of the source if
        it is known, ``malformed`` rows of the source, ``dead`` rows that became dead letters, and ``joins``: the
        counters of each join, its ``shards`` and, if it parks rows, ``parked``.
        """

    def alive(self, query: str) -> None:
        """Receive the message that a query waits for rows. Spark sends it repeatedly while no rows arrive."""

    def follow(self, relation: str, lag: Lag) -> None:
        """Receive how far a relation is behind the table that it follows."""

    def close(self) -> None:
        """Release files and ports."""


class StatisticsListener(StreamingQueryListener):
    """Pass the progress of every query of the session to reports.

    Parameters
    ----------
    reports
        Reports, such as `JsonLines` and `PrometheusPage`.
    letters
        Joins whose rows without a match become dead letters, immediately or after they were parked.
    files_left
        By name of the query: counts the files in the backlog, if the source does not report it.

    Examples
    --------
    >>> listener = StatisticsListener([JsonLines("batches.jsonl"), PrometheusPage(9464)])   # doctest: +SKIP
    >>> spark.streams.addListener(listener)                                                 # doctest: +SKIP
    """

    def __init__(
        self,
        reports: Iterable[BatchReport],
        letters: Collection[str] = (),
        files_left: Mapping[str, Callable[[], int | None]] | None = None,
    ) -> None:
        self.reports = list(reports)
        self._files_left = files_left or {}
        self._letters = frozenset(letters)
        self._ended: set[str] = set()
        self._names: dict[str, str] = {}
        self._changed = threading.Condition()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._names[str(event.runId)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        joins = {
            name: counters
            for name, metrics in progress.observedMetrics.items()
            if (counters := counters_of(metrics)) is not None
        }
        for name, counters in joins.items():
            if (waiting := progress.observedMetrics.get(f"{name}{PARKED}")) is not None:
                counters["parked"] = {key: int(value or 0) for key, value in waiting.asDict().items()}
        malformed = _malformed(progress.observedMetrics.get(SOURCE))
        batch = {
            "query": progress.name,
            "query_id": str(progress.id),
            "run_id": str(progress.runId),
            "batch": progress.batchId,
            "began": progress.timestamp,
            "rows": progress.numInputRows,
            "seconds": {name: milliseconds / 1e3 for name, milliseconds in progress.durationMs.items()},
            "arrival_rate": _finite(progress.inputRowsPerSecond),
            "service_rate": _finite(progress.processedRowsPerSecond),
            "backlog": backlog_of(progress.sources) or self._files(progress.name),
            "malformed": malformed,
            "dead": sum(_dead(counters) for name, counters in joins.items() if name in self._letters)
            + (malformed if SOURCE in self._letters else 0),
            "joins": joins,
        }
        for report in self.reports:
            report.add(batch)

    def _files(self, query: str | None) -> dict[str, int] | None:
        counted = self._files_left.get(query or "", lambda: None)()
        return None if counted is None else {"files": counted}

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        for report in self.reports:
            report.alive(self._names.get(str(event.runId), str(event.id)))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with self._changed:
            self._ended.add(str(event.runId))
            self._changed.notify_all()

    def wait_for(self, run_id: str, seconds: float = 30.0) -> bool:
        """Wait until all batches of a run have been reported; Spark reports them some time after they end."""
        with self._changed:
            return self._changed.wait_for(lambda: str(run_id) in self._ended, seconds)


class BatchTotals(BatchReport):
    """Totals since the start, for a summary at the end."""

    def __init__(self) -> None:
        self.rows = 0
        self.malformed = 0
        self.dead = 0
        self.parked: dict[str, dict[str, int]] = {}
        """For each join that parks rows: rows parked now, and rows found late or expired since the start."""
        self.batches = 0
        self.seconds = 0.0
        self.joins: dict[str, StreamStatistics] = {}

    def add(self, batch: Mapping[str, Any]) -> None:
        if batch["rows"]:
            self.batches += 1
            self.rows += batch["rows"]
            self.seconds += batch["seconds"].get("triggerExecution", 0.0)
        self.malformed += batch["malformed"]
        self.dead += batch.get("dead", 0)
        for name, counters in batch["joins"].items():
            self.joins.setdefault(name, StreamStatistics()).add(counters)
            if (now := counters.get("parked")) is not None:
                add_parked(self.parked.setdefault(name, {}), now)


class JsonLines(BatchReport):
    """Appends a line of JSON per micro-batch to a file, and flushes it immediately.

    A batch that is replayed after a restart has two lines with different ``run_id``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = local_path(path, "file of statistics")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - kept open until close
        self._lock = threading.Lock()

    def add(self, batch: Mapping[str, Any]) -> None:
        line = json.dumps({"written": datetime.now(UTC).isoformat(), **batch})
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def add_parked(totals: dict[str, int], now: Mapping[str, int]) -> None:
    """Add the counts of parked rows of a micro-batch; the number of waiting rows is the one at its end."""
    for name in ("found_late", "expired"):
        totals[name] = totals.get(name, 0) + now[name]
    totals["waiting"] = now["waiting"]


def backlog_of(sources: Iterable[Any]) -> dict[str, int] | None:
    """Return the backlog of the sources as ``rows``, ``files`` or ``bytes``; None if it is unknown.

    Kafka reports the offsets it is behind, file sources report files and bytes, and our sales source uses sale numbers
    as offsets.
    """
    found: dict[str, int] = {}
    for source in sources:
        metrics = source.metrics or {}
        for told, unit in _BEHIND.items():
            if told in metrics:
                found[unit] = found.get(unit, 0) + int(float(metrics[told]))
        ends = [_sale(offset) for offset in (source.endOffset, source.latestOffset)]
        if None not in ends:
            found["rows"] = found.get("rows", 0) + max(0, ends[1] - ends[0])  # type: ignore[operator]
    return found or None


def _sale(offset: Any) -> int | None:
    with contextlib.suppress(TypeError, ValueError, KeyError):
        return int(json.loads(offset)["sale"])
    return None


def _dead(counters: Mapping[str, Any]) -> int:
    """Return how many rows of a join became dead letters: unmatched rows that are not parked, or no longer."""
    if "parked" in counters:
        return int(counters["parked"]["expired"] + counters["null_keys"])
    return int(counters["unmatched"])


def _finite(rate: Any) -> float | None:
    return float(rate) if rate is not None and math.isfinite(rate) else None


def _malformed(metrics: Any) -> int:
    return 0 if metrics is None else int(metrics[MALFORMED] or 0)
