"""``semistream bench peers``: compare our joins with the alternatives, in the same memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from semistream.cli.console import errors, out, print_json, progress, step
from semistream.core.units import format_bytes, format_count, memory_said
from semistream_lab.cli.bench.options import LAYOUT_HELP, Directory, Output, cache_directory, store_result
from semistream_lab.cli.bench.peer_charts import draw_peers

__all__ = ["peer_tables", "peers"]


def peers(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: rates at each point, raw times.")] = False,
    rows: Annotated[int, typer.Option(help="Rows of R.")] = 10_000_000,
    row_bytes: Annotated[int, typer.Option(help="Bytes per row of R.")] = 128,
    layout: Annotated[str, typer.Option(help=LAYOUT_HELP)] = "random",
    absent: Annotated[float, typer.Option(help="Share of the stream whose keys R does not have.")] = 0.0,
    memory: Annotated[str, typer.Option(help="Memory of each contestant: bytes, or a share of R.")] = "5%",
    zipf: Annotated[float, typer.Option(help="Skew of the stream's keys; 0 is uniform.")] = 1.0,
    batch: Annotated[int, typer.Option(help="Stream tuples per batch; each batch is drained.")] = 100_000,
    shape: Annotated[str, typer.Option(help="Frequent keys in R. random: anywhere; noperm: first.")] = "random",
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only this contestant; repeatable, or separated by commas. 'papers': the papers' joins. "
            "Default: all but spark.",
            show_default=False,
        ),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(help="Several points: zipf=0,0.5,1 or rows=, memory=, batch=; repeatable.", show_default=False),
    ] = None,
    batches: Annotated[int, typer.Option(help="Measured batches; the rate is their median.")] = 7,
    warm_up: Annotated[int, typer.Option(help="Batches of the same size before the measured ones.")] = 2,
    fill: Annotated[
        int | None,
        typer.Option(help="Tuples that fill the caches first.", show_default="five times what fits into the memory"),
    ] = None,
    cgroup: Annotated[
        Path | None,
        typer.Option(help="A memory cgroup that you own; groups are created in it.", envvar="SEMISTREAM_CGROUP"),
    ] = None,
    directory: Directory = None,
    output: Output = None,
) -> None:
    """Compare our joins with DuckDB, SQLite, LMDB, RocksDB and the device's limit, each within one memory limit.

    Raw results are stored after each point, so an interrupted sweep keeps what it measured. Exit code 1 if an answer
    was wrong or a contestant failed.
    """
    from semistream.workloads.keys.key_source import check_shape
    from semistream_lab.benchmarks.tournament.match import bench_peers
    from semistream_lab.benchmarks.tournament.peer_spec import PeerSpec, chosen
    from semistream_lab.benchmarks.tournament.peer_spec import sweep as swept
    from semistream_lab.workloads import masters

    check_shape(shape)
    spec = PeerSpec(
        rows=rows, row_bytes=row_bytes, memory=memory, exponent=zipf, batch_rows=batch, batches=batches,
        shape="noperm" if shape == "noperm" else "random", warm_up=warm_up, fill=fill, only=chosen(only or []),
        layout=masters.layout(layout), absent=absent,
    )  # fmt: skip
    specs = swept(spec, sweep or [])
    place = directory or cache_directory() / "bench-peers"
    place.mkdir(parents=True, exist_ok=True)
    results = output or place / "results"
    results.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=results):  # fail now if it is not writable, not after the first point
        kept = partial(store_result, directory=results, name="peers")
    total = sum(len(one.names) * len(one.sizes(one.data(place))) + 1 for one in specs)
    with progress() as bars, step(bars, "Joining", total, unit="batches") as task:

        def note(what: str, done: int) -> None:
            bars.update(task, advance=done)
            if what:
                bars.update(task, note=what)

        found = bench_peers(specs, place, cgroup, note, kept)
        bars.update(task, note="")
    file = kept(found)
    picture = draw_peers(found, file.with_suffix(".svg"))
    if as_json:
        print_json(found)
    else:
        out.print(peer_tables(found))
    errors.print(f"[dim]Raw results: {escape(str(file))}[/dim]", soft_wrap=True)
    if picture:
        errors.print(f"[dim]Picture: {escape(str(file.with_suffix('.svg')))}[/dim]", soft_wrap=True)
    if any(point["wrong"] or point["failed"] for point in found["points"]):
        raise typer.Exit(1)


def peer_tables(found: dict[str, Any]) -> Group:
    """Return a result of `semistream_lab.benchmarks.tournament.match.bench_peers` as tables, fastest first."""
    parts: list[RenderableType] = []
    for point in found["points"]:
        parts += [
            f"R of {format_count(point['rows'])} rows of {point['row_bytes']} B "
            f"({point.get('layout', 'random')}); memory {memory_said(point['memory'])} "
            f"({format_bytes(point['memory_bytes'])})",
            f"Zipf {point['zipf']:g} ({point['shape']}), drained batches of {format_count(point['batch'])}"
            + (f"; {point['absent']:.0%} of the keys absent" if point.get("absent") else ""),
            _table(point),
        ]
        parts += [f"[red]{name} gave a wrong answer: {escape(reason)}" for name, reason in point["wrong"].items()]
        parts += [f"[red]{name} used {format_bytes(more)} beyond the limit" for name, more in point["beyond"].items()]
        parts += [f"[red]{name} failed: {escape(reason)}" for name, reason in point["failed"].items()]
    parts += [f"[dim]{name} was skipped: {escape(reason)}" for name, reason in found["skipped"].items()]
    notes = "* no memory limit: holds all of R, or joins nothing. Grew by: memory added since before R was opened"
    return Group(*parts, f"[dim]{notes}", f"[dim]Memory limit: {found['limit']}")


def _table(point: dict[str, Any]) -> Table:
    best = max((rate for name, rate in point["rates"].items() if point["kinds"][name] == "join"), default=0.0)
    table = Table(header_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("contestant", no_wrap=True)
    for heading in ("tuples/s", "of our best", "per batch", "pages", "hits", "grew by"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, rate in sorted(point["rates"].items(), key=lambda item: -item[1]):
        one = point["contestants"][name]
        limited = "" if "limit" in one else " *"
        table.add_row(
            f"[cyan]{name}[/cyan]{limited}" if one["kind"] == "join" else f"{name}{limited}",
            f"[bold]{format_count(rate)}[/bold]",
            f"{rate / best:.2f}×" if best else "",
            f"{point['batch'] / rate:.3g} s",
            f"{one['pages_a_batch']:,.0f}" if "pages_a_batch" in one else "",
            f"{one['hit_ratio']:.0%}" if "hit_ratio" in one else "",
            format_bytes(max(0, one["grew"])) if one.get("grew") is not None else "",
        )
    return table
