"""``semistream demo``: the whole way once, from a master table to a warehouse that is checked."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from semistream.cli.console import errors, facts, out, polled, progress, step
from semistream.cli.relations.build import growing
from semistream.core.units import check_memory, format_bytes, format_count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from semistream.relation.relation import Relation
    from semistream.spark.monitoring.metrics import StreamStatistics
    from semistream.spark.sales_demo import DemoPlan

__all__ = ["demo"]

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # A JVM that lives for a minute does not win back what its optimising compiler and parallel collector cost.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@dataclass
class Outcome:
    """What the demo has found out so far."""

    batch_rows: list[int] = field(default_factory=list)
    statistics: StreamStatistics | None = None
    stream_seconds: float = 0.0
    rows: int = 0
    differing: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)


def demo(
    rows: Annotated[int, typer.Option(help="Products in the master table.")] = 1_000_000,
    sales: Annotated[int, typer.Option(help="Sales in the stream.")] = 600_000,
    batches: Annotated[int, typer.Option(help="Micro-batches, by stretches of time.")] = 8,
    algorithm: Annotated[str, typer.Option(help="Which join; see: semistream algorithms.")] = "hybridjoin",
    memory: Annotated[str, typer.Option(help="What the join may hold: bytes, or a share of R.")] = "5%",
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Work under this directory; default: temporary files.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep everything that was made.")] = False,
) -> None:
    """Load a warehouse from a bursty stream of sales, joined with a master table on disk, and check it.

    Exit code 1 if the warehouse is not exactly the plain join.
    """
    from semistream.joins import find

    # What can be wrong is said now, not after a minute.
    find(algorithm)
    check_memory(memory)
    from semistream.spark.sales_demo import DemoPlan

    plan = DemoPlan(rows=rows, sales=sales, batches=batches, algorithm=algorithm, memory=memory)
    began = time.perf_counter()
    with _workplace(directory, keep) as place:
        relation, outcome = _run(plan, place)
        with relation:
            out.print(_summary(plan, relation, outcome, time.perf_counter() - began))
        _show_differences(outcome)
        if keep:
            out.print(f"\nKept in {place}; try: semistream inspect {place / 'relation'}", soft_wrap=True)
    if outcome.differing:
        raise typer.Exit(1)


@contextlib.contextmanager
def _workplace(directory: Path | None, keep: bool) -> Iterator[Path]:
    """Make a new directory of our own, so that removing it removes nothing else."""
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="semistream-demo-", dir=directory)).absolute()
    try:
        yield place
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def _own_stderr() -> Iterator[Console]:
    """Give a console on a copy of standard error, which stays the screen whatever becomes of the original."""
    with os.fdopen(os.dup(2), "w") as screen:
        yield Console(file=screen, highlight=False)


@contextlib.contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Send standard error to a file, and leave it to the processes started meanwhile.

    A JVM writes a few lines as it starts, through the bars. If it does not start, they are shown.
    """
    saved = os.dup(2)
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    except BaseException:
        os.write(saved, log.read_bytes())
        raise
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _run(plan: DemoPlan, place: Path) -> tuple[Relation, Outcome]:
    from pyspark.sql import SparkSession

    from semistream.spark import session
    from semistream.spark.sales_demo import build_relation

    outcome = Outcome()
    ours = SparkSession.getActiveSession() is None
    with _own_stderr() as screen, progress(console=screen) as bars, ThreadPoolExecutor(1) as aside:
        # The JVM starts in a process of its own; the data is made meanwhile.
        data = aside.submit(_make_data, bars, plan, place, outcome)
        with step(bars, "Starting Spark"), _stderr_to(place / "spark.log"):
            spark = session("semistream demo", settings=_SETTINGS)
        try:
            data.result()
            row_bytes = plan.master.row_bytes + 24  # key, flags and lengths beside the values
            with growing(bars, place / "relation", lambda: plan.rows * row_bytes, "Building the relation"):
                relation = build_relation(spark, plan, place)
            _join(bars, spark, plan, place, outcome)
            _check(bars, spark, place, outcome)
        finally:
            if ours:
                with contextlib.suppress(Exception):  # interrupted, the JVM may be gone already
                    spark.stop()
    return relation, outcome


