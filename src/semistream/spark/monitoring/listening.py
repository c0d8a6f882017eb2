"""Statistics of every micro-batch as they come: to whoever asked for them, and to a file of JSON lines.

Spark calls a `StatisticsListener` after each micro-batch with its progress, in which every join that was given
``metrics=name`` has its counters (`metrics`). Each goes to all *reports*: `JsonLines` keeps a line a batch;
`prometheus.PrometheusPage` keeps totals, and serves them on the loopback address.
"""

from __future__ import annotations

import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from semistream.core.paths import local_path
from semistream.spark.monitoring.metrics import StreamStatistics, counters_of

__all__ = ["MALFORMED", "SOURCE", "BatchReport", "BatchTotals", "JsonLines", "StatisticsListener"]

SOURCE, MALFORMED = "__source", "malformed"
"""Under which name, and which of it, Spark counts the malformed rows of a source."""


class BatchReport(ABC):
    """Who wants to know of each micro-batch."""

    @abstractmethod
    def add(self, batch: Mapping[str, Any]) -> None:
        """Take note of a micro-batch.

        ``batch`` has ``query``, ``query_id``, ``run_id``, ``batch``, ``began``, ``rows`` that came in, ``seconds`` by
        phase, ``malformed`` rows of the source, and ``joins``: the counters of each.
        """

    def close(self) -> None:
        """Let go of files and ports."""


class StatisticsListener(StreamingQueryListener):
    """Hand the progress of every query of the session on to reports.

    Parameters
    ----------
    reports
        Such as `JsonLines` and `PrometheusPage`.

    Examples
    --------
    >>> listener = StatisticsListener([JsonLines("batches.jsonl"), PrometheusPage(9464)])   # doctest: +SKIP
    >>> spark.streams.addListener(listener)                                                 # doctest: +SKIP
    """

    def __init__(self, reports: Iterable[BatchReport]) -> None:
        self.reports = list(reports)
        self._ended: set[str] = set()
        self._changed = threading.Condition()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        batch = {
            "query": progress.name,
            "query_id": str(progress.id),
            "run_id": str(progress.runId),
            "batch": progress.batchId,
            "began": progress.timestamp,
            "rows": progress.numInputRows,
            "seconds": {name: milliseconds / 1e3 for name, milliseconds in progress.durationMs.items()},
            "malformed": _malformed(progress.observedMetrics.get(SOURCE)),
            "joins": {
                name: counters
                for name, metrics in progress.observedMetrics.items()
                if (counters := counters_of(metrics)) is not None
            },
        }
        for report in self.reports:
            report.add(batch)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with self._changed:
            self._ended.add(str(event.runId))
            self._changed.notify_all()

    def wait_for(self, run_id: str, seconds: float = 30.0) -> bool:
        """Wait until all of a run's batches have been reported: Spark tells of them a little later than they end."""
        with self._changed:
            return self._changed.wait_for(lambda: str(run_id) in self._ended, seconds)


class BatchTotals(BatchReport):
    """Totals since the start, for a summary at the end."""

    def __init__(self) -> None:
        self.rows = 0
        self.malformed = 0
        self.batches = 0
        self.seconds = 0.0
        self.joins: dict[str, StreamStatistics] = {}

    def add(self, batch: Mapping[str, Any]) -> None:
        if batch["rows"]:
            self.batches += 1
            self.rows += batch["rows"]
            self.seconds += batch["seconds"].get("triggerExecution", 0.0)
        self.malformed += batch["malformed"]
        for name, counters in batch["joins"].items():
            self.joins.setdefault(name, StreamStatistics()).add(counters)


class JsonLines(BatchReport):
    """A line of JSON a micro-batch, added to a file and written through at once.

    A batch that is replayed after a restart has two lines, of different ``run_id``.
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


def _malformed(metrics: Any) -> int:
    return 0 if metrics is None else int(metrics[MALFORMED] or 0)
