"""A few numbers of each micro-batch, which the page draws; a file keeps them across restarts."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from semistream.spark.monitoring.listening import BatchReport
from semistream.spark.monitoring.metrics import SPLIT

__all__ = ["History", "point_of"]

_KEPT = 600
_MISSING = 8
"""Maximum number of missing keys kept per join and micro-batch."""
_OF_JOIN = (
    "rows_in", "rows_out", "rows_done", "cache_hits", "unmatched", "null_keys", "pages_read", "pages_useful",
    "bytes_read", "busy_seconds", "io_seconds", "store_requests", "local_pages", "bytes_held", "memory",
)  # fmt: skip


def point_of(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a micro-batch that the page shows."""
    joins = {name: _of_join(counters) for name, counters in batch["joins"].items() if counters.get("tasks")}
    return {
        "query": batch["query"] or batch["query_id"],
        "run": batch["run_id"],
        "batch": batch["batch"],
        "time": _seconds(batch["began"]),
        "rows": batch["rows"],
        "seconds": batch["seconds"].get("triggerExecution", 0.0),
        "arrival": batch.get("arrival_rate"),
        "service": batch.get("service_rate"),
        "backlog": batch.get("backlog"),
        "malformed": batch["malformed"],
        "dead": batch.get("dead", 0),
        "parked": sum(counters["parked"]["waiting"] for counters in batch["joins"].values() if "parked" in counters),
        "joins": joins,
    }


def _of_join(counters: Mapping[str, Any]) -> dict[str, Any]:
    shards = counters.get("shards", ())
    return {
        **_numbers(counters),
        "version": max((shard["version"] for shard in shards), default=None),
        "parked": counters.get("parked"),
        "missing": dict(list((counters.get("missing") or {}).items())[:_MISSING]),
        "shards": {str(shard["shard"]): {**_numbers(shard), "version": shard["version"]} for shard in shards},
    }


def _numbers(counters: Mapping[str, Any]) -> dict[str, Any]:
    split = {part.removesuffix("_bytes"): counters[part] for part in SPLIT if counters.get(part)}
    return {**{name: counters[name] for name in _OF_JOIN if name in counters}, "split": split}


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


class History(BatchReport):
    """The last micro-batches of a query, including earlier runs.

    Parameters
    ----------
    path
        The file, with one line per micro-batch; None keeps them in memory only.
    kept
        Number of micro-batches to keep.

    Examples
    --------
    >>> History(None, kept=10).points()
    []
    """

    def __init__(self, path: Path | None, kept: int = _KEPT) -> None:
        self._path, self._kept = path, kept
        self._points: deque[dict[str, Any]] = deque(maxlen=kept)
        self._watchers: list[Callable[[dict[str, Any]], None]] = []
        self._lock = threading.Lock()
        self._lines = 0
        if path is not None:
            with contextlib.suppress(FileNotFoundError):
                self._read(path)

    def _read(self, path: Path) -> None:
        for line in path.read_text(encoding="utf-8").splitlines():
            self._lines += 1
            with contextlib.suppress(ValueError):  # an incomplete last line of a killed process
                self._points.append(json.loads(line))

    def add(self, batch: Mapping[str, Any]) -> None:
        if not batch["rows"] and not any(counters.get("parked") for counters in batch["joins"].values()):
            return
        point = point_of(batch)
        with self._lock:
            self._points.append(point)
            self._keep(point)
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher(point)

    def points(self) -> list[dict[str, Any]]:
        """Return all points, the oldest first."""
        with self._lock:
            return list(self._points)

    def watch(self, watcher: Callable[[dict[str, Any]], None]) -> None:
        """Call ``watcher`` for each new point, from the thread that adds it."""
        with self._lock:
            self._watchers.append(watcher)

    def _keep(self, point: dict[str, Any]) -> None:
        """Append a line. If the file has twice as many lines as needed, rewrite it with the newest."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._lines < 2 * self._kept:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(point) + "\n")
            self._lines += 1
            return
        written = self._path.with_name(self._path.name + ".new")
        written.write_text("".join(json.dumps(kept) + "\n" for kept in self._points), encoding="utf-8")
        os.replace(written, self._path)
        self._lines = len(self._points)
