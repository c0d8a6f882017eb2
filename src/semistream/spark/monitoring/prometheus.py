"""Totals of all micro-batches for Prometheus, served on the loopback address."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from semistream.core.errors import SemistreamError
from semistream.core.statistics import JoinStatistics
from semistream.spark.monitoring.listening import BatchReport, add_parked
from semistream.spark.monitoring.metrics import SPLIT, StreamStatistics

__all__ = ["PortTakenError", "PrometheusPage", "check_port"]

_LOOPBACK = "127.0.0.1"
_QUERY_COUNTERS = {
    "batches": "Micro-batches with rows.",
    "input_rows": "Rows that came in.",
    "malformed_rows": "Rows that did not fit the schema of the source.",
    "dead_rows": "Rows that became dead letters, malformed ones included.",
    "batch_seconds": "Time that micro-batches took, in seconds.",
}
_QUERY_GAUGES = {
    "last_batch": "Number of the last micro-batch.",
    "last_batch_seconds": "Time that the last micro-batch took, in seconds.",
    "last_batch_time_seconds": "When the last micro-batch was reported, in seconds since 1970.",
    "alive_time_seconds": "When the query last gave a sign of life, a micro-batch or that no rows come, since 1970.",
    "arrival_rate": "Rows a second that came in, as of the last micro-batch.",
    "service_rate": "Rows a second that the last micro-batch served.",
}
_TOLD = {
    "rows_in": "Rows offered to the join, NULL keys included.",
    "rows_out": "Rows that came out of it.",
    "rows_done": "Rows of the stream that the join has finished with.",
    "null_keys": "Rows whose key was NULL.",
    "unmatched": "Rows without a partner in R, NULL keys included.",
    "cache_hits": "Rows that memory answered, without a read of their own.",
    "pages_read": "Pages of R that were read.",
    "pages_useful": "Pages read that a row waited for, of joins that tell.",
    "reads": "Requests to the device.",
    "bytes_read": "Bytes read of R.",
    "io_seconds": "Time spent reading, in seconds, of all tasks together.",
    "store_requests": "Requests to the object store that R is in.",
    "store_bytes": "Bytes that came from it, those between wanted pages included.",
    "local_pages": "Of the pages read, those that the machine's local tier had.",
    "busy_seconds": "Time spent joining, reading included, in seconds, of all tasks together.",
}
_JOIN_GAUGES = {
    "bytes_held": "Bytes: the most that the joins of one micro-batch reserved together.",
    "memory": "Bytes: the most that they might have reserved.",
}
_PARKED = {
    "found_late": "Parked rows whose partner came.",
    "expired": "Parked rows that were given up.",
}
_SHARD_GAUGES = {
    "rows_in": "Rows that a shard had in the last micro-batch.",
    "cache_hits": "Of these, rows that memory answered.",
    "pages_read": "Pages that a shard read in the last micro-batch.",
    "busy_seconds": "Time that a shard's join took in the last micro-batch, in seconds.",
    "bytes_held": "Bytes that a shard's join held at most in the last micro-batch.",
    "version": "Version of R that a shard's join read in the last micro-batch.",
}


class PortTakenError(SemistreamError, OSError):
    """A port that another process has."""


def check_port(port: int, use: str) -> None:
    """Raise `PortTakenError` if a port of the loopback address is another's; 0 is any, and never is."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((_LOOPBACK, port))
        except OSError as error:
            raise PortTakenError(_taken(port, use, error)) from None


