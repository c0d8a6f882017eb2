"""As many partitions of state as a parked stream has shards, whatever the session shuffles into.

Spark cuts the state of a query into ``spark.sql.shuffle.partitions``, 200 by default, and each costs a task with a
Python worker and a state store in every micro-batch, empty or not. Parked rows are in as many groups as R has shards.
So when such a query starts, its own copy of the session's settings, which nobody else sees, gets another number; the
checkpoint keeps it. Where that copy is out of reach, as on Spark Connect, the session's setting stands.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from semistream.core.errors import UnsupportedJoinError
from semistream.spark.sessions import ROCKSDB

__all__ = ["check_can_park", "parking_name", "shrink_state_of_parking"]

_SETTING = "spark.sql.streaming.internal.stateStore.partitions"
_SHUFFLE = "spark.sql.shuffle.partitions"
_NAME = "semistream_parking_in_{}"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def check_can_park(stream: DataFrame) -> None:
    """Raise where rows cannot be parked: without micro-batches, or without a state store that Spark can do it in."""
    if not stream.isStreaming:
        raise UnsupportedJoinError(
            "on_missing='park' waits for later micro-batches, and a batch DataFrame has none; use null, drop or "
            "dead_letter"
        )
    found = stream.sparkSession.conf.get(_PROVIDER, "")
    if not str(found).endswith("RocksDBStateStoreProvider"):
        raise UnsupportedJoinError(
            f"on_missing='park' needs the state store in RocksDB, and {_PROVIDER} is {found!r}; set it to {ROCKSDB}"
        )


def parking_name(shards: int) -> str:
    """Return the name of the function before the state, by which a plan tells how many partitions are enough."""
    return _NAME.format(shards)


_told: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def shrink_state_of_parking(session: SparkSession) -> None:
    """See to it that queries of a session with parked rows, and no other state, have few partitions of it."""
    if hasattr(session, "_jsparkSession") and session not in _told:
        _told.add(session)
        # Inside a declarative pipeline, for one, nobody may listen.
        with contextlib.suppress(PySparkException):
            session.streams.addListener(_Starting(session))


class _Starting(StreamingQueryListener):
    """Is called by the query's own thread, before it looks at its settings."""

    def __init__(self, session: SparkSession) -> None:
        self._session = weakref.ref(session)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        session = self._session()
        with contextlib.suppress(Exception):  # slow then, and as right
            if session is not None:
                _shrink(session._jsparkSession.streams().get(str(event.id)).streamingQuery())

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


def _shrink(execution: Any) -> None:
    plan = str(execution.analyzedPlan().toString())
    wanted = [int(number) for number in re.findall(_NAME.format(r"(\d+)"), plan)]
    if wanted and not re.search("Deduplicate|Aggregate|Window|Distinct", plan):
        conf = execution.sparkSessionForStream().conf()
        conf.set(_SETTING, str(min(max(wanted), int(conf.get(_SHUFFLE)))))
