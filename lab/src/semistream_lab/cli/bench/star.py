"""``semistream bench star``: a stream joined with five dimensions: in one pass, by a chain of joins, and by Spark."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.progress import Progress, TaskID
from rich.table import Table

from semistream.cli.console import errors, out, print_json, progress, step
from semistream.core.units import format_count
from semistream_lab.cli.bench.options import Directory, Output, cache_directory, store_result

__all__ = ["rates_of_points", "star"]


def star(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: rates, ratios, and the raw times.")] = False,
    products: Annotated[
        list[int] | None, typer.Option(help="Rows of products; repeatable.", show_default="100000, 2000000, 10000000")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="Sales per micro-batch; repeatable.", show_default="100000")
    ] = None,
    memory: Annotated[str, typer.Option(help="Budget of products that are not held whole: bytes, or a share.")] = "5%",
    row_bytes: Annotated[int, typer.Option(help="Bytes per product.")] = 128,
    customers: Annotated[
        int | None, typer.Option(help="Rows of customers.", show_default="a tenth of the products, at least 100000")
    ] = None,
    zipf: Annotated[float, typer.Option(help="Skew of the products' keys; 0 is uniform.")] = 1.0,
    batches: Annotated[int, typer.Option(help="Measured micro-batches of each plan; the rate is their median.")] = 15,
    fill: Annotated[int, typer.Option(help="Micro-batches before the measured ones.")] = 40,
    shards: Annotated[int, typer.Option(help="Shards of each relation.")] = 2,
    cores: Annotated[int, typer.Option(help="Tasks that run in parallel.")] = 2,
    heap: Annotated[str, typer.Option(help="Heap of the JVM.")] = "6g",
    directory: Directory = None,
    output: Output = None,
) -> None:
    """Compare joins of sales with products, customers, stores and days: in one pass, in a chain, and by Spark alone."""
    from semistream_lab.benchmarks.spark_star import bench_star, star_session
    from semistream_lab.benchmarks.star_data import StarPlan, write_star

    plans = [
        StarPlan(
            products=count, row_bytes=row_bytes, customers=customers or max(100_000, count // 10), batch_rows=rows,
            memory=memory, exponent=zipf, fill=fill, batches=batches, shards=shards, cores=cores, heap=heap,
        )
        for count in products or [100_000, 2_000_000, 10_000_000]
        for rows in batch or [100_000]
    ]  # fmt: skip
    place = directory or cache_directory() / "bench-star"
    points: list[dict[str, Any]] = []
    with progress() as bars:
        for plan in plans:
            title = f"{format_count(plan.products)} products, {format_count(plan.batch_rows)} a micro-batch"
            total = plan.products + plan.customers + plan.files * plan.batch_rows
            with step(bars, f"{title}: files", total, unit="rows") as task:
                write_star(plan, place, partial(_advance, bars, task))
            with ExitStack() as stack, step(bars, title, unit="batches") as task:
                session = stack.enter_context(star_session(plan))

                def note(what: str, done: int, task: Any = task) -> None:
                    bars.update(task, advance=done)
                    if what:
                        bars.update(task, note=what)

                points.append(bench_star(session, plan, place, note))
    found = {"points": points, "when": points[-1]["when"]}
    file = store_result(found, output or place / "results", "star")
    if as_json:
        print_json(found)
    else:
        out.print(rates_of_points(points))
    errors.print(f"[dim]Raw results: {escape(str(file))}[/dim]", soft_wrap=True)


def _advance(bars: Progress, task: TaskID, done: int) -> None:
    bars.update(task, advance=done)


def rates_of_points(points: list[dict[str, Any]]) -> Table:
    """Return the rates of all points as a table."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD)
    for heading in ("products", "batch", "one pass", "chain", "Spark", "cached", "one shard", "no rows"):
        table.add_column(heading, justify="right", no_wrap=True)
    for point in points:
        others = [
            f"{format_count(point[name])}/s\n{point[f'over_{name}']:.2f}×" if name in point else "–"
            for name in ("chain", "spark", "cached", "one_shard")
        ]
        empty = point["empty"]
        table.add_row(
            format_count(point["products"]), format_count(point["batch"]),
            f"[bold]{format_count(point['ours'])}/s[/bold]", *others,
            f"{1000 * empty['star']:.0f} ms\n{empty['over_one']:.2f}× one join",
        )  # fmt: skip
    return table
