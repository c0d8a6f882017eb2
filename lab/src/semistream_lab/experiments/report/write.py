"""The report: one HTML page that needs no network, and Markdown with pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from semistream.core.errors import MissingExtraError
from semistream_lab.experiments.headlines.absolute_rates import COLUMNS, RATES_NOTE, absolute_rates
from semistream_lab.experiments.headlines.cells import LEGEND, TITLES, cells, reasons
from semistream_lab.experiments.headlines.headline import Row
from semistream_lab.experiments.headlines.paragraphs import paragraphs
from semistream_lab.experiments.judge.model_agreement import AGREEMENT, agreement
from semistream_lab.experiments.judge.verdicts import Judged
from semistream_lab.experiments.report.charts import chart
from semistream_lab.experiments.report.html import page
from semistream_lab.experiments.report.png import smaller
from semistream_lab.experiments.report.summary import summary
from semistream_lab.experiments.report.wording import (
    MODELS,
    conditions,
    equal_words,
    introduction,
    second_words,
    setup_of,
    shown,
    summary_rows,
    word_of,
)

__all__ = ["write_report"]

Record = dict[str, Any]


def _vega() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise MissingExtraError("vl-convert-python", "report", of="semistream-lab") from None
    return vl_convert


def write_report(
    judged: Sequence[Judged],
    environments: Sequence[Record],
    directory: Path,
    *,
    models_of: str | None = None,
    rows: Sequence[Row] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Write ``report.html``, ``report.md`` and a picture for each experiment; return the files.

    Parameters
    ----------
    judged
        Experiments and verdicts, in the order of the report. Experiments without any measurement are left out.
    environments
        Devices, machines and versions that the results were measured with.
    models_of
        The commit of the models, if it is not the commit of the runs.
    rows
        The headlines. The table is left out if none of them was measured as published.
    directory
        Where to write. Files with these names are replaced; other files stay.
    """
    vega = _vega()
    rows = rows if any(row.as_published for row in rows) else ()
    specs = {one.experiment.id: chart(one.outcome) for one in judged if one.outcome.complete}
    pictures: dict[str, bytes] = {}
    for name, spec in specs.items():
        progress(name)
        pictures[name] = smaller(vega.vegalite_to_png(json.dumps(spec), vl_version="6.4", scale=1.5))
    written = {
        "report.html": page(
            judged, environments, specs, vega.javascript_bundle(vl_version="6.4"), models_of, rows
        ).encode(),
        "report.md": markdown(judged, environments, models_of, rows).encode(),
        **{f"{name}.png": data for name, data in pictures.items()},
    }
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in written.items():
        beside = directory / f".{name}.unfinished"
        beside.write_bytes(data)
        beside.replace(directory / name)
    return [directory / name for name in written]


def headlines_in_markdown(rows: Sequence[Row]) -> list[str]:
    """Return the table of headlines, how to read it, and a paragraph for each paper, as lines of Markdown."""
    lines = ["| " + " | ".join(TITLES) + " |", "|---|---|---|---|---|---|---|---|"]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    return [*lines, "", "\n\n".join([LEGEND, *paragraphs(rows), *reasons(rows)]), ""]


def markdown(
    judged: Sequence[Judged], environments: Sequence[Record], models_of: str | None = None, rows: Sequence[Row] = ()
) -> str:
    """Return the report as Markdown, which refers to pictures in the same directory."""
    parts = ["# The papers' experiments", ""]
    if rows:
        parts += headlines_in_markdown(rows)
        if rates := absolute_rates(judged):
            parts += ["## Absolute rates", "", RATES_NOTE, ""]
            parts += ["| " + " | ".join(COLUMNS) + " |", "|---|---:|---:|---:|---|"]
            parts += [*("| " + " | ".join(cells) + " |" for cells in rates), ""]
        parts += ["## All claims", ""]
    parts += [
        *(f"{number}. {line}" for number, line in enumerate(summary(judged), 1)),
        "",
    ]
    parts += ["\n\n".join(introduction(judged)), ""]
    judged = shown(judged)
    parts += ["| experiment | claim | published | as published | verdict | equal bytes | tuned |"]
    parts += ["|---|---|---|---|---|---|---|"]
    for row in summary_rows(judged):
        line = [f"[{row.id}](#{row.id})", row.claim, row.published, row.measured, f"**{row.verdict}**", row.equal]
        parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in (*line, row.tuned)) + " |")
    parts += ["", MODELS, ""]
    parts += ["| " + " | ".join(AGREEMENT) + " |", "|---|---:|---:|---:|---:|---:|---|"]
    parts += ["| " + " | ".join(row.cells()) + " |" for row in agreement(judged)]
    paper = ""
    for one in judged:
        experiment = one.experiment
        if experiment.paper != paper:
            paper = experiment.paper
            parts += ["", f"## {paper}"]
        parts += ["", f'<a id="{experiment.id}"></a>', "", f"### {experiment.id}: {experiment.title}", ""]
        parts += [setup_of(one), ""]
        if experiment.taken:
            parts += ["Not stated in the paper, and assumed here:", ""]
            parts += [*(f"- {taken}" for taken in experiment.taken), ""]
        if not one.outcome.complete:
            parts += [one.outcome.why_not, ""]
            continue
        parts += [f"![{experiment.id}]({experiment.id}.png)", ""]
        for claim, verdict in one.verdicts:
            word = word_of(claim, verdict)
            parts.append(f"- **{word}**: {claim.text} Published: {claim.published}. Measured: {verdict.measured}.")
            if words := equal_words(verdict):
                parts.append(f"  Equal bytes: {words}.")
            if words := second_words(claim, verdict):
                parts.append(f"  {words[0].upper()}{words[1:]}.")
            if verdict.reason:
                parts.append(f"  *{verdict.reason.strip()}*")
        for sample, reason in one.outcome.skipped:
            parts.append(f"- skipped: {sample.series} at {sample.x:g}: {reason}")
    parts += ["", "## How it was measured", "", *conditions(judged, environments, models_of), ""]
    return "\n".join(parts)
