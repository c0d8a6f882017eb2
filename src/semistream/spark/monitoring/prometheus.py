"""Totals of all micro-batches for Prometheus, served on the loopback address."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from semistream.core.errors import SemistreamError
from semistream.core.statistics import JoinStatistics
from semistream.spark.monitoring.listening import BatchReport
from semistream.spark.monitoring.metrics import StreamStatistics

__all__ = ["PortTakenError", "PrometheusPage"]

_LOOPBACK = "127.0.0.1"
_QUERY_COUNTERS = (
    ("batches", "batches", "Micro-batches with rows."),
    ("input_rows", "rows", "Rows that came in."),
    ("malformed_rows", "malformed", "Rows that did not fit the schema of the source."),
    ("batch_seconds", "seconds", "Time that micro-batches took."),
)
_QUERY_GAUGES = (
    ("last_batch", "last", "Number of the last micro-batch."),
    ("last_batch_seconds", "last_seconds", "Time that the last micro-batch took."),
)
_JOIN_GAUGES = (
    ("bytes_held", "The most that the joins of one micro-batch reserved together."),
    ("memory", "The most that they might have reserved."),
)


class PortTakenError(SemistreamError, OSError):
    """A port that another process has."""


class PrometheusPage(BatchReport, Collector):
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
        self._registry = CollectorRegistry()
        self._registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, _LOOPBACK, self._registry)
        except OSError as error:
            raise PortTakenError(
                f"port {port} of the loopback address cannot be had for statistics: {error.strerror}; give another, "
                "or 0 for any"
            ) from None
        self.port = int(self._server.server_port)

    def add(self, batch: Mapping[str, Any]) -> None:
        name = batch["query"] or batch["query_id"]
        with self._lock:
            query = self._queries.setdefault(
                name, {"batches": 0, "rows": 0, "malformed": 0, "seconds": 0.0, "last": 0, "last_seconds": 0}
            )
            took = batch["seconds"].get("triggerExecution", 0.0)
            if batch["rows"]:
                query["batches"] += 1
            query["rows"] += batch["rows"]
            query["malformed"] += batch["malformed"]
            query["seconds"] += took
            query["last"], query["last_seconds"] = batch["batch"], took
            for join, counters in batch["joins"].items():
                self._joins.setdefault((name, join), StreamStatistics()).add(counters)

    def collect(self) -> Iterator[Metric]:
        """Yield all series, as the registry asks for them."""
        with self._lock:
            for name, key, told in _QUERY_COUNTERS:
                counter = CounterMetricFamily(f"semistream_{name}", told, labels=["query"])
                for query, found in self._queries.items():
                    counter.add_metric([query], found[key])
                yield counter
            for name, key, told in _QUERY_GAUGES:
                gauge = GaugeMetricFamily(f"semistream_{name}", told, labels=["query"])
                for query, found in self._queries.items():
                    gauge.add_metric([query], found[key])
                yield gauge
            for part in sorted(asdict(JoinStatistics())):
                told = f"Sum of {part} over all tasks."
                counter = CounterMetricFamily(f"semistream_join_{part}", told, labels=["query", "join"])
                for labels, joined in self._joins.items():
                    counter.add_metric(labels, getattr(joined.totals, part))
                yield counter
            for part, told in _JOIN_GAUGES:
                gauge = GaugeMetricFamily(f"semistream_join_{part}", told, labels=["query", "join"])
                for labels, joined in self._joins.items():
                    gauge.add_metric(labels, getattr(joined, part))
                yield gauge

    def text(self) -> str:
        """Return the page."""
        return generate_latest(self._registry).decode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
