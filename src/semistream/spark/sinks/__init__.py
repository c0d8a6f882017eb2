"""Exactly-once sinks, which ignore replayed micro-batches: Parquet files, Delta tables, PostgreSQL, MariaDB."""

from __future__ import annotations

from semistream.spark.sinks.batch_writer import write_stream
from semistream.spark.sinks.database_sink import DatabaseSink
from semistream.spark.sinks.delta import DeltaSink
from semistream.spark.sinks.parquet import ParquetSink
from semistream.spark.sinks.sink import BatchSink, SinkError

__all__ = ["BatchSink", "DatabaseSink", "DeltaSink", "ParquetSink", "SinkError", "write_stream"]
