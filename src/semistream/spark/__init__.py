"""Joins on Apache Spark: sessions, jobs that build relations, and joins of streaming DataFrames.

Names are loaded when they are first used, so a Python worker imports only what its task needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import semistream.spark.supported as _supported  # noqa: F401 - first: imports of an old PySpark fail

if TYPE_CHECKING:
    from semistream.spark.joining.star.enrichment import dimension as dimension
    from semistream.spark.joining.star.enrichment import enrich as enrich
    from semistream.spark.joining.stream_join import join as join
    from semistream.spark.monitoring.listening import BatchReport as BatchReport
    from semistream.spark.monitoring.listening import JsonLines as JsonLines
    from semistream.spark.monitoring.listening import StatisticsListener as StatisticsListener
    from semistream.spark.monitoring.metrics import StreamStatistics as StreamStatistics
    from semistream.spark.monitoring.metrics import counters_of as counters_of
    from semistream.spark.monitoring.metrics import stream_statistics as stream_statistics
    from semistream.spark.monitoring.prometheus import PrometheusPage as PrometheusPage
    from semistream.spark.relations.build_job import build as build
    from semistream.spark.relations.change_stream import debezium_changes as debezium_changes
    from semistream.spark.relations.change_stream import write_changes as write_changes
    from semistream.spark.relations.update_jobs import compact as compact
    from semistream.spark.relations.update_jobs import delete as delete
    from semistream.spark.relations.update_jobs import upsert as upsert
    from semistream.spark.sales_source import register_sources as register_sources
    from semistream.spark.sessions import session as session
    from semistream.spark.sinks import DatabaseSink as DatabaseSink
    from semistream.spark.sinks import DeltaSink as DeltaSink
    from semistream.spark.sinks import ParquetSink as ParquetSink
    from semistream.spark.sinks import write_stream as write_stream
    from semistream.spark.sql_functions import register as register

# Public name -> the module that has it.
_PUBLIC = {
    "BatchReport": "semistream.spark.monitoring.listening",
    "DatabaseSink": "semistream.spark.sinks",
    "DeltaSink": "semistream.spark.sinks",
    "JsonLines": "semistream.spark.monitoring.listening",
    "ParquetSink": "semistream.spark.sinks",
    "PrometheusPage": "semistream.spark.monitoring.prometheus",
    "StatisticsListener": "semistream.spark.monitoring.listening",
    "StreamStatistics": "semistream.spark.monitoring.metrics",
    "build": "semistream.spark.relations.build_job",
    "compact": "semistream.spark.relations.update_jobs",
    "counters_of": "semistream.spark.monitoring.metrics",
    "debezium_changes": "semistream.spark.relations.change_stream",
    "delete": "semistream.spark.relations.update_jobs",
    "dimension": "semistream.spark.joining.star.enrichment",
    "enrich": "semistream.spark.joining.star.enrichment",
    "join": "semistream.spark.joining.stream_join",
    "register": "semistream.spark.sql_functions",
    "register_sources": "semistream.spark.sales_source",
    "session": "semistream.spark.sessions",
    "stream_statistics": "semistream.spark.monitoring.metrics",
    "upsert": "semistream.spark.relations.update_jobs",
    "write_changes": "semistream.spark.relations.change_stream",
    "write_stream": "semistream.spark.sinks",
}

__all__ = [*_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
