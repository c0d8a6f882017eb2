"""``semistream run``: runs a pipeline file."""

from __future__ import annotations

import contextlib
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from semistream.cli.console import debugging, errors, facts, out
from semistream.cli.path_arguments import read_path
from semistream.cli.quiet_start import own_stderr, stderr_to
from semistream.cli.run_following import following
from semistream.cli.run_notices import first_batch_notices, last_number, waiting

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from semistream.spark.monitoring.files_left import FilesLeft
    from semistream.spark.monitoring.listening import BatchReport, BatchTotals, StatisticsListener
    from semistream.spark.pipeline.plan import PipelinePlan

__all__ = ["run"]


def run(
    path: Annotated[
        Path, typer.Argument(help="The pipeline: a TOML file.", show_default=False, parser=read_path, metavar="PATH")
    ],
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Continue from the checkpoint although it belongs to another pipeline.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Only check the file; exit code 2 if it is wrong.")] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Serve a live page, reachable from this machine only.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port of the live page; 0: any free port.", min=0, max=65535)] = 8088,
) -> None:
    """Run a pipeline: join a stream with relations and write the result to a sink.

    The whole file is checked first. Every error is shown with its line number. A pipeline that was stopped or killed
    continues from its checkpoint. Ctrl-C stops it. The micro-batch in progress is repeated at the next start, and the
    sink contains its rows once.
    """
    from semistream.spark.monitoring.listening import BatchTotals
    from semistream.spark.monitoring.prometheus import check_port
    from semistream.spark.pipeline import load, start

    if dashboard and not check:  # check before Spark starts, which takes seconds
        import semistream.dashboard  # noqa: F401 - raises an error that names the missing extra

        check_port(port, "the page (--port)")
    # Spark logs each failure several times, in hundreds of lines. The command prints it once, as one message.
    quiet = {} if debugging.on else {"spark.log.level": "FATAL"}
    with _quietly() as screen, waiting(screen, f"Checking {escape(str(path))} and starting Spark"):
        pipeline = load(path, adopt=adopt, settings=quiet, follow=not check)
    try:
        if check:
            out.print(
                f"[green]{escape(str(path))} is valid[/green]; columns: {escape(', '.join(pipeline.rows.columns))}",
                soft_wrap=True,
            )
            return
        totals = BatchTotals()
        with _statistics(pipeline.plan, totals, port if dashboard else None) as listener:
            pipeline.spark.streams.addListener(listener)
            before = last_number(pipeline.plan.checkpoint, "commits") is not None
            query = start(pipeline)
            out.print(_begun(pipeline.plan), soft_wrap=True)
            for notice in first_batch_notices(pipeline.plan.checkpoint):
                errors.print(f"[dim]{notice}[/dim]", soft_wrap=True)
            with following(pipeline.plan, query, listener.reports):
                jvm_runs = _await(query)
            if jvm_runs:
                listener.wait_for(query.runId)
                pipeline.spark.streams.removeListener(listener)
            out.print(_summary(query.name or str(query.id), totals, pipeline.plan, before=before))
    finally:
        with contextlib.suppress(Exception):  # after an interrupt the JVM may have ended already
            pipeline.spark.stop()


@contextlib.contextmanager
def _quietly() -> Iterator[Console]:
    """Hide what the JVM writes while it starts, unless ``--debug`` is given."""
    with contextlib.ExitStack() as stack:
        screen = stack.enter_context(own_stderr())
        if not debugging.on:
            place = stack.enter_context(tempfile.TemporaryDirectory(prefix="semistream-run-"))
            stack.enter_context(stderr_to(Path(place) / "spark.log"))
        yield screen


@contextlib.contextmanager
def _statistics(plan: PipelinePlan, totals: BatchTotals, port: int | None) -> Iterator[StatisticsListener]:
    from semistream.cli.batch_lines import BatchLines
    from semistream.spark.monitoring.listening import SOURCE, JsonLines, StatisticsListener
    from semistream.spark.monitoring.prometheus import PrometheusPage

    reports: list[BatchReport] = [totals, BatchLines(plan, out)]
    if port is not None:
        reports.append(_live_page(plan, port))
    if plan.statistics.file is not None:
        reports.append(JsonLines(plan.statistics.file))
    if plan.statistics.port is not None:
        page = PrometheusPage(plan.statistics.port)
        out.print(f"Statistics at http://127.0.0.1:{page.port}/metrics")
        reports.append(page)
    letters = [join.name for join in plan.joins if join.has_dead_letters]
    if plan.source is not None and plan.source.on_malformed == "dead_letter":
        letters.append(SOURCE)
    listener = StatisticsListener(reports, letters, _files_left(plan))
    try:
        yield listener
    finally:
        for report in reports:
            report.close()


