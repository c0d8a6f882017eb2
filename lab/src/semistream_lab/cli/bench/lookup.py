"""``semistream bench lookup``: measure the latency of look-ups."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from semistream.cli.console import errors, out, print_json, progress, step
from semistream.core.units import format_count
from semistream_lab.cli.bench.options import Directory, Output, cache_directory, store_result

__all__ = ["latency_table", "lookup"]


def lookup(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: latencies, hits and pages.")] = False,
    rows: Annotated[int, typer.Option(help="Rows of R.")] = 10_000_000,
    row_bytes: Annotated[int, typer.Option(help="Bytes per row of R.")] = 128,
    memory: Annotated[str, typer.Option(help="Budget of the look-ups: bytes, or a share of R.")] = "64MB",
    zipf: Annotated[float, typer.Option(help="Skew of the keys of warm calls; 0 is uniform.")] = 1.0,
    keys: Annotated[
        list[int] | None,
        typer.Option(help="Keys per call; repeatable. Default: 1, 100, 10000.", show_default=False),
    ] = None,
    calls: Annotated[int, typer.Option(help="Measured calls of each kind; a quarter for more than 1,000 keys.")] = 1000,
    directory: Directory = None,
    output: Output = None,
) -> None:
    """Measure the latency of Relation.lookups: p50 and p99, with cached keys, a warm cache and a cold one."""
    from semistream_lab.benchmarks.lookup_latency import STATES, LookupSpec, bench_lookup

    sizes = tuple(keys or LookupSpec.sizes)
    spec = LookupSpec(rows=rows, row_bytes=row_bytes, memory=memory, exponent=zipf, sizes=sizes, calls=calls)
    place = directory or cache_directory() / "bench-peers"
    place.mkdir(parents=True, exist_ok=True)
    with progress() as bars, step(bars, "Looking up", 1 + len(sizes) * len(STATES), unit="measurements") as task:
        found = bench_lookup(spec, place, lambda what: bars.update(task, note=what, advance=1))
    file = store_result(found, output or place / "results", "lookup")
    if as_json:
        print_json(found)
    else:
        out.print(latency_table(found))
    errors.print(f"[dim]Raw results: {escape(str(file))}[/dim]", soft_wrap=True)


def latency_table(found: dict[str, Any]) -> Table:
    """Return a result of `semistream_lab.benchmarks.lookup_latency.bench_lookup` as a table."""
    spec = found["spec"]
    table = Table(
        header_style="bold", box=box.SIMPLE_HEAD,
        title=f"R of {format_count(spec['rows'])} rows, memory {spec['memory']}, Zipf {spec['exponent']:g}",
    )  # fmt: skip
    for heading in ("cache", "keys", "p50", "p99", "keys/s", "hits", "pages"):
        table.add_column(heading, justify="left" if heading == "cache" else "right", no_wrap=True)
    for state, sizes in found["latency"].items():
        for size, one in sizes.items():
            table.add_row(
                state, f"{int(size):,}", f"{1000 * one['p50']:.3g} ms", f"{1000 * one['p99']:.3g} ms",
                format_count(int(size) / one["p50"]), f"{one['hit_ratio']:.0%}", f"{one['pages_a_call']:,.0f}",
            )  # fmt: skip
    return table
