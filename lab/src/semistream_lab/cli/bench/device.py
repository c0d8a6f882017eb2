"""`semistream bench device`: compare reads through a relation with raw reads of the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from semistream.cli.console import errors, out, print_json
from semistream.core.units import format_bytes, format_count

__all__ = ["device"]


def device(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    size: Annotated[str, typer.Option(help="Size of the relation that is written and read.")] = "1GB",
    depth: Annotated[int, typer.Option(help="Reads in flight.")] = 16,
    page_size: Annotated[int, typer.Option(help="Bytes per page.")] = 8192,
    path: Annotated[
        Path | None, typer.Option(help="Directory on the disk to measure; default: temporary files.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds; each number is the median over them.")] = 11,
) -> None:
    """Compare reads through a relation with raw reads of the same disk, in one run."""
    from semistream_lab.benchmarks.device_rates import bench_device

    with errors.status("starting …") as status:
        result = bench_device(
            path, size, page_size, depth, rounds=rounds, progress=lambda text: status.update(f"{text} …")
        )
    if as_json:
        print_json(result)
        return
    for table in tables(result):
        out.print(table)


def tables(result: dict[str, Any]) -> list[Table]:
    """Return the result of `bench_device` as readable tables."""
    machine, settings = result["machine"], result["settings"]
    way = "direct" if settings["direct"] else "buffered"
    reads = Table(
        title=(
            f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, {machine['file_system']}: "
            f"{way} reads, {settings['depth']} in flight, pages of {settings['page_bytes']} B"
        )
    )
    for title in ("reads", "raw", "through the relation", "ratio"):
        reads.add_column(title, justify="left" if title == "reads" else "right")
    random, sequential = result["random"], result["sequential"]
    reads.add_row(
        "random pages",
        f"{format_count(random['raw'])}/s",
        f"{format_count(random['relation'])}/s",
        f"{result['random_ratio']:.0%}",
    )
    reads.add_row(
        "sequential scan",
        f"{format_bytes(sequential['raw'])}/s",
        f"{format_bytes(sequential['relation'])}/s",
        f"{result['sequential_ratio']:.0%}",
    )

    ways = Table(title="Raw random reads, by method of keeping several in flight")
    ways.add_column("method")
    ways.add_column("pages/s", justify="right")
    for name, rate in result["in_flight"].items():
        way, _, count = name.rpartition("_")
        ways.add_row(f"{way.replace('_', ' ')}, {count} in flight", f"{format_count(rate)}/s")

    rows = Table(title="Rows out of pages")
    rows.add_column("what")
    rows.add_column("cost", justify="right")
    found, checksum = result["format"], result["checksum"]
    wanted = format_count(found["rows"])
    rows.add_row("decode one Arrow IPC page of 512 rows", f"{found['ipc_page_decode_seconds'] * 1e6:.1f} μs")
    rows.add_row(
        f"{wanted} rows from {found['ipc_pages']} such pages: decode, take",
        f"{found['ipc_take_seconds'] * 1e3:.1f} ms",
    )
    rows.add_row(f"{wanted} rows gathered from {found['pages']} pages", f"{found['gather_seconds'] * 1e3:.1f} ms")
    rows.add_row("verify pages in the cache", f"{format_bytes(checksum['cached_bytes_per_second'])}/s")
    rows.add_row("verify pages in memory", f"{format_bytes(checksum['in_memory_bytes_per_second'])}/s")
    return [reads, ways, rows]
