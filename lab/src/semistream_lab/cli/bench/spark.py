"""``semistream bench spark``: compare our join on a streaming DataFrame with Spark's own."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from semistream.cli.console import errors, out, print_json, progress, step
from semistream.core.units import format_bytes, format_count, memory_said
from semistream_lab.cli.bench.options import LAYOUT_HELP, Directory, Output, cache_directory, store_result

if TYPE_CHECKING:
    from semistream_lab.benchmarks.as_of.as_of_data import AsOfPlan

__all__ = ["as_of_rates", "comparison", "spark"]


def spark(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: rates, their ratio, and the raw times.")] = False,
    rows: Annotated[int, typer.Option(help="Rows of R.")] = 10_000_000,
    batch: Annotated[int, typer.Option(help="Rows per micro-batch.")] = 100_000,
    memory: Annotated[str, typer.Option(help="Budget of our join: bytes, or a share of R.")] = "5%",
    row_bytes: Annotated[int, typer.Option(help="Bytes per row of R.")] = 128,
    layout: Annotated[str, typer.Option(help=LAYOUT_HELP)] = "product",
    algorithm: Annotated[
        str | None, typer.Option(help="The join; see: semistream algorithms. Default: the default for Spark.")
    ] = None,
    zipf: Annotated[float, typer.Option(help="Skew of the stream's keys; 0 is uniform.")] = 1.0,
    shape: Annotated[str, typer.Option(help="Frequent keys in R. random: anywhere; noperm: first.")] = "random",
    batches: Annotated[int, typer.Option(help="Measured micro-batches of our join; the rate is their median.")] = 25,
    warm_up: Annotated[
        int, typer.Option(help="Micro-batches before the measured ones; the JVM compiles for a long time.")
    ] = 60,
    fill: Annotated[
        int | None, typer.Option(help="Rows that fill our cache first.", show_default="20 M, or 1.5 times R")
    ] = None,
    static_batches: Annotated[int, typer.Option(help="Measured micro-batches of Spark's join, after 3 others.")] = 9,
    small_batches: Annotated[int, typer.Option(help="Measured empty micro-batches.")] = 20,
    shards: Annotated[int, typer.Option(help="Shards of R; one task per shard.")] = 2,
    cores: Annotated[int, typer.Option(help="Tasks that run in parallel.")] = 2,
    heap: Annotated[str, typer.Option(help="Heap of the JVM.")] = "6g",
    as_of: Annotated[
        bool, typer.Option("--as-of", help="Join with a history, each row as of its time, and compare with Spark's.")
    ] = False,
    versions: Annotated[int, typer.Option(help="With --as-of: rows of R per key.")] = 5,
    directory: Directory = None,
    output: Output = None,
) -> None:
    """Compare our join on a streaming DataFrame with Spark's own stream-static join, in one run."""
    if as_of:
        from semistream_lab.benchmarks.as_of.as_of_data import AsOfPlan

        plan_of_history = AsOfPlan(
            rows=rows, versions=versions, row_bytes=row_bytes, batch_rows=batch, memory=memory, exponent=zipf,
            batches=batches, warm_up=warm_up, fill_rows=max(20_000_000, rows * 3 // 2) if fill is None else fill,
            spark_batches=static_batches, shards=shards, cores=cores, heap=heap,
        )  # fmt: skip
        _as_of(plan_of_history, directory or cache_directory() / "bench-spark", as_json=as_json, output=output)
        return
    from semistream.workloads.keys.key_source import check_shape
    from semistream_lab.benchmarks.spark_join import BenchPlan, bench_session, bench_spark, build_relation, write_files
    from semistream_lab.workloads import masters

    check_shape(shape)
    plan = BenchPlan(
        rows=rows, row_bytes=row_bytes, batch_rows=batch, memory=memory, algorithm=algorithm, exponent=zipf,
        shape="noperm" if shape == "noperm" else "random", batches=batches, warm_up=warm_up,
        fill_rows=max(20_000_000, rows * 3 // 2) if fill is None else fill,
        static_batches=static_batches, small_batches=small_batches, shards=shards, cores=cores, heap=heap,
        layout=masters.layout(layout),
    )  # fmt: skip
    place = directory or cache_directory() / "bench-spark"
    with progress() as bars, ExitStack() as stack:
        with step(bars, "Preparing files", plan.rows + sum(plan.file_rows), unit="rows") as task:
            write_files(plan, place, lambda made: bars.update(task, advance=made))
        with step(bars, "Starting Spark"):
            session = stack.enter_context(bench_session(plan))
        with step(bars, "Building R"):
            seconds = build_relation(session, plan, place)
        with step(bars, "Joining", plan.micro_batches, unit="batches") as task:

            def note(what: str, done: int) -> None:
                bars.update(task, advance=done)
                if what:
                    bars.update(task, note=what)

            found = bench_spark(session, plan, place, note) | {"build_seconds": seconds}
            bars.update(task, note="")
    file = store_result(found, output or place / "results", "spark")
    if as_json:
        print_json(found)
    else:
        out.print(comparison(found))
    errors.print(f"[dim]Raw results: {escape(str(file))}[/dim]", soft_wrap=True)


def _as_of(plan: AsOfPlan, place: Path, *, as_json: bool, output: Path | None) -> None:
    """Measure as-of joins, print the rates, and store the raw results."""
    from semistream_lab.benchmarks.as_of.as_of_data import build_as_of, write_as_of
    from semistream_lab.benchmarks.as_of.spark_as_of import bench_as_of
    from semistream_lab.benchmarks.spark_join import BenchPlan, bench_session

    with progress() as bars, ExitStack() as stack:
        with step(bars, "Preparing files", plan.rows + sum(plan.file_rows), unit="rows") as task:
            write_as_of(plan, place, lambda made: bars.update(task, advance=made))
        with step(bars, "Starting Spark"):
            session = stack.enter_context(bench_session(BenchPlan(cores=plan.cores, heap=plan.heap)))
        with step(bars, "Building R"):
            build_as_of(session, plan, place)
        with step(bars, "Joining", unit="batches") as task:

            def note(what: str, done: int) -> None:
                bars.update(task, advance=done)
                if what:
                    bars.update(task, note=what)

            found = bench_as_of(session, plan, place, note)
    file = store_result(found, output or place / "results", "spark-as-of")
    if as_json:
        print_json(found)
    else:
        out.print(as_of_rates(found))
    errors.print(f"[dim]Raw results: {escape(str(file))}[/dim]", soft_wrap=True)


def as_of_rates(found: dict[str, Any]) -> Group:
    """Return a result of `semistream_lab.benchmarks.as_of.spark_as_of.bench_as_of` as a table."""
    rates = Table(header_style="bold", box=box.SIMPLE_HEAD)
    rates.add_column("join", style="cyan", no_wrap=True)
    for heading in ("rows/s", "per micro-batch"):
        rates.add_column(heading, justify="right", no_wrap=True)
    titles = {
        "ours": "semistream, as of", "equality": "semistream, equality with the same rows",
        "spark_as_of": "Spark's ASOF JOIN", "spark_filter": "Spark's join with a filter",
    }  # fmt: skip
    for name, join in found["joins"].items():
        rates.add_row(titles[name], format_count(join["rows_per_second"]), f"{join['median_seconds']:.3g} s")
    plan = found["plan"]
    return Group(
        f"R of {format_count(plan['rows'])} rows, {plan['versions']} per key; memory {memory_said(plan['memory'])}",
        rates,
        f"[bold]{found['ratio']:.1f}×[/bold] the faster of Spark's; {found['over_equality']:.2f}× our equality join",
    )


def comparison(found: dict[str, Any]) -> Group:
    """Return a result of `semistream_lab.benchmarks.spark_join.bench_spark` as tables."""
    plan, ours = found["plan"], found["joins"]["ours"]
    rates = Table(header_style="bold", box=box.SIMPLE_HEAD)
    rates.add_column("join", style="cyan", no_wrap=True)
    for heading in ("rows/s", "per micro-batch", "slowest"):
        rates.add_column(heading, justify="right", no_wrap=True)
    for name, title in (("ours", "semistream"), ("stream_static", "Spark's stream-static join")):
        join = found["joins"][name]
        rates.add_row(
            title,
            f"[bold]{format_count(join['rows_per_second'])}[/bold]",
            f"{join['median_seconds']:.3g} s",
            f"{max(join['seconds']):.3g} s",
        )
    fixed = Table(header_style="bold", box=box.SIMPLE_HEAD)
    fixed.add_column("micro-batch of", no_wrap=True)
    for heading in ("no Python", "identity", "shuffle, identity", "our join", "over identity"):
        fixed.add_column(heading, justify="right")
    for name, costs in found["fixed"].items():
        times = [costs[key] for key in ("no_python", "identity", "shuffled_identity", "ours")]
        fixed.add_row(
            name.replace("_", " "), *(f"{seconds * 1e3:.0f} ms" for seconds in times), f"{costs['over_identity']:.2f}×"
        )
    memory = memory_said(plan["memory"])
    return Group(
        f"R of {format_count(plan['rows'])} rows, {format_bytes(found['relation']['bytes'])}; memory {memory}",
        f"Zipf {plan['exponent']:g} ({plan['shape']}), micro-batches of {format_count(plan['batch_rows'])} rows",
        rates,
        f"[bold]{found['ratio']:.1f}×[/bold] the rows per second; {ours['hit_ratio']:.0%} of them from the cache",
        fixed,
    )
