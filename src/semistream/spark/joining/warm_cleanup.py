"""Removal of warm caches: by the driver when a query ends, and by any task for queries that ended without that.

Caches are in memory; without removal they would stay until the machine is restarted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from semistream.spark.joining.warm import OWNERS, is_own, places, started

__all__ = ["forget_query", "forget_when_ended", "sweep", "sweep_once"]

IDLE_SECONDS = 3600.0
"""Seconds. A query without tasks on this machine for this long has ended, or can start with a cold cache."""


def forget_query(query: str) -> None:
    """Remove the caches of a query from this machine.

    A task that uses one keeps it until it ends.
    """
    for root in filter(is_own, places()):
        _remove(root / query)


def sweep(*, idle_seconds: float = IDLE_SECONDS) -> list[str]:
    """Remove what ended queries have left on this machine; return their ids.

    A query has ended if none of its processes is alive, or if it has run no task here for ``idle_seconds``.
    """
    swept = []
    for root in filter(is_own, places()):
        for directory in _listed(root):
            if _is_stale(directory, idle_seconds):
                _remove(directory)
                swept.append(directory.name)
    return swept


_next_sweep = 0.0


def sweep_once(*, every: float = 600.0) -> None:
    """Sweep, if this process has not done so for ``every`` seconds."""
    global _next_sweep
    if time.monotonic() >= _next_sweep:
        _next_sweep = time.monotonic() + every
        sweep()


class _Ended(StreamingQueryListener):
    """Removes what a query has left on this machine when it ends; on other machines `sweep` does that."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        forget_query(str(event.id))


_listening: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def forget_when_ended(session: SparkSession) -> None:
    """Register a listener that removes the caches of this session's queries when they end; once per session."""
    if session not in _listening:
        _listening.add(session)
        # Listeners are not allowed everywhere, for example not inside a declarative pipeline.
        with contextlib.suppress(PySparkException):
            session.streams.addListener(_Ended())


def _remove(directory: Path) -> None:
    """Remove a directory: rename it first, so that no process finds it half empty."""
    trash = directory.with_name(f"{directory.name}-removed-{os.getpid()}-{time.monotonic_ns()}")
    with contextlib.suppress(OSError):
        directory.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)


def _is_stale(query: Path, idle_seconds: float) -> bool:
    owners = list(_listed(query / OWNERS))
    try:
        if any(time.time() - owner.stat().st_mtime < idle_seconds and _is_alive(owner.name) for owner in owners):
            return False
        # a directory that is being created has no owner yet
        return bool(owners) or time.time() - query.stat().st_mtime > 60.0
    except FileNotFoundError:
        return False  # another process is sweeping


def _is_alive(owner: str) -> bool:
    process, _, since = owner.partition("-")
    return process.isdecimal() and bool(since) and since == started(int(process))


def _listed(directory: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from list(directory.iterdir())
