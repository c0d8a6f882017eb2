"""``semistream bench joins`` and ``semistream bench chart``: compare service rates in a table and a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from semistream.cli.console import errors, out, print_json, progress, step
from semistream.cli.dark_charts import with_dark_colours
from semistream.cli.path_arguments import read_path
from semistream.core.errors import MissingExtraError, SemistreamError
from semistream.core.units import format_bytes, format_count, memory_said
from semistream_lab.cli.bench.options import LAYOUT_HELP, Directory, Only, Output, cache_directory, store_result
from semistream_lab.cli.bench.peer_charts import peer_chart

__all__ = ["cache_directory", "chart", "joins", "rate_table", "store_result", "vega_lite"]


class ResultFileError(SemistreamError, ValueError):
    """The file is not a result of ``bench joins`` or ``bench peers``."""


def joins(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: rates by join, and the raw times.")] = False,
    rows: Annotated[int, typer.Option(help="Rows of R.")] = 10_000_000,
    row_bytes: Annotated[int, typer.Option(help="Bytes per row of R.")] = 120,
    layout: Annotated[str, typer.Option(help=LAYOUT_HELP)] = "random",
    absent: Annotated[float, typer.Option(help="Share of the stream whose keys R does not have.")] = 0.0,
    memory: Annotated[str, typer.Option(help="Budget of each join: bytes, or a share of R.")] = "5%",
    batch: Annotated[int, typer.Option(help="Stream tuples per batch; each batch is drained.")] = 100_000,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Do not drain batches; tuples wait across batches.")
    ] = False,
    batches: Annotated[int, typer.Option(help="Measured batches; the rate is their median.")] = 7,
    warm_up: Annotated[int, typer.Option(help="Batches before the measured ones.")] = 3,
    zipf: Annotated[float, typer.Option(help="Skew of the stream's keys; 0 is uniform.")] = 1.0,
    shape: Annotated[str, typer.Option(help="Frequent keys in R. random: anywhere; noperm: first.")] = "random",
    relation: Annotated[
        Path | None, typer.Option(help="Use this relation instead of a generated one.", parser=read_path)
    ] = None,
    sample: Annotated[
        list[Path] | None, typer.Option(help="Parquet, CSV or Arrow file with rows of your stream, for --relation.")
    ] = None,
    on: Annotated[list[str] | None, typer.Option(help="Key column of the sample; repeatable.")] = None,
    only: Only = None,
    directory: Directory = None,
    output: Output = None,
) -> None:
    """Compare the service rates of the joins on the real disk, bypassing the page cache."""
    if relation is not None or sample:
        if relation is None or not sample:
            raise ValueError("--relation and --sample need each other: give your own R and a sample of its stream")
        found = _on_sample(relation, sample, on, memory, batch, batches, warm_up, only)
        file = store_result(found, output or (directory or cache_directory() / "bench") / "results", "sample")
        if as_json:
            print_json(found)
        else:
            out.print(_sample_table(found))
        errors.print(f"[dim]Raw results: {escape(str(file))}[/dim]", soft_wrap=True)
        return
    from semistream.workloads.keys.key_source import check_shape
    from semistream_lab.benchmarks.join_rates import RateSpec, bench_joins, prepare_relation
    from semistream_lab.workloads import masters

    check_shape(shape)
    spec = RateSpec(
        rows=rows, row_bytes=row_bytes, memory=memory, batch_rows=batch, batches=batches, warm_up=warm_up,
        exponent=zipf, shape="noperm" if shape == "noperm" else "random", only=tuple(only or ()),
        continuous=continuous, layout=masters.layout(layout), absent=absent,
    )  # fmt: skip
    place = directory or cache_directory() / "bench"
    with progress() as bars:
        with step(bars, "Preparing R", spec.rows, unit="rows") as task:
            path = prepare_relation(spec, place, lambda made: bars.update(task, advance=made))
        total = len(spec.ids) * (spec.batches + spec.warm_up)
        with step(bars, "Joining", total, unit="batches") as task:

            def note(what: str, done: int) -> None:
                bars.update(task, advance=done)
                if what:
                    bars.update(task, note=what)

            found = bench_joins(spec, path, note)
            bars.update(task, note="")
    file = store_result(found, output or place / "results", "joins")
    if as_json:
        print_json(found)
    else:
        out.print(rate_table(found))
    errors.print(f"[dim]Raw results: {escape(str(file))}[/dim]", soft_wrap=True)


def _on_sample(
    relation: Path, files: list[Path], on: list[str] | None, memory: str, batch: int, batches: int, warm_up: int,
    only: list[str] | None,
) -> dict[str, Any]:  # fmt: skip
    from semistream.cli.relations.table_files import InputFiles
    from semistream.relation.relation import Relation
    from semistream.tuner import sample_rows
    from semistream_lab.benchmarks.sample_rates import bench_sample

    with Relation.open(relation) as opened:
        keys = on or list(opened.key.names)
    rows = sample_rows(InputFiles.find(files).reader(), batch * (batches + warm_up), batch)
    with progress() as bars, step(bars, "Joining", None, unit="batches") as task:

        def note(what: str, done: int) -> None:
            bars.update(task, advance=done)
            if what:
                bars.update(task, note=what)

        return bench_sample(
            relation, rows, keys, memory, only=only or (), batches=batches, warm_up=warm_up, note=note
        )  # fmt: skip


def _sample_table(found: dict[str, Any]) -> Table:
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("join", style="cyan", no_wrap=True)
    table.add_column("tuples/s", justify="right")
    table.add_column("pages read", justify="right")
    for name, rate in sorted(found["rates"].items(), key=lambda item: -item[1]):
        table.add_row(name, f"[bold]{format_count(rate)}[/bold]", f"{found['pages_read'][name]:,}")
    for name in found["skipped"]:
        table.add_row(f"[dim]{name}[/dim]", "[dim]does not fit[/dim]", "")
    return table


def chart(
    result: Annotated[Path, typer.Argument(help="A raw result of bench joins or bench peers.", show_default=False)],
    image: Annotated[Path, typer.Argument(help="The picture: .svg or .png.", show_default=False)],
) -> None:
    """Draw the service rates of a run of bench joins or bench peers."""
    try:
        import vl_convert
    except ImportError:
        raise MissingExtraError("vl-convert-python", "report", of="semistream-lab") from None
    try:
        found = json.loads(result.read_text())
        spec = peer_chart(found) if "points" in found else vega_lite(found)
    except (KeyError, TypeError, ValueError) as error:
        raise ResultFileError(f"{result} is not a result of bench joins or peers ({error!r}); run it again") from error
    if image.suffix == ".svg":
        image.write_text(with_dark_colours(vl_convert.vegalite_to_svg(spec)))
    elif image.suffix == ".png":
        image.write_bytes(vl_convert.vegalite_to_png(spec, scale=2))
    else:
        raise ValueError(f"the picture must be .svg or .png, not {image.suffix or image.name!r}")
    out.print(f"Drew {escape(str(image))}")


def rate_table(found: dict[str, Any]) -> Group:
    """Return a result of `semistream_lab.benchmarks.join_rates.bench_joins` as a table, fastest join first."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("join", style="cyan", no_wrap=True)
    for heading in ("tuples/s", "per batch", "reading", "pages", "hits", "held"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, rate in sorted(found["rates"].items(), key=lambda item: -item[1]):
        join = found["joins"][name]
        table.add_row(
            name if join["bounded"] else f"{name} *",
            f"[bold]{format_count(rate)}[/bold]",
            f"{found['spec']['batch_rows'] / rate:.3g} s",
            f"{join['io_seconds'] / sum(join['seconds']):.0%}",
            f"{join['pages_read'] / len(join['seconds']):,.0f}",
            f"{join['hit_ratio']:.0%}",
            format_bytes(join["bytes_held"]),
        )
    way = "bypassing the page cache" if found["device"]["direct"] else "through the page cache"
    notes = ["[dim]reading: share of the time, summed over threads; pages: per batch; hits: served by a cache"]
    if not all(join["bounded"] for join in found["joins"].values()):
        notes.append("[dim]* ignores its budget: takes what it needs")
    notes += [f"[dim]{name} was skipped: {reason}" for name, reason in found["skipped"].items()]
    batches = f"{found['spec']['batches']} batches"
    over = f"mean over {batches}" if found["spec"].get("continuous") else f"median of {batches}"
    return Group(*_workload(found), f"Read {way}; {over}", table, *notes)


def _workload(found: dict[str, Any]) -> list[str]:
    spec = found["spec"]
    memory = memory_said(spec["memory"])
    way = "a continuous stream in" if spec.get("continuous") else "drained"
    return [
        f"R of {format_count(spec['rows'])} rows, {format_bytes(found['relation']['bytes'])}; memory {memory}",
        f"Zipf {spec['exponent']:g} ({spec['shape']}), {way} batches of {format_count(spec['batch_rows'])}",
    ]


def vega_lite(found: dict[str, Any]) -> dict[str, Any]:
    """Return a bar chart of the rates as a Vega-Lite specification."""
    machine = found["machine"]
    values = [
        {
            "join": name,
            "rate": rate,
            "label": format_count(rate) + "/s",
            "memory": "bounded" if found["joins"][name]["bounded"] else "unbounded",
        }
        for name, rate in sorted(found["rates"].items(), key=lambda item: -item[1])
    ]
    commit, _, changes = found["commit"].partition(" ")
    where = f"{machine['cores']} cores, {machine['file_system']}, {found['when'][:10]}, commit {commit[:10]} {changes}"
    position = {"field": "join", "type": "nominal", "sort": None, "title": None, "axis": {"labelFontSize": 12}}
    title = {
        "text": "Service rate by join",
        "subtitle": [*_workload(found), where],
        "anchor": "start",
        "fontSize": 16,
    }
    rate = {"field": "rate", "type": "quantitative", "title": "stream tuples per second", "axis": {"format": "~s"}}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": title,
        "width": 620,
        "height": {"step": 24},
        "background": "white",
        "data": {"values": values},
        "encoding": {"y": position, "x": rate},
        "layer": [
            {
                "mark": {"type": "bar", "cornerRadiusEnd": 3},
                "encoding": {
                    "color": {
                        "field": "memory",
                        "type": "nominal",
                        "legend": {"title": None, "orient": "bottom-right"},
                        "scale": {"domain": ["bounded", "unbounded"], "range": ["#2a6f97", "#b8c4cc"]},
                    }
                },
            },
            {"mark": {"type": "text", "align": "left", "dx": 4}, "encoding": {"text": {"field": "label"}}},
        ],
        "config": {"view": {"stroke": None}, "font": "sans-serif"},
    }
