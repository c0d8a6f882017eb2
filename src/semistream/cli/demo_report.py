"""The report at the end of the demo."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from semistream.cli.console import errors, facts, out
from semistream.core.units import format_bytes, format_count

if TYPE_CHECKING:
    from semistream.relation.relation import Relation
    from semistream.spark.demo.star_schema import DemoPlan
    from semistream.spark.demo.warehouse_questions import Answer
    from semistream.spark.monitoring.metrics import StreamStatistics

__all__ = ["Outcome", "show_differences", "summary", "where_next"]


@dataclass
class Outcome:
    """Results of the demo so far."""

    batch_rows: list[int] = field(default_factory=list)
    statistics: dict[str, StreamStatistics] = field(default_factory=dict)
    ours: float = 0.0
    theirs: float = 0.0
    """Sales per second, including Spark's own time, over all micro-batches but the first."""
    broadcast: int = 0
    """Number of master tables that Spark's own joins broadcast."""
    rows: int = 0
    differing: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)


def summary(plan: DemoPlan, relation: Relation, outcome: Outcome, seconds: float) -> Table:
    """Return the inputs, the throughput, and whether the result is correct."""
    found = outcome.statistics["products"]
    totals = found.totals
    table = facts()
    table.add_row(
        "master tables",
        f"{plan.rows:,} products, {plan.customers:,} customers, {plan.stores} stores; products: "
        f"{format_bytes(relation.nbytes)} on disk, {relation.page_count:,} pages",
    )
    batches = f"{min(outcome.batch_rows):,} to {max(outcome.batch_rows):,}"
    table.add_row("stream", f"{plan.sales:,} sales in {found.batches} micro-batches of {batches}")
    table.add_row("joins", f"{plan.algorithm}, left, with products (Zipf {plan.exponent:g}), customers and stores")
    table.add_row("warehouse", f"{outcome.rows:,} rows, {totals.unmatched:,} of them without a known product")
    reads = f"{totals.pages_read:,} pages, {format_bytes(totals.bytes_read)}"
    if totals.pages_read:
        reads += f": {totals.rows_done / totals.pages_read:.1f} sales per page"
    table.add_row("read of products", reads)
    if totals.cache_hits:
        table.add_row("hit ratio", f"{totals.hit_ratio:.1%} of the sales needed no read")
    table.add_row(
        "memory held",
        f"{format_bytes(found.bytes_held)} at most, of {format_bytes(found.memory)} allowed "
        f"({found.memory / relation.nbytes:.1%} of the products)",
    )
    if outcome.differing:
        table.add_row("check", f"[bold red]✗ {outcome.differing:,} rows differ from Spark's own join[/bold red]")
    else:
        table.add_row(
            "check", "[bold green]✓[/bold green] the warehouse equals the result of Spark's own join, row for row"
        )
    table.add_row(
        "throughput",
        f"{format_count(outcome.ours)} sales/s from files to the warehouse, through three joins, Spark included",
    )
    table.add_row(
        "Spark's own",
        f"{format_count(outcome.theirs)} sales/s through stream-static left joins of the same files, in this run; "
        f"{_by_spark(outcome.broadcast)}",
    )
    ratio = outcome.ours / outcome.theirs
    counted = f"over micro-batches 2 to {found.batches}, after both have warmed up" if found.batches > 1 else ""
    table.add_row(
        "[bold]ratio[/bold]", f"[bold {'green' if ratio >= 1 else 'yellow'}]{ratio:.1f} ×[/] {counted}".rstrip()
    )
    table.add_row("took", f"{seconds:.0f} s")
    return table


def _by_spark(broadcast: int) -> str:
    if broadcast >= 3:
        return "all master tables are small enough to be broadcast; for a real comparison give --rows 2000000"
    return (
        f"{broadcast} master tables are small enough to be broadcast. All products are shuffled for every micro-batch: "
        "with larger micro-batches (--batches, --sales) the ratio is smaller"
    )


def show_differences(outcome: Outcome) -> None:
    """Print examples of rows that differ, if there are any."""
    for row in outcome.examples:
        times = row.pop("surplus")
        errors.print(
            f"[red]{'in the warehouse only' if times > 0 else 'missing'}[/red] ({abs(times)}×): {escape(str(row))}"
        )


def where_next(place: Path, keep: bool) -> None:
    """Print commands to try next."""
    if keep:
        inspected = place / "relations" / "products"
        out.print(f"\nKept in {place}; try: semistream inspect {inspected}", soft_wrap=True, markup=False)
    out.print("\n[bold]Next[/bold]")
    steps = {
        "semistream demo --live --compare": "change skew, bursts and memory on the live page",
        "semistream build products.csv products --key id": "build a relation from your own table",
        "semistream tune products --memory 5%": "predict the throughput of each join",
        "semistream run pipeline.toml --dashboard": "run your own pipeline; see examples/",
    }
    table = facts()
    for command, told in steps.items():
        table.add_row(command, told)
    out.print(table, soft_wrap=True)
