"""`semistream experiments`: run the papers' evaluations, judge their claims and draw the results."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from semistream.cli.console import errors, out, print_json, progress

__all__ = ["app"]

app = typer.Typer(help="Run the papers' experiments and report which claims hold.", no_args_is_help=True)


class _Device(StrEnum):
    simulated = "simulated"
    real = "real"


class _Scale(StrEnum):
    full = "full"
    test = "test"


_DeviceOption = Annotated[
    _Device, typer.Option(help="A simulated disk with virtual time, or this machine's disk and clock.")
]
_ScaleOption = Annotated[
    _Scale, typer.Option(help="full: the papers' sizes, or minutes on a real disk; test: seconds per experiment.")
]
_Results = Annotated[Path, typer.Option(help="Directory of raw results; points measured before are not run again.")]
_DEFAULT_RESULTS = Path("artifacts/experiments")


@app.command("list")
def list_experiments(
    device: _DeviceOption = _Device.simulated,
    scale: _ScaleOption = _Scale.full,
    results: _Results = _DEFAULT_RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List all experiments and the verdicts of the measured ones."""
    judged = _judged(device, scale, results)
    if as_json:
        print_json([
            {
                "id": one.experiment.id, "paper": one.experiment.paper, "figure": one.experiment.figure,
                "title": one.experiment.title, "points": len(one.experiment.samples), "status": one.status,
            }
            for one in judged
        ])  # fmt: skip
        return
    table = Table(box=None, pad_edge=False)
    for title in ("id", "paper", "figure", "what", "points", "status"):
        table.add_column(title, justify="right" if title == "points" else "left", no_wrap=title in ("id", "status"))
    for one in judged:
        experiment = one.experiment
        table.add_row(
            experiment.id, experiment.paper, experiment.figure, experiment.title, str(len(experiment.samples)),
            _coloured(one.status),
        )  # fmt: skip
    out.print(table)


@app.command()
def run(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of experiments, or: all.")],
    device: _DeviceOption = _Device.simulated,
    scale: _ScaleOption = _Scale.full,
    results: _Results = _DEFAULT_RESULTS,
    workers: Annotated[
        int | None, typer.Option(help="Number of processes. Default: 2 if simulated, 1 on a real disk.", min=1)
    ] = None,
    any_version: Annotated[
        bool, typer.Option("--any-version", help="Keep results measured by an earlier version of the code.")
    ] = False,
) -> None:
    """Measure the points that the experiments need. Continue where an earlier run stopped."""
    from semistream_lab.experiments.catalog import choose
    from semistream_lab.experiments.measure.runner import plan
    from semistream_lab.experiments.measure.runner import run as run_points
    from semistream_lab.experiments.measure.store import Store
    from semistream_lab.experiments.spec import Point

    chosen = choose(ids, device.value, scale.value)
    store = Store(results, device.value, scale.value)
    points, kept = plan(chosen, store, any_version=any_version)
    if kept:
        errors.print(f"{kept} points were measured before", style="dim")
    with progress() as bars:
        task = bars.add_task(f"{len(chosen)} experiments", total=max(1, len(points)), unit="points", note="")

        def show(point: Point, record: dict[str, Any], seconds: float) -> None:
            bars.update(task, advance=1, note=f"{point.algorithm}, {point.workload.kind}, {seconds:.1f} s")

        summary = run_points(points, store, workers=workers or (2 if device == _Device.simulated else 1), progress=show)
        bars.update(task, completed=max(1, len(points)), note="")
    _print_verdicts(_judged(device, scale, results, [one.id for one in chosen]))
    for point, message in summary.failures:
        errors.print(f"[red]failed:[/red] {point.algorithm}, {point.workload.kind}: {escape(message)}")
    out.print(f"{summary.measured} points in {summary.seconds:.0f} s; raw results: {escape(str(store.path))}")
    if summary.failures:
        raise typer.Exit(1)