def _make_data(bars: Progress, plan: DemoPlan, place: Path, outcome: Outcome) -> None:
    from semistream.spark.sales_demo import rehearse, write_master, write_sales

    with step(bars, "Compiling", note="longer the first time"):
        rehearse(plan, place)
    with step(bars, "Making products", plan.rows, unit="rows") as task:
        write_master(plan, place, lambda made: bars.update(task, advance=made))
    with step(bars, "Making sales", plan.sales, unit="rows") as task:
        outcome.batch_rows = write_sales(plan, place, lambda made: bars.update(task, advance=made))


def _join(bars: Progress, spark: SparkSession, plan: DemoPlan, place: Path, outcome: Outcome) -> None:
    from semistream.spark import stream_statistics
    from semistream.spark.sales_demo import METRICS, start_join

    with step(bars, "Joining the stream", plan.sales, unit="sales") as task:
        query = start_join(spark, plan, place)

        def look() -> None:
            done = [part for part in query.recentProgress if part["numInputRows"]]
            rows = sum(part["numInputRows"] for part in done)
            bars.update(task, completed=rows, note=f"batch {len(done)} of {len(outcome.batch_rows)}")

        with polled(look, 0.5):
            query.awaitTermination()
        outcome.statistics = stream_statistics(query, METRICS)
        outcome.stream_seconds = _trigger_seconds(query)


def _trigger_seconds(query: StreamingQuery) -> float:
    """Return how long all micro-batches with rows took, Spark's own work included."""
    done = [part for part in query.recentProgress if part["numInputRows"]]
    return float(sum(part["durationMs"]["triggerExecution"] for part in done)) / 1e3


def _check(bars: Progress, spark: SparkSession, place: Path, outcome: Outcome) -> None:
    from semistream.spark.sales_demo import count_differences

    tracker = spark.sparkContext.statusTracker()
    with step(bars, "Comparing") as task:

        def look() -> None:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            tasks = sum(stage.numTasks for stage in stages if stage)
            done = sum(stage.numCompletedTasks for stage in stages if stage)
            bars.update(
                task, note=f"with Spark's own join, {done} of {tasks} tasks" if tasks else "with Spark's own join"
            )

        with polled(look, 0.5):
            outcome.rows, outcome.differing, outcome.examples = count_differences(spark, place)


def _summary(plan: DemoPlan, relation: Relation, outcome: Outcome, seconds: float) -> Table:
    found = outcome.statistics
    assert found is not None
    totals = found.totals
    table = facts()
    table.add_row(
        "master table",
        f"{plan.rows:,} products, {plan.shards} shards: {format_bytes(relation.nbytes)} on disk, "
        f"{relation.page_count:,} pages",
    )
    batches = f"{min(outcome.batch_rows):,} to {max(outcome.batch_rows):,}"
    table.add_row("stream", f"{plan.sales:,} sales in {found.batches} micro-batches of {batches}")
    table.add_row("join", f"{plan.algorithm}, left, Zipf {plan.exponent:g}")
    table.add_row("warehouse", f"{outcome.rows:,} rows, {totals.unmatched:,} of them of no known product")
    table.add_row("service rate", f"{format_count(totals.service_rate)} sales/s in the join, on one core")
    table.add_row("end to end", f"{format_count(plan.sales / outcome.stream_seconds)} sales/s, Spark included")
    reads = f"{totals.pages_read:,} pages, {format_bytes(totals.bytes_read)}"
    if totals.pages_read:
        reads += f": {totals.rows_done / totals.pages_read:.1f} sales a page"
    table.add_row("read of R", reads)
    if totals.cache_hits:
        table.add_row("hit ratio", f"{totals.hit_ratio:.1%} of the sales needed no read")
    table.add_row(
        "memory held",
        f"{format_bytes(found.bytes_held)} at most, of {format_bytes(found.memory)} allowed "
        f"({found.memory / relation.nbytes:.1%} of R)",
    )
    if outcome.differing:
        table.add_row("check", f"[bold red]✗ {outcome.differing:,} rows differ from Spark's own join[/bold red]")
    else:
        table.add_row("check", "[bold green]✓[/bold green] the warehouse is exactly what Spark's own join gives")
    table.add_row("took", f"{seconds:.0f} s")
    return table


def _show_differences(outcome: Outcome) -> None:
    for row in outcome.examples:
        times = row.pop("surplus")
        errors.print(f"[red]{'in the warehouse only' if times > 0 else 'missing'}[/red] ({abs(times)}×): {row}")
