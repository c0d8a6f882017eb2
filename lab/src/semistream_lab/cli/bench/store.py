"""``semistream bench store``: measure the cost of keeping R in an object store."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from semistream.cli.console import errors, out, print_json, progress, step
from semistream.core.units import format_bytes, format_count
from semistream_lab.cli.bench.options import LAYOUT_HELP, Directory, Output, cache_directory, store_result

__all__ = ["place_table", "store"]


def store(
    address: Annotated[str, typer.Argument(help="Address to upload R to, such as s3://bucket/bench; R stays there.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: all times and counts.")] = False,
    rows: Annotated[int, typer.Option(help="Rows of R.")] = 10_000_000,
    row_bytes: Annotated[int, typer.Option(help="Bytes per row of R.")] = 120,
    layout: Annotated[str, typer.Option(help=LAYOUT_HELP)] = "random",
    memory: Annotated[str, typer.Option(help="Budget of the join: bytes, or a share of R.")] = "5%",
    batch: Annotated[int, typer.Option(help="Stream tuples per batch; each batch is drained.")] = 100_000,
    batches: Annotated[int, typer.Option(help="Measured batches; their median is compared.")] = 5,
    warm_up: Annotated[int, typer.Option(help="Batches before the measured ones.")] = 3,
    algorithm: Annotated[str, typer.Option(help="The join.")] = "adaptivejoin",
    tier: Annotated[
        list[str] | None,
        typer.Option(
            help="Share of R's unpacked bytes kept on this machine: all, a quarter, nothing; repeatable. Default: all."
        ),
    ] = None,
    directory: Directory = None,
    output: Output = None,
) -> None:
    """Compare a join whose R is in an object store with the same join on a local R, in one run."""
    from semistream_lab.benchmarks.join_rates import RateSpec, prepare_relation
    from semistream_lab.benchmarks.store_rates import TIERS, bench_store
    from semistream_lab.workloads import masters

    unknown = sorted(set(tier or ()) - set(TIERS))
    if unknown:
        raise ValueError(f"--tier {unknown[0]!r} is unknown; give one of: {', '.join(TIERS)}")
    spec = RateSpec(
        rows=rows, row_bytes=row_bytes, memory=memory, batch_rows=batch, batches=batches, warm_up=warm_up,
        only=(algorithm,), layout=masters.layout(layout),
    )  # fmt: skip
    place = directory or cache_directory() / "bench"
    with progress() as bars:
        with step(bars, "Preparing R", spec.rows, unit="rows") as task:
            path = prepare_relation(spec, place, lambda made: bars.update(task, advance=made))
        total = (1 + len(tier or TIERS)) * (batches + warm_up)
        with step(bars, "Joining", total, unit="batches") as task:
            found = bench_store(
                spec, path, address, place, tiers=tuple(tier or ()),
                note=lambda what, done: bars.update(task, note=what, advance=done),
            )  # fmt: skip
    file = store_result(found, output or place / "results", "store")
    if as_json:
        print_json(found)
    else:
        out.print(place_table(found))
    errors.print(f"[dim]Raw results: {escape(str(file))}[/dim]", soft_wrap=True)


def place_table(found: dict[str, Any]) -> Table:
    """Return a result of `semistream_lab.benchmarks.store_rates.bench_store` as a table."""
    spec = found["spec"]
    table = Table(
        header_style="bold", box=box.SIMPLE_HEAD,
        title=f"R of {format_count(spec['rows'])} rows, memory {spec['memory']}, batches of "
        f"{format_count(spec['batch_rows'])}",
    )  # fmt: skip
    for heading in ("kept here", "batch", "times", "pages", "local", "calls", "fetched", "÷ needed"):
        table.add_column(heading, justify="left" if heading == "kept here" else "right", no_wrap=True)
    for name, place in found["places"].items():
        fetched = place["fetched_bytes"]
        table.add_row(
            name, f"{place['median']:.3f} s", f"{place['times_directory']:.2f}×", format_count(place["pages"]),
            format_count(place["local_pages"]), format_count(place["requests"]),
            format_bytes(fetched) if fetched else "", f"{place['fetched_of_wanted']:.2f}×" if fetched else "",
        )  # fmt: skip
    return table
