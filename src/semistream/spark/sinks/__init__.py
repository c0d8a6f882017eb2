"""Sinks that a replayed micro-batch changes nothing in: Delta tables, PostgreSQL, MariaDB.

Parquet needs none of this: Spark's own file sink keeps a log of its batches.
"""

from __future__ import annotations

from semistream.spark.sinks.base import BatchSink, SinkError, write_stream
from semistream.spark.sinks.database import DatabaseSink
from semistream.spark.sinks.delta import DeltaSink

__all__ = ["BatchSink", "DatabaseSink", "DeltaSink", "SinkError", "write_stream"]
