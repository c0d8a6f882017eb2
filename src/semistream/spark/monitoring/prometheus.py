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
from semistream.relation.followed.follower import Lag
from semistream.relation.followed.lag_gauges import LagGauges
from semistream.spark.monitoring.listening import BatchReport, add_parked
from semistream.spark.monitoring.metrics import SPLIT, StreamStatistics

__all__ = ["PortTakenError", "PrometheusPage", "check_port"]

_LOOPBACK = "127.0.0.1"
_QUERY_COUNTERS = {
    "batches": "Micro-batches with rows.",
    "input_rows": "Rows that arrived.",
    "malformed_rows": "Rows that did not fit the schema of the source.",
    "dead_rows": "Rows that became dead letters, including malformed rows.",
    "batch_seconds": "Total duration of micro-batches, in seconds.",
}
_QUERY_GAUGES = {
    "last_batch": "Number of the last micro-batch.",
    "last_batch_seconds": "Duration of the last micro-batch, in seconds.",
    "last_batch_time_seconds": "When the last micro-batch was reported, in seconds since 1970.",
    "alive_time_seconds": "When the query last reported a micro-batch or that it is idle, in seconds since 1970.",
    "arrival_rate": "Input rows per second, as of the last micro-batch.",
    "service_rate": "Rows per second that the last micro-batch processed.",
}
_TOLD = {
    "rows_in": "Input rows of the join, including rows with a NULL key.",
    "rows_out": "Result rows of the join.",
    "rows_done": "Rows of the stream that the join has finished.",
    "null_keys": "Rows whose key was NULL.",
    "unmatched": "Rows without a match in R, including rows with a NULL key.",
    "cache_hits": "Rows answered from memory, without a page read.",
    "pages_read": "Pages of R that were read.",
    "pages_useful": "Pages read with requested rows, for joins that count them.",
    "reads": "Requests to the device.",
    "bytes_read": "Bytes read of R.",
    "io_seconds": "Time spent reading, in seconds, summed over all tasks.",
    "store_requests": "Requests to the object store of R.",
    "store_bytes": "Bytes read from the object store, including gaps between requested pages.",
    "local_pages": "Pages read from the machine's local disk cache.",
    "busy_seconds": "Time spent joining, including reads, in seconds, summed over all tasks.",
}
_JOIN_GAUGES = {
    "bytes_held": "Peak bytes that the joins of one micro-batch reserved together.",
    "memory": "Budget of the joins of one micro-batch, in bytes.",
}
_PARKED = {
    "found_late": "Parked rows that found a match.",
    "expired": "Parked rows that expired.",
}
_SHARD_GAUGES = {
    "rows_in": "Input rows of a shard in the last micro-batch.",
    "cache_hits": "Rows of a shard answered from memory in the last micro-batch.",
    "pages_read": "Pages that a shard read in the last micro-batch.",
    "busy_seconds": "Time spent in a shard's join in the last micro-batch, in seconds.",
    "bytes_held": "Peak bytes of a shard's join in the last micro-batch.",
    "version": "Version of R that a shard's join read in the last micro-batch.",
}


class PortTakenError(SemistreamError, OSError):
    """A port that another process uses."""


def check_port(port: int, use: str) -> None:
    """Raise `PortTakenError` if a port of the loopback address is in use; 0 means any free port."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((_LOOPBACK, port))
        except OSError as error:
            raise PortTakenError(_taken(port, use, error)) from None


def _taken(port: int, use: str, error: OSError) -> str:
    reason = error.strerror or error
    return f"port {port} of the loopback address cannot be used for {use}: {reason}; give another, or 0 for any"


class PrometheusPage(BatchReport, Collector):
    """Serves totals of all micro-batches since the start to Prometheus, on the loopback address.

    Parameters
    ----------
    port
        The port; 0 uses any free port, which is then in `port`.
    """

    def __init__(self, port: int) -> None:
        self._lock = threading.Lock()
        self._joins: dict[tuple[str, str], StreamStatistics] = {}
        self._parked: dict[tuple[str, str], dict[str, int]] = {}
        self._last: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._queries: dict[str, dict[str, float]] = {}
        self._backlogs: dict[tuple[str, str], float] = {}
        self._lags = LagGauges()
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

    def follow(self, relation: str, lag: Lag) -> None:
        self._lags.set(relation, lag)

    def collect(self) -> Iterator[Metric]:
        """Yield all series; called by the registry."""
        yield from self._lags.collect()
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
        gauge = GaugeMetricFamily("semistream_backlog", "Backlog of the sources, by unit.", labels=["query", "unit"])
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
        told = "Bytes that the joins of the last micro-batch held, by purpose."
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
