"""A pipeline file, from reading it to the running query."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from semistream.core.paths import local_path
from semistream.relation.followed.follow import catch_up
from semistream.spark.pipeline.assembly import as_messages, assemble, make_sink
from semistream.spark.pipeline.binding import bind, check_binding
from semistream.spark.pipeline.document import Document, PipelineError, Problem
from semistream.spark.pipeline.follow_reading import missing_relation
from semistream.spark.pipeline.plan import AVAILABLE_NOW, PipelinePlan
from semistream.spark.pipeline.reaching import check_reachable
from semistream.spark.pipeline.reading import read_plan
from semistream.spark.relations.change_stream import write_changes
from semistream.spark.sessions import session
from semistream.spark.sinks import write_stream

__all__ = ["Pipeline", "load", "start"]


@dataclass(frozen=True)
class Pipeline:
    """A pipeline that has been checked."""

    plan: PipelinePlan
    spark: SparkSession
    rows: DataFrame


def load(
    path: str | os.PathLike[str],
    environment: Mapping[str, str] = os.environ,
    *,
    adopt: bool = False,
    settings: Mapping[str, str] | None = None,
    follow: bool = True,
) -> Pipeline:
    """Read and check a pipeline file, and start the Spark session that it describes.

    With ``adopt`` it may continue from the checkpoint of another pipeline. The file's Spark settings override
    ``settings``. With ``follow``, relations that follow a table are built or brought up to date, if the file has no
    other error.

    Raises
    ------
    PipelineError
        All errors of the file, with their lines. Errors that only Spark can find are reported if the text has none.
        Then at most the session has been started.
    """
    path = local_path(path, "pipeline")
    try:
        text = path.read_text()
    except (FileNotFoundError, IsADirectoryError) as error:
        found = "is a directory" if isinstance(error, IsADirectoryError) else "is not there"
        raise PipelineError(
            path, [Problem(1, f"it {found}; a pipeline is a TOML file, and semistream init writes one to start from")]
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(path, [Problem(1, f"cannot be read: {error}")]) from None
    document = Document(path, text, environment)
    plan = read_plan(document)
    if follow and plan.follows and all(missing_relation(problem, plan.follows) for problem in document.problems):
        for one in plan.follows:
            catch_up(one.follower)
        document = Document(path, text, environment)
        plan = read_plan(document)
    if not document.problems:
        check_binding(plan, document, adopt=adopt)
        check_reachable(plan, document)
    if document.problems:  # report now: Spark takes seconds to start
        raise PipelineError(path, document.problems)
    chosen = {"spark.sql.session.timeZone": "UTC", **(settings or {}), **plan.spark}  # the same rows on every machine
    spark = session(plan.name, master=plan.master, memory=plan.heap, settings=chosen)
    rows = assemble(spark, plan, document)
    if rows is None or document.problems:
        raise PipelineError(path, document.problems)
    return Pipeline(plan, spark, rows)


def start(pipeline: Pipeline) -> StreamingQuery:
    """Start the query of a pipeline. It continues from its checkpoint."""
    plan = pipeline.plan
    assert plan.sink is not None
    assert plan.checkpoint is not None
    bind(plan)
    letters = None if plan.dead_letters is None else make_sink(plan.dead_letters, once=True)
    sink = make_sink(plan.sink, once=letters is not None)
    rows = pipeline.rows
    writer: DataStreamWriter
    if plan.sink.format == "relation":
        assert plan.sink.path is not None
        op, order, at = (plan.sink.options.get(name) for name in ("op", "order", "at"))
        writer = write_changes(rows, plan.sink.path, op=op or "op", order=order, at=at)
    elif sink is not None:
        writer = write_stream(rows, sink, dead_letters=letters)
    else:
        if plan.sink.format == "kafka":
            rows = as_messages(rows, plan.sink.key)
        writer = rows.writeStream.format(plan.sink.source or plan.sink.format).options(**plan.sink.options)
        if plan.sink.path is not None:
            writer = writer.option("path", plan.sink.path)
        if plan.sink.partition_by:
            writer = writer.partitionBy(*plan.sink.partition_by)
    if plan.trigger == AVAILABLE_NOW:
        writer = writer.trigger(availableNow=True)
    elif plan.trigger is not None:
        writer = writer.trigger(processingTime=plan.trigger)
    return writer.queryName(plan.name).option("checkpointLocation", str(plan.checkpoint)).start()
