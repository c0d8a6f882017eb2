"""``semistream demo``: the whole process, from master tables to a warehouse that is checked and queried."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from semistream.cli.console import bars_of, errors, out, polled, progress, step
from semistream.cli.demo_report import Outcome, show_differences, summary, where_next
from semistream.cli.quiet_start import own_stderr, stderr_to
from semistream.cli.relations.build import growing
from semistream.core.errors import MissingExtraError
from semistream.core.kernels import first_use
from semistream.core.units import check_memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from semistream.dashboard import Dashboard
    from semistream.relation.relation import Relation
    from semistream.spark.demo.star_schema import DemoPlan

__all__ = ["demo"]

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # In a JVM that lives for a minute, the optimising compiler and the parallel collector cost more than they save.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # With --compare two queries share the cores. Under FIFO scheduling the query with the longer tasks would use both.
    "spark.scheduler.mode": "FAIR",
}
_TITLE = "semistream demo"
_MASTER = "local[*,4]"
"""All cores; a task is tried up to four times, so that one whose worker was killed runs again."""


def demo(
    rows: Annotated[
        int | None,
        typer.Option(
            help="Products in the master table.",
            show_default="2,000,000; with --compare 6,000,000, because Spark's own join reads all of them",
        ),
    ] = None,
    sales: Annotated[int, typer.Option(help="Sales in the stream.")] = 60_000,
    batches: Annotated[int, typer.Option(help="Number of micro-batches; each is an interval of time.")] = 4,
    algorithm: Annotated[
        str | None, typer.Option(help="Which join; see: semistream algorithms.", show_default="the best on Spark")
    ] = None,
    memory: Annotated[str, typer.Option(help="Memory budget of the join: bytes, or a share of R.")] = "5%",
    live: Annotated[bool, typer.Option("--live", help="Run until Ctrl-C, with controls on the live page.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="With --live: also run Spark's own join of the same stream.")
    ] = False,
    rate: Annotated[
        int | None,
        typer.Option(
            help="With --live: sales per second.",
            min=1,
            show_default="10,000; with --compare 3,000, because both joins run",
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the live page; 0: any free port.", min=0, max=65535)] = 0,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Work under this directory; default: temporary files.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep all files.")] = False,
) -> None:
    """Load a warehouse from a bursty stream of sales, joined with products, customers and stores on disk.

    Then Spark's own join does the same, to compare the speed and every row, and five queries run on the warehouse.
    A live page is served meanwhile. Exit code 1 if the warehouse differs from the result of Spark's own join.
    """
    from semistream.joins import find

    # Check all arguments now, not after a minute.
    if algorithm is not None:
        find(algorithm)
    check_memory(memory)
    if compare and not live:
        raise ValueError("--compare needs --live; without --live the demo compares both joins anyway")
    if rate is not None and not live:
        raise ValueError("--rate needs --live; give --live too, or --sales for the number of sales")
    try:
        from semistream.spark.demo.star_schema import ALGORITHM, DemoPlan
    except MissingExtraError as error:
        raise MissingExtraError(error.package, "demo") from None  # this extra includes Spark and all else
    from semistream.spark.monitoring.prometheus import check_port

    check_port(port, "the page (--port)")

    if rows is None:
        rows = 3 * DemoPlan.rows if compare else DemoPlan.rows
    plan = DemoPlan(rows=rows, sales=sales, batches=batches, memory=memory, algorithm=algorithm or ALGORITHM)
    first_use.compiling.clear()  # a progress bar shows it
    began = time.perf_counter()
    with _workplace(directory, keep) as place:
        if live:
            _run_live(plan, place, port, compare, rate or (3_000 if compare else 10_000))
            return
        relation, outcome = _run(plan, place, port)
        with relation:
            out.print(summary(plan, relation, outcome, time.perf_counter() - began))
        for answer in outcome.answers:
            out.print("", bars_of(answer.question, answer.rows))
        show_differences(outcome)
        where_next(place, keep)
    if outcome.differing:
        raise typer.Exit(1)


@contextlib.contextmanager
def _workplace(directory: Path | None, keep: bool) -> Iterator[Path]:
    """Create a new directory, so that its removal removes nothing else."""
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="semistream-demo-", dir=directory)).absolute()
    try:
        yield place
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def _started(place: Path) -> Iterator[SparkSession]:
    """Yield a Spark session, and stop it afterwards if it did not exist before."""
    from pyspark.sql import SparkSession

    from semistream.spark import session

    ours = SparkSession.getActiveSession() is None
    with stderr_to(place / "spark.log"):
        spark = session(_TITLE, master=_MASTER, settings=_SETTINGS)
    try:
        yield spark
    finally:
        if ours:
            with contextlib.suppress(Exception):  # after an interrupt the JVM may have ended already
                spark.stop()


@contextlib.contextmanager
def _page(spark: SparkSession, place: Path, port: int, screen: Console, **more: Any) -> Iterator[Dashboard | None]:
    """Serve the live page of our query; None if its extra is not installed."""
    from semistream.spark.demo.star_join import OURS
    from semistream.spark.monitoring.files_left import FilesLeft
    from semistream.spark.monitoring.listening import StatisticsListener

    try:
        from semistream.dashboard import Dashboard
    except MissingExtraError as error:
        screen.print(f"[dim]no live page: {error}[/dim]")
        yield None
        return
    page = Dashboard(_TITLE, port, query=OURS, **more)
    waiting = FilesLeft(str(place / "sales"), place / f"checkpoint-{OURS}")
    listener = StatisticsListener([page], files_left={OURS: waiting})
    spark.streams.addListener(listener)
    screen.print(f"Live page while it runs: [bold]{page.url}[/bold]")
    try:
        yield page
    finally:
        spark.streams.removeListener(listener)
        page.close()


def _run(plan: DemoPlan, place: Path, port: int) -> tuple[Relation, Outcome]:
    from semistream.spark.demo.star_join import enriched, plain, stream_of_sales

    outcome = Outcome()
    with contextlib.ExitStack() as stack:
        screen = stack.enter_context(own_stderr())
        bars = stack.enter_context(progress(console=screen))
        aside = stack.enter_context(ThreadPoolExecutor(1))
        # The JVM starts in its own process; data and relations are made meanwhile.
        made = aside.submit(_make_data, bars, plan, place, outcome)
        with step(bars, "Starting Spark"):
            spark = stack.enter_context(_started(place))
        page = stack.enter_context(_page(spark, place, port, screen))
        relation = made.result()
        outcome.ours = _stream(bars, plan, place, outcome, enriched(stream_of_sales(spark, place), plan, place))
        outcome.theirs = _stream(bars, plan, place, outcome, plain(stream_of_sales(spark, place), place))
        if page is not None:
            page.tell("ratio", {"ours": outcome.ours, "theirs": outcome.theirs, "note": _RATIO})
        _check(bars, spark, place, outcome)
        _ask(bars, place, outcome)
        if page is not None:
            page.tell("answers", [{"question": one.question, "rows": one.rows} for one in outcome.answers])
    return relation, outcome


_RATIO = "Sales per second compared with Spark's own stream-static joins of the same files, in this run."


def _run_live(plan: DemoPlan, place: Path, port: int, compare: bool, rate: int) -> None:
    from semistream.dashboard.demo_controls import LiveDemo

    outcome = Outcome()
    with contextlib.ExitStack() as stack:
        with progress(console=errors) as bars, ThreadPoolExecutor(1) as aside:
            made = aside.submit(_make_data, bars, plan, place, outcome, live=True)
            with step(bars, "Starting Spark"):
                spark = stack.enter_context(_started(place))
            made.result().close()
        show = LiveDemo(spark, plan, place, rate)
        page = stack.enter_context(_page(spark, place, port, errors, controls=show.controls()))
        out.print("Ctrl-C ends it.")
        with contextlib.suppress(KeyboardInterrupt):
            show.run(page, compare=compare)


def _make_data(bars: Progress, plan: DemoPlan, place: Path, outcome: Outcome, live: bool = False) -> Relation:
    """Make master tables, relations, and sales unless they are generated ``live``; return the relation of products."""
    from semistream.spark.demo.star_join import build_relations
    from semistream.spark.demo.star_schema import rehearse, write_masters, write_sales

    with step(bars, "Compiling", note="takes longer the first time"):
        rehearse(plan, place)
    with step(bars, "Making master tables", plan.rows, unit="products") as task:
        write_masters(plan, place, lambda made: bars.update(task, advance=made))
    if not live:
        with step(bars, "Making sales", plan.sales, unit="rows") as task:
            outcome.batch_rows = write_sales(plan, place, lambda made: bars.update(task, advance=made))
    row_bytes = plan.master.row_bytes + 24  # plus key, flags and lengths
    with growing(bars, place / "relations" / "products", lambda: plan.rows * row_bytes, "Building relations"):
        return build_relations(plan, place)


def _stream(bars: Progress, plan: DemoPlan, place: Path, outcome: Outcome, rows: DataFrame) -> float:
    """Load a warehouse, first with our joins, then with Spark's own; return the sales per second."""
    from semistream.spark import stream_statistics
    from semistream.spark.demo.star_join import OURS, THEIRS, broadcast_joins, seconds_of, start_into
    from semistream.spark.demo.star_schema import DIMENSIONS

    ours = not outcome.statistics
    with step(bars, "Joining the stream" if ours else "The same by Spark alone", plan.sales, unit="sales") as task:
        query = start_into(rows, place, OURS if ours else THEIRS)

        def look() -> None:
            done = [part for part in query.recentProgress if part["numInputRows"]]
            sales = sum(part["numInputRows"] for part in done)
            bars.update(task, completed=sales, note=f"batch {len(done)} of {len(outcome.batch_rows)}")

        with polled(look, 0.5):
            query.awaitTermination()
        if ours:
            outcome.statistics = {name: stream_statistics(query, name) for name in DIMENSIONS}
        else:
            outcome.broadcast = broadcast_joins(query)
        # the first micro-batch includes compilation, here and in the JVM
        sales, seconds = seconds_of(query, after=1 if len(outcome.batch_rows) > 1 else 0)
    return sales / seconds


def _check(bars: Progress, spark: SparkSession, place: Path, outcome: Outcome) -> None:
    from semistream.spark.demo.star_join import count_differences

    with step(bars, "Comparing", note="both warehouses, row for row"):
        outcome.rows, outcome.differing, outcome.examples = count_differences(spark, place)


def _ask(bars: Progress, place: Path, outcome: Outcome) -> None:
    from semistream.spark.demo.warehouse_questions import ask

    with step(bars, "Querying the warehouse", note="DuckDB"):
        try:
            outcome.answers = ask(place)
        except MissingExtraError as error:
            bars.console.print(f"[dim]no questions: {escape(str(error))}[/dim]")
