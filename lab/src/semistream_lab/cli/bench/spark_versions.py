"""``semistream bench spark-versions``: compare versions of PySpark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from semistream.cli.console import errors, out, print_json, progress, step
from semistream.core.units import format_count, memory_said
from semistream_lab.cli.bench.options import Directory, Output, cache_directory, store_result

__all__ = ["spark_versions", "version_table"]


def spark_versions(
    pythons: Annotated[
        list[Path],
        typer.Argument(help="Pythons of environments with other versions; make spark-versions makes some in build."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: rates, raw times, sums of rows.")] = False,
    rows: Annotated[int, typer.Option(help="Rows of R.")] = 10_000_000,
    batch: Annotated[int, typer.Option(help="Rows per micro-batch.")] = 100_000,
    memory: Annotated[str, typer.Option(help="Budget of the join: bytes, or a share of R.")] = "5%",
    batches: Annotated[int, typer.Option(help="Measured micro-batches; the rate is their median.")] = 30,
    warm_up: Annotated[int, typer.Option(help="Micro-batches of the same size before them.")] = 40,
    fill: Annotated[int, typer.Option(help="Rows that fill the cache first.")] = 10_000_000,
    heap: Annotated[str, typer.Option(help="Heap of each JVM.")] = "2g",
    directory: Directory = None,
    output: Output = None,
) -> None:
    """Compare the rate of our join with the installed version of PySpark and with others, in turns.

    Exit code 1 if a version's rows are not those of the installed one.
    """
    from semistream_lab.benchmarks.spark_data import BenchPlan
    from semistream_lab.benchmarks.version_rates import bench_versions

    plan = BenchPlan(
        rows=rows, batch_rows=batch, memory=memory, batches=batches, warm_up=warm_up, fill_rows=fill, heap=heap
    )
    place = directory or cache_directory() / "bench-spark"
    count = (1 + len(pythons)) * (plan.filling + plan.warm_up + plan.batches)
    with progress() as bars, step(bars, "Joining", count, unit="batches") as task:

        def note(what: str, done: int) -> None:
            bars.update(task, advance=done)
            if what:
                bars.update(task, note=what)

        found = bench_versions(plan, pythons, place, note)
        bars.update(task, note="")
    file = store_result(found, output or place / "results", "spark-versions")
    if as_json:
        print_json(found)
    else:
        out.print(version_table(found))
    errors.print(f"[dim]Raw results: {escape(str(file))}[/dim]", soft_wrap=True)
    if found["differing"]:
        errors.print(f"[red]Rows differ from those of {found['newest']}:[/red] {', '.join(found['differing'])}")
        raise typer.Exit(1)


def version_table(found: dict[str, Any]) -> Table:
    """Return a result of `semistream_lab.benchmarks.version_rates.bench_versions` as a table."""
    plan = found["plan"]
    table = Table(
        header_style="bold", box=box.SIMPLE_HEAD,
        title=f"R of {format_count(plan['rows'])} rows, memory {memory_said(plan['memory'])}, micro-batches of "
        f"{format_count(plan['batch_rows'])} rows",
    )  # fmt: skip
    for heading in ("PySpark", "rows/s", "per micro-batch", f"relative to {found['newest']}", "rows"):
        table.add_column(heading, justify="left" if heading == "PySpark" else "right", no_wrap=True)
    for version, one in sorted(found["versions"].items()):
        table.add_row(
            version, format_count(one["rows_per_second"]), f"{one['median_seconds']:.3g} s",
            f"{found['over'][version]:.2f}", "differ" if version in found["differing"] else "equal",
        )  # fmt: skip
    return table
