"""Statistics of every micro-batch as they come: to a file of JSON lines, and as Prometheus text on a port.

Spark calls a `StatisticsListener` after each micro-batch with its progress, in which every join that was given
``metrics=name`` has its counters (`semistream.spark.metrics`). Each goes to all *reports*: `JsonLines` keeps a line a
batch; `PrometheusPage` keeps totals, and serves them to whoever asks on the loopback address.
"""

from __future__ import annotations

import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from semistream.core.errors import SemistreamError
from semistream.core.paths import local_path
from semistream.core.statistics import JoinStatistics
from semistream.spark.metrics import StreamStatistics, counters_of

__all__ = ["BatchReport", "BatchTotals", "JsonLines", "PortTakenError", "PrometheusPage", "StatisticsListener"]


class PortTakenError(SemistreamError, OSError):
    """A port that another process has."""


class BatchReport(ABC):
    """Who wants to know of each micro-batch."""

    @abstractmethod
    def add(self, batch: Mapping[str, Any]) -> None:
        """Take note of a micro-batch.

        ``batch`` has ``query``, ``query_id``, ``run_id``, ``batch``, ``began``, ``rows`` that came in, ``seconds`` by
        phase, and ``joins``: the counters of each.
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
        self.batches = 0
        self.seconds = 0.0
        self.joins: dict[str, StreamStatistics] = {}

    def add(self, batch: Mapping[str, Any]) -> None:
        if batch["rows"]:
            self.batches += 1
            self.rows += batch["rows"]
            self.seconds += batch["seconds"].get("triggerExecution", 0.0)
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


class PrometheusPage(BatchReport):
    """Totals of all micro-batches since the start, as Prometheus reads them, on the loopback address.

    Parameters
    ----------
    port
        0 takes any free port; `port` tells which.
    """

    def __init__(self, port: int) -> None:
        self._lock = threading.Lock()
        self._joins: dict[tuple[str, str], StreamStatistics] = {}
        self._queries: dict[str, dict[str, float]] = {}
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path.split("?")[0] in ("/", "/metrics")
                body = page.text().encode() if found else b"the statistics are at /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing: a page that is asked for every few seconds is no news."""

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except OSError as error:
            raise PortTakenError(
                f"port {port} of the loopback address cannot be had for statistics: {error.strerror}; give another, "
                "or 0 for any"
            ) from None
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def add(self, batch: Mapping[str, Any]) -> None:
        name = batch["query"] or batch["query_id"]
        with self._lock:
            query = self._queries.setdefault(
                name, {"batches": 0, "rows": 0, "seconds": 0.0, "last": 0, "last_seconds": 0}
            )
            took = batch["seconds"].get("triggerExecution", 0.0)
            if batch["rows"]:
                query["batches"] += 1
            query["rows"] += batch["rows"]
            query["seconds"] += took
            query["last"], query["last_seconds"] = batch["batch"], took
            for join, counters in batch["joins"].items():
                self._joins.setdefault((name, join), StreamStatistics()).add(counters)

    def text(self) -> str:
        """Return the page."""
        with self._lock:
            lines: list[str] = []
            for name, kind, key, told in _QUERY_SERIES:
                values = [({"query": query}, found[key]) for query, found in self._queries.items()]
                lines += _series(f"semistream_{name}", kind, told, values)
            for part in sorted(asdict(JoinStatistics())):
                values = [
                    ({"query": query, "join": join}, getattr(found.totals, part))
                    for (query, join), found in self._joins.items()
                ]
                lines += _series(f"semistream_join_{part}_total", "counter", f"Sum of {part} over all tasks.", values)
            for part, told in _JOIN_GAUGES:
                values = [
                    ({"query": query, "join": join}, getattr(found, part))
                    for (query, join), found in self._joins.items()
                ]
                lines += _series(f"semistream_join_{part}", "gauge", told, values)
        return "\n".join(lines) + "\n"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


_QUERY_SERIES = (
    ("batches_total", "counter", "batches", "Micro-batches with rows."),
    ("input_rows_total", "counter", "rows", "Rows that came in."),
    ("batch_seconds_total", "counter", "seconds", "Time that micro-batches took."),
    ("last_batch", "gauge", "last", "Number of the last micro-batch."),
    ("last_batch_seconds", "gauge", "last_seconds", "Time that the last micro-batch took."),
)
_JOIN_GAUGES = (
    ("bytes_held", "The most that the joins of one micro-batch reserved together."),
    ("memory", "The most that they might have reserved."),
)


def _series(name: str, kind: str, told: str, values: list[tuple[dict[str, str], float]]) -> list[str]:
    lines = [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]
    for labels, value in values:
        listed = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{listed}}} {value!r}")
    return lines if values else []


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
