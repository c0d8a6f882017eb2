"""Joins on Apache Spark: sessions, jobs that build relations, and joins of streaming DataFrames."""

from __future__ import annotations

import semistream.spark.supported as _supported  # noqa: F401 - first: imports of an old PySpark fail
from semistream.spark.joining.star.enrichment import dimension, enrich
from semistream.spark.joining.stream_join import join
from semistream.spark.monitoring.listening import BatchReport, JsonLines, StatisticsListener
from semistream.spark.monitoring.metrics import StreamStatistics, counters_of, stream_statistics
from semistream.spark.monitoring.prometheus import PrometheusPage
from semistream.spark.relations.build_job import build
from semistream.spark.relations.change_stream import debezium_changes, write_changes
from semistream.spark.relations.update_jobs import compact, delete, upsert
from semistream.spark.sales_source import register_sources
from semistream.spark.sessions import session
from semistream.spark.sinks import DatabaseSink, DeltaSink, ParquetSink, write_stream
from semistream.spark.sql_functions import register

__all__ = [
    "BatchReport",
    "DatabaseSink",
    "DeltaSink",
    "JsonLines",
    "ParquetSink",
    "PrometheusPage",
    "StatisticsListener",
    "StreamStatistics",
    "build",
    "compact",
    "counters_of",
    "debezium_changes",
    "delete",
    "dimension",
    "enrich",
    "join",
    "register",
    "register_sources",
    "session",
    "stream_statistics",
    "upsert",
    "write_changes",
    "write_stream",
]
