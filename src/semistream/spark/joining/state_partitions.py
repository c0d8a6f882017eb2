"""Use as many state partitions as a parked stream has shards, whatever the session's setting is.

Spark cuts the state of a query into ``spark.sql.shuffle.partitions``, 200 by default. Each costs a task with a Python
worker and a state store in every micro-batch, even if it is empty. Parked rows are in as many groups as R has shards.
So when such a query starts, the number is changed in the query's private copy of the session's settings; the checkpoint
keeps it. If that copy is out of reach, as on Spark Connect, the session's setting applies.
"""

from __future__ import annotations

import contextlib
import importlib
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
from semistream.spark.features import ROCKSDB, state_partitions_setting

__all__ = ["check_can_park", "parking_name", "shrink_state_of_parking"]

_SHUFFLE = "spark.sql.shuffle.partitions"
_NAME = "semistream_parking_in_{}"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def check_can_park(stream: DataFrame) -> None:
    """Raise if rows cannot be parked: there are no micro-batches, or the state store does not support it."""
    if not stream.isStreaming:
        raise UnsupportedJoinError(
            "on_missing='park' waits for later micro-batches, but a batch DataFrame has none; use null, drop or "
            "dead_letter"
        )
    found = stream.sparkSession.conf.get(_PROVIDER, "")
    if not str(found).endswith("RocksDBStateStoreProvider"):
        raise UnsupportedJoinError(
            f"on_missing='park' needs the RocksDB state store, but {_PROVIDER} is {found!r}; set it to {ROCKSDB}"
        )
    try:
        importlib.import_module("pyspark.sql.streaming.proto.StateMessage_pb2")
    except Exception as error:  # of protobuf, which this version of PySpark may not accept
        raise UnsupportedJoinError(
            f"on_missing='park' needs the package protobuf in a version that PySpark accepts, but: {error}; run: pip "
            "install 'semistream[spark]'"
        ) from error


def parking_name(shards: int) -> str:
    """Return the name of the function before the state; `_shrink` finds in it how many partitions are enough."""
    return _NAME.format(shards)


_listening: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def shrink_state_of_parking(session: SparkSession) -> None:
    """Make queries of a session that have parked rows, and no other state, use few state partitions."""
    if hasattr(session, "_jsparkSession") and session not in _listening:
        _listening.add(session)
        # Listeners are not allowed everywhere, for example not inside a declarative pipeline.
        with contextlib.suppress(PySparkException):
            session.streams.addListener(_Starting(session))


class _Starting(StreamingQueryListener):
    """Called in the query's own thread, before the query reads its settings."""

    def __init__(self, session: SparkSession) -> None:
        self._session = weakref.ref(session)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        session = self._session()
        with contextlib.suppress(Exception):  # the query is then slow, but correct
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
        conf.set(state_partitions_setting(conf), str(min(max(wanted), int(conf.get(_SHUFFLE)))))
