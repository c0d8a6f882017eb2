"""Pipelines run to their end on the session of the tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from feeding import patiently
from semistream.spark.monitoring.listening import BatchReport, StatisticsListener
from semistream.spark.pipeline import start
from semistream.spark.pipeline.running import Pipeline

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def run_reported(pipeline: Pipeline, reports: Sequence[BatchReport]) -> StreamingQuery:
    """Run a pipeline that ends by itself; reports have its last micro-batch too, and are closed."""

    def to_its_end() -> StreamingQuery:
        query = start(pipeline)
        query.awaitTermination()
        return query

    listener = StatisticsListener(reports)
    pipeline.spark.streams.addListener(listener)
    try:
        query = patiently(to_its_end)
        assert listener.wait_for(query.runId)
    finally:
        pipeline.spark.streams.removeListener(listener)
        for report in reports:
            report.close()
    return query