def _files_left(plan: PipelinePlan) -> dict[str, FilesLeft]:
    from semistream.spark.monitoring.files_left import FilesLeft

    if plan.source is None or plan.source.path is None or plan.checkpoint is None:
        return {}
    return {plan.name: FilesLeft(plan.source.path, plan.checkpoint, plan.source.options.get("pathGlobFilter"))}


def _live_page(plan: PipelinePlan, port: int) -> BatchReport:
    from semistream.dashboard import Dashboard

    assert plan.checkpoint is not None
    page = Dashboard(plan.name, port, history=plan.checkpoint.with_name(f"{plan.checkpoint.name}-history.jsonl"))
    out.print(f"Live page at {page.url}")
    return page


def _begun(plan: PipelinePlan) -> str:
    from semistream.spark.pipeline.plan import AVAILABLE_NOW

    until = "until all available rows are processed" if plan.trigger == AVAILABLE_NOW else "until Ctrl-C"
    return f"{escape(plan.name)} runs {until}. When started again, it continues from {escape(str(plan.checkpoint))}."


def _await(query: StreamingQuery) -> bool:
    """Wait until the query ends; stop it on Ctrl-C or SIGTERM.

    Returns whether the JVM still runs: `timeout` and systemd send SIGTERM to it, too.
    """
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    # Replaces the default handler of Ctrl-C, which would interrupt a call to the JVM.
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not query.awaitTermination(1):
            if stopping:
                query.stop()
    except Exception:
        if not stopping:
            raise
        return False
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return True


def _summary(name: str, totals: BatchTotals, plan: PipelinePlan, *, before: bool) -> Table:
    """Return a summary of the run; ``before`` says whether an earlier run has committed batches."""
    from semistream.core.units import format_bytes, format_count
    from semistream.spark.pipeline.plan import AVAILABLE_NOW

    table = facts()
    speed = f", {format_count(totals.rows / totals.seconds)} rows/s" if totals.seconds else ""
    done = f"{totals.rows:,} rows in {totals.batches} micro-batch{'' if totals.batches == 1 else 'es'}{speed}"
    if not totals.batches:
        again = before and plan.trigger == AVAILABLE_NOW
        done = "nothing new: all rows of the source were joined before" if again else "no rows arrived"
    table.add_row(escape(name), done)
    if totals.malformed and plan.source is not None:
        became = {"dead_letter": "now dead letters", "drop": "dropped", "null": "kept, with NULLs"}
        told = became.get(plan.source.on_malformed or "", "")
        table.add_row("[yellow]malformed[/yellow]", f"[yellow]{totals.malformed:,} rows, {told}[/yellow]")
    for name, found in totals.joins.items():
        counted = found.totals
        nulls = f" and {counted.null_keys:,} with a NULL key" if counted.null_keys else ""
        table.add_row(
            escape(name),
            f"{counted.rows_in:,} rows in, {counted.rows_out:,} out, {counted.unmatched - counted.null_keys:,} without "
            f"a match{nulls}; "
            f"{counted.pages_read:,} pages read, {counted.hit_ratio:.0%} needed no read; "
            f"{format_bytes(found.bytes_held)} of {format_bytes(found.memory)} held",
        )
        if missing := found.missing.most(5):
            listed = ", ".join(f"{key} ({count:,}×)" for key, count in missing.items())
            table.add_row("", f"most frequent missing keys: {escape(listed)}")
        if (parked := totals.parked.get(name)) is not None:
            table.add_row(
                "", f"{parked['waiting']:,} rows are parked, {parked['found_late']:,} were found late, "
                f"{parked['expired']:,} expired",
            )  # fmt: skip
    if totals.dead:
        table.add_row("[yellow]dead letters[/yellow]", f"[yellow]{totals.dead:,} rows[/yellow]")
    if plan.sink is not None and (place := plan.sink.path or plan.sink.table):
        table.add_row("written to", escape(place))
    return table
