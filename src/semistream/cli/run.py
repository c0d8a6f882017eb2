"""``semistream run``: a pipeline from its file."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from semistream.cli.console import facts, out
from semistream.cli.path_arguments import read_path

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from semistream.spark.monitoring.listening import BatchTotals, StatisticsListener
    from semistream.spark.pipeline.plan import PipelinePlan

__all__ = ["run"]


def run(
    path: Annotated[
        Path, typer.Argument(help="The pipeline: a TOML file.", show_default=False, parser=read_path, metavar="PATH")
    ],
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Go on from the checkpoint though it is another pipeline's.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Only check the file; exit code 2 if it is wrong.")] = False,
) -> None:
    """Run a pipeline: a stream, joined with relations, into a sink.

    The whole file is checked first, and everything that is wrong with it is told with its line. A pipeline that was
    stopped, by any means, goes on where its checkpoint says. Ctrl-C stops it: the micro-batch it is in is done again
    then, and the sink has it once.
    """
    from semistream.spark.monitoring.listening import BatchTotals
    from semistream.spark.pipeline import load, start

    pipeline = load(path, adopt=adopt)
    try:
        if check:
            out.print(f"[green]{path} is right[/green]: {', '.join(pipeline.rows.columns)}", soft_wrap=True)
            return
        totals = BatchTotals()
        with _statistics(pipeline.plan, totals) as listener:
            pipeline.spark.streams.addListener(listener)
            query = start(pipeline)
            _await(query)
            listener.wait_for(query.runId)
            pipeline.spark.streams.removeListener(listener)
            out.print(_summary(query, totals, pipeline.plan))
    finally:
        with contextlib.suppress(Exception):  # interrupted, the JVM may be gone already
            pipeline.spark.stop()


@contextlib.contextmanager
def _statistics(plan: PipelinePlan, totals: BatchTotals) -> Iterator[StatisticsListener]:
    from semistream.spark.monitoring.listening import BatchReport, JsonLines, StatisticsListener
    from semistream.spark.monitoring.prometheus import PrometheusPage

    reports: list[BatchReport] = [totals]
    if plan.statistics.file is not None:
        reports.append(JsonLines(plan.statistics.file))
    if plan.statistics.port is not None:
        page = PrometheusPage(plan.statistics.port)
        out.print(f"Statistics at http://127.0.0.1:{page.port}/metrics")
        reports.append(page)
    listener = StatisticsListener(reports)
    try:
        yield listener
    finally:
        for report in reports:
            report.close()


def _await(query: StreamingQuery) -> None:
    """Wait for the end of the query, or stop it when asked to."""
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    # Not the default for Ctrl-C: it would break off a call to the JVM in its middle.
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not query.awaitTermination(1):
            if stopping:
                query.stop()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _summary(query: StreamingQuery, totals: BatchTotals, plan: PipelinePlan) -> Table:
    from semistream.core.units import format_bytes, format_count

    table = facts()
    speed = f", {format_count(totals.rows / totals.seconds)} rows/s" if totals.seconds else ""
    table.add_row(query.name or str(query.id), f"{totals.rows:,} rows in {totals.batches} micro-batches{speed}")
    if totals.malformed and plan.source is not None:
        became = {"dead_letter": "now dead letters", "drop": "left out", "null": "kept, with NULLs"}
        told = became.get(plan.source.on_malformed or "", "")
        table.add_row("[yellow]malformed[/yellow]", f"[yellow]{totals.malformed:,} rows, {told}[/yellow]")
    for name, found in totals.joins.items():
        counted = found.totals
        table.add_row(
            name,
            f"{counted.rows_in:,} rows in, {counted.rows_out:,} out, {counted.unmatched:,} without a partner; "
            f"{counted.pages_read:,} pages read, {counted.hit_ratio:.0%} needed no read; "
            f"{format_bytes(found.bytes_held)} of {format_bytes(found.memory)} held",
        )
    return table