def _taken(port: int, use: str, error: OSError) -> str:
    reason = error.strerror or error
    return f"port {port} of the loopback address cannot be had for {use}: {reason}; give another, or 0 for any"


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
        self._parked: dict[tuple[str, str], dict[str, int]] = {}
        self._last: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._queries: dict[str, dict[str, float]] = {}
        self._backlogs: dict[tuple[str, str], float] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, _LOOPBACK, self._registry)
        except OSError as error:
            raise PortTakenError(_taken(port, "statistics", error)) from None
        self.port = int(self._server.server_port)

    def add(self, batch: Mapping[str, Any]) -> None:
        name = batch["query"] or batch["query_id"]
        took = batch["seconds"].get("triggerExecution", 0.0)
        with self._lock:
            query = self._queries.setdefault(name, dict.fromkeys(_QUERY_COUNTERS, 0.0))
            query["batches"] += bool(batch["rows"])
            query["input_rows"] += batch["rows"]
            query["malformed_rows"] += batch["malformed"]
            query["dead_rows"] += batch.get("dead", 0)
            query["batch_seconds"] += took
            now = time.time()
            query |= {"last_batch": batch["batch"], "last_batch_seconds": took}
            query |= {"last_batch_time_seconds": now, "alive_time_seconds": now}
            query |= {rate: batch[rate] for rate in ("arrival_rate", "service_rate") if batch.get(rate) is not None}
            for unit, behind in (batch.get("backlog") or {}).items():
                self._backlogs[name, unit] = behind
            for join, counters in batch["joins"].items():
                key = name, join
                self._joins.setdefault(key, StreamStatistics()).add(counters)
                if counters.get("tasks"):
                    self._last[key] = counters
                if (now := counters.get("parked")) is not None:
                    add_parked(self._parked.setdefault(key, {}), now)

    def alive(self, query: str) -> None:
        with self._lock:
            self._queries.setdefault(query, dict.fromkeys(_QUERY_COUNTERS, 0.0))["alive_time_seconds"] = time.time()

    def collect(self) -> Iterator[Metric]:
        """Yield all series, as the registry asks for them."""
        with self._lock:
            yield from self._of_queries()
            yield from self._of_joins()
            yield from self._of_shards()

    def _of_queries(self) -> Iterator[Metric]:
        for name, told in _QUERY_COUNTERS.items():
            counter = CounterMetricFamily(f"semistream_{name}", told, labels=["query"])
            for query, found in self._queries.items():
                counter.add_metric([query], found[name])
            yield counter
        for name, told in _QUERY_GAUGES.items():
            gauge = GaugeMetricFamily(f"semistream_{name}", told, labels=["query"])
            for query, found in self._queries.items():
                if name in found:
                    gauge.add_metric([query], found[name])
            yield gauge
        gauge = GaugeMetricFamily("semistream_backlog", "What sources still have, by unit.", labels=["query", "unit"])
        for labels, behind in self._backlogs.items():
            gauge.add_metric(labels, behind)
        yield gauge

    def _of_joins(self) -> Iterator[Metric]:
        for part in sorted(asdict(JoinStatistics())):
            told = _TOLD.get(part, f"Sum of {part} over all tasks.")
            counter = CounterMetricFamily(f"semistream_join_{part}", told, labels=["query", "join"])
            for labels, joined in self._joins.items():
                counter.add_metric(labels, getattr(joined.totals, part))
            yield counter
        for part, told in _JOIN_GAUGES.items():
            gauge = GaugeMetricFamily(f"semistream_join_{part}", told, labels=["query", "join"])
            for labels, joined in self._joins.items():
                gauge.add_metric(labels, getattr(joined, part))
            yield gauge
        told = "Bytes that the joins of the last micro-batch held, by what they are for."
        gauge = GaugeMetricFamily("semistream_join_memory_part_bytes", told, labels=["query", "join", "part"])
        for labels, counters in self._last.items():
            for part in SPLIT:
                if part in counters:
                    gauge.add_metric([*labels, part.removesuffix("_bytes")], counters[part])
        yield gauge
        for part, told in _PARKED.items():
            counter = CounterMetricFamily(f"semistream_join_parked_{part}", told, labels=["query", "join"])
            for labels, found in self._parked.items():
                counter.add_metric(labels, found[part])
            yield counter
        gauge = GaugeMetricFamily("semistream_join_parked_rows", "Rows that are parked now.", labels=["query", "join"])
        for labels, found in self._parked.items():
            gauge.add_metric(labels, found["waiting"])
        yield gauge

    def _of_shards(self) -> Iterator[Metric]:
        for part, told in _SHARD_GAUGES.items():
            gauge = GaugeMetricFamily(f"semistream_shard_{part}", told, labels=["query", "join", "shard"])
            for labels, counters in self._last.items():
                for shard in counters.get("shards", ()):
                    gauge.add_metric([*labels, str(shard["shard"])], shard[part])
            yield gauge

    def text(self) -> str:
        """Return the page."""
        return generate_latest(self._registry).decode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
