"""``semistream bench memory``: compare the real growth of processes with the budgets of their joins."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from semistream.cli.console import errors, out, print_json, progress, step
from semistream.core.units import format_bytes, format_count
from semistream_lab.cli.bench.options import Directory, Only, Output, cache_directory, store_result

__all__ = ["growth_table", "memory"]


def memory(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: all runs with their bytes.")] = False,
    rows: Annotated[int | None, typer.Option(help="Rows of R.", show_default="2 M, wide 20 k")] = None,
    row_bytes: Annotated[int | None, typer.Option(help="Bytes per row of R.", show_default="120, wide 5000")] = None,
    tuples: Annotated[int | None, typer.Option(help="Stream tuples per run.", show_default="20 M, wide 20 k")] = None,
    wide: Annotated[bool, typer.Option("--wide", help="Stream tuples of 40 KB, and rows of R of 5 KB.")] = False,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            help="Budget of each join: bytes, a share of R, or 'least'; repeatable.", show_default="least 1% 5% 10%"
        ),
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="Drain every batch, as Spark's micro-batches are.")] = False,
    buffered: Annotated[
        bool, typer.Option("--buffered", help="Read through the page cache: faster, with the same memory.")
    ] = False,
    only: Only = None,
    directory: Directory = None,
    output: Output = None,
) -> None:
    """Measure how much a process grows while a join runs in it. Each join runs in its own process.

    Exit code 1 if a process grew by more than the budget plus the allowance.
    """
    from semistream_lab.benchmarks.memory_growth import WIDE, MemorySpec, bench_memory, bounded

    usual = WIDE if wide else MemorySpec()
    spec = replace(
        usual, rows=rows or usual.rows, row_bytes=row_bytes or usual.row_bytes, tuples=tuples or usual.tuples,
        drain=drain, direct=not buffered, budgets=tuple(budget) if budget else usual.budgets,
    )  # fmt: skip
    place = directory or cache_directory() / "bench"
    place.mkdir(parents=True, exist_ok=True)
    total = len(bounded(tuple(only or ()))) * len(spec.budgets)
    with progress() as bars, step(bars, "Joining", total, unit="runs") as task:
        found = bench_memory(
            spec, place, tuple(only or ()), lambda what, done: bars.update(task, note=what, advance=done)
        )
    file = store_result(found, output or place / "results", "memory")
    if as_json:
        print_json(found)
    else:
        out.print(growth_table(found))
    errors.print(f"[dim]Raw results: {escape(str(file))}[/dim]", soft_wrap=True)
    if not found["within"]:
        raise typer.Exit(1)


def growth_table(found: dict[str, Any]) -> Table:
    """Return a result of `semistream_lab.benchmarks.memory_growth.bench_memory` as a table."""
    table = Table(
        header_style="bold",
        box=box.SIMPLE_HEAD,
        title=f"{format_count(found['spec']['tuples'])} tuples; allowed: budget + {format_bytes(found['allowance'])}",
    )
    for heading in ("join", "memory", "budget", "reserved", "grew by", "beyond", "2nd half"):
        table.add_column(heading, justify="left" if heading == "join" else "right", no_wrap=True)
    for run in found["runs"]:
        within = run["beyond"] <= found["allowance"]
        beyond = format_bytes(max(0, run["beyond"]))
        table.add_row(
            run["algorithm"],
            run["memory"],
            format_bytes(run["budget"]),
            format_bytes(run["peak_reserved"]),
            format_bytes(run["growth"]),
            beyond if within else f"[red]{beyond}[/red]",
            format_bytes(max(0, run["creep"])),
        )
    return table