@app.command()
def models(
    scale: _ScaleOption = _Scale.full,
    results: _Results = _DEFAULT_RESULTS,
) -> None:
    """Update the predictions of the cost models in the results of a simulated run; measure nothing."""
    from semistream_lab.experiments.catalog import choose
    from semistream_lab.experiments.measure.store import Store
    from semistream_lab.experiments.models_anew import models_anew

    store = Store(results, "simulated", scale.value)
    with errors.status("models …") as status:
        count = models_anew(
            choose(["all"], "simulated", scale.value), store,
            lambda done, of: status.update(f"models {done} of {of} …"),
        )  # fmt: skip
    out.print(f"updated the models of {count} points to this version: {escape(str(store.path))}")


@app.command()
def report(
    device: _DeviceOption = _Device.simulated,
    scale: _ScaleOption = _Scale.full,
    results: _Results = _DEFAULT_RESULTS,
    output: Annotated[
        Path | None,
        typer.Option(help="Directory for report.html, report.md and pictures. Default: next to the results."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print headlines and the verdict of each experiment; write nothing.")
    ] = False,
) -> None:
    """Judge every claim by the raw results and write a report in HTML and in Markdown with pictures."""
    from semistream_lab.experiments.judge.verdicts import statuses
    from semistream_lab.experiments.measure.store import COMMITTED, ResultsError, Store
    from semistream_lab.experiments.report.write import write_report

    store = Store(results, device.value, scale.value)
    if not store.path.exists():
        committed = Store(COMMITTED / device.value, device.value, scale.value)
        if results != _DEFAULT_RESULTS or not committed.path.exists():
            raise ResultsError(
                f"there are no results to report in {store.path}; measure them with: "
                f"semistream experiments run all --device {device.value} --scale {scale.value} --results {results}; "
                f"or use the results of the repository: --results docs/results/{device.value}"
            )
        there, kept = escape(str(store.path)), escape(str(committed.path))
        errors.print(f"no results in {there}: showing the committed ones of {kept}", style="dim")
        output = output or results / f"report-{device.value}-{scale.value}"
        results, store = committed.path.parent, committed
    judged = _judged(device, scale, results)
    rows = _headlines(judged, device, scale)
    if as_json:
        print_json({"headlines": {row.headline.id: row.as_json() for row in rows}, "claims": statuses(judged)})
        return
    with errors.status("drawing …") as status:
        written = write_report(
            judged, store.environments(), output or results / f"report-{device.value}-{scale.value}",
            models_of=store.models_of(), rows=rows,
            progress=lambda name: status.update(f"drawing {name} …"),
        )  # fmt: skip
    _print_verdicts(judged)
    out.print(f"{written[0]}\n{written[1]}", markup=False)


def _headlines(judged: list[Any], device: _Device, scale: _Scale) -> list[Any]:
    """Return the rows of the headlines. A full run of one device gets the committed results of the other."""
    from semistream_lab.experiments.headlines.table import headline_rows
    from semistream_lab.experiments.measure.store import COMMITTED

    other = _Device.simulated if device == _Device.real else _Device.real
    others = _judged(other, scale, COMMITTED / other.value) if scale == _Scale.full else []
    return headline_rows(*((others, judged) if device == _Device.real else (judged, others)))


def _judged(device: _Device, scale: _Scale, results: Path, ids: list[str] | None = None) -> list[Any]:
    from semistream_lab.experiments.catalog import choose
    from semistream_lab.experiments.judge.verdicts import judge
    from semistream_lab.experiments.measure.store import Store

    chosen = choose(ids or ["all"], device.value, scale.value)
    return judge(chosen, Store(results, device.value, scale.value).results())


def _coloured(status: str) -> str:
    colour = {"holds": "green", "fails": "red"}.get(status, "dim")
    return f"[{colour}]{status}[/{colour}]"


def _print_verdicts(judged: list[Any]) -> None:
    from semistream_lab.experiments.report.wording import shown, summary_rows

    table = Table(box=None, pad_edge=False)
    for title in ("id", "claim", "published", "measured", "verdict", "tuned"):
        table.add_column(title, no_wrap=title in ("id", "verdict"))
    for row in summary_rows(shown(judged)):
        # only the first word on tuning; the report has the details
        table.add_row(
            row.id, row.claim, row.published, row.measured, _coloured(row.verdict), row.tuned.partition(":")[0]
        )
    out.print(table)
