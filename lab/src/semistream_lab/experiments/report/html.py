"""The report as one HTML page, which contains the script that draws the charts."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from semistream_lab.experiments.headlines.absolute_rates import COLUMNS, RATES_NOTE, absolute_rates
from semistream_lab.experiments.headlines.cells import LEGEND, TITLES, cells, reasons
from semistream_lab.experiments.headlines.headline import Row
from semistream_lab.experiments.headlines.paragraphs import paragraphs
from semistream_lab.experiments.judge.model_agreement import AGREEMENT, agreement
from semistream_lab.experiments.judge.outcome import Found
from semistream_lab.experiments.judge.verdicts import Judged
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

__all__ = ["page"]

Record = dict[str, Any]

_STYLE = """
:root { --ink: #1d232a; --soft: #5b6570; --line: #dfe3e8; --good: #1a7f4b; --bad: #b3261e; --none: #7a828b; }
* { box-sizing: border-box; }
body { font: 16px/1.55 Helvetica, Arial, sans-serif; color: var(--ink); margin: 0; background: #f6f7f9; }
main { max-width: 1180px; margin: 0 auto; padding: 2rem 1.5rem 6rem; }
h1 { font-size: 2rem; margin: .5rem 0; } h2 { margin: 3rem 0 1rem; border-bottom: 2px solid var(--line); }
h3 { margin: 0 0 .3rem; font-size: 1.15rem; }
table { border-collapse: collapse; width: 100%; background: #fff; font-size: .88rem; }
th, td { text-align: left; padding: .45rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { background: #eef1f4; position: sticky; top: 0; }
a { color: #0b5cad; text-decoration: none; } a:hover { text-decoration: underline; }
article { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 1.2rem 1.4rem;
  margin: 1.2rem 0; }
.setup { color: var(--soft); margin: 0 0 1rem; } .chart { overflow-x: auto; margin: .5rem 0 1rem; }
.badge { display: inline-block; min-width: 4.2em; text-align: center; border-radius: 1em; padding: 0 .6em;
  font-size: .82rem; font-weight: 600; color: #fff; background: var(--none); white-space: nowrap; }
.holds { background: var(--good); } .fails { background: var(--bad); }
.wide { overflow-x: auto; }
.headlines td:nth-child(n+3), .numbers td:nth-child(n+2) { white-space: nowrap; }
.headlines .paper td { background: #f6f7f9; font-weight: 600; padding-top: .7rem; }
ol.summary { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 1rem 1.4rem 1rem 2.6rem; }
ol.summary li { margin: .3rem 0; }
ul.claims { list-style: none; padding: 0; margin: 0; }
ul.claims li { padding: .5rem 0; border-top: 1px solid var(--line); }
.reason { color: var(--soft); margin: .3rem 0 0 5.2em; } .facts { margin-left: 5.2em; color: var(--soft); }
details { margin-top: .8rem; font-size: .85rem; } summary { cursor: pointer; color: var(--soft); }
@media (max-width: 1000px) {
  .claims-table { overflow-x: auto; } .reason, .facts { margin-left: 0; } h1 { font-size: 1.5rem; }
  main { padding: 1rem .8rem 3rem; } article { padding: .8rem; }
}
"""

_DRAW = """
const specs = JSON.parse(document.getElementById("specs").textContent);
for (const [name, spec] of Object.entries(specs)) {
  vegaEmbed("#chart-" + name, spec, {actions: false, renderer: "svg"}).catch(console.error);
}
"""


def page(
    judged: Sequence[Judged], environments: Sequence[Record], specs: Mapping[str, Record], script: str,
    models_of: str | None = None, rows: Sequence[Row] = (),
) -> str:  # fmt: skip
    """Return the whole page.

    ``script`` is the chart library; the page contains it once.
    """
    # "</" would end the script element early, even inside a string
    data = json.dumps(specs, separators=(",", ":")).replace("</", "<\\/")
    script = script.replace("</script", "<\\/script")
    body = "\n".join(_body(judged, environments, models_of, rows))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>semistream: the papers' experiments</title>\n<style>{_STYLE}</style>\n"
        f"<script>{script}</script>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        f'<script id="specs" type="application/json">{data}</script>\n<script>{_DRAW}</script>\n</body>\n</html>\n'
    )


def _badge(word: str) -> str:
    return f'<span class="badge {word.partition(":")[0].replace(" ", "-")}">{word}</span>'


def _marked(text: str) -> str:
    """Return a text with Markdown emphasis as HTML."""
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html.escape(text, quote=False))
    return re.sub(r"\*(.+?)\*", r"<i>\1</i>", text)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], name: str) -> str:
    head = "".join(f"<th>{html.escape(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table class="{name}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _headline_table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table of headlines, grouped by paper."""
    head = "".join(f"<th>{html.escape(title)}</th>" for title in TITLES)
    yield f'<div class="wide"><table class="headlines"><thead><tr>{head}</tr></thead><tbody>'
    for paper, group in groupby(rows, key=lambda row: row.headline.paper):
        yield f'<tr class="paper"><td colspan="{len(TITLES)}">{html.escape(paper)}</td></tr>'
        for row in group:
            *texts, verdict = cells(row)
            shown_cells = "".join(f"<td>{html.escape(text)}</td>" for text in texts)
            kind = {True: "holds", False: "fails", None: "not-run"}[row.reproduces]
            yield f'<tr>{shown_cells}<td><span class="badge {kind}">{html.escape(verdict)}</span></td></tr>'
    yield "</tbody></table></div>"


def _summary_line(line: str) -> str:
    """Return a line of the summary as a list item; failed claims are a list inside it that can be opened."""
    text, _, failed = line.partition(" Failed: ")
    if not failed:
        return f"<li>{html.escape(text)}</li>"
    found = re.split(r"; (?=\w+-\w+: )", failed.rstrip("."))
    items = "".join(
        f'<li><a href="#{name}">{name}</a>: {html.escape(words)}</li>'
        for name, _, words in (one.partition(": ") for one in found)
    )
    return f"<li>{html.escape(text)}<details><summary>{len(found)} that do not</summary><ul>{items}</ul></details></li>"


def _first_screen(judged: Sequence[Judged], rows: Sequence[Row]) -> Iterator[str]:
    """The headlines, and absolute rates."""
    yield from _headline_table(rows)
    yield from (f"<p>{_marked(text)}</p>" for text in [LEGEND, *paragraphs(rows), *reasons(rows)])
    if rates := absolute_rates(judged):
        yield "<h2>Absolute rates</h2>"
        yield f"<p>{html.escape(RATES_NOTE)}</p>"
        yield _table(COLUMNS, rates, "numbers")
    yield "<h2>All claims</h2>"


def _body(
    judged: Sequence[Judged], environments: Sequence[Record], models_of: str | None, headlines: Sequence[Row]
) -> Iterator[str]:
    e = html.escape
    yield "<h1>The papers' experiments</h1>"
    if headlines:
        yield from _first_screen(judged, headlines)
    yield '<ol class="summary">'
    yield from map(_summary_line, summary(judged))
    yield "</ol>"
    yield from (f"<p>{_marked(text)}</p>" for text in introduction(judged))
    judged = shown(judged)
    titles = ("experiment", "claim", "published", "as published", "verdict", "equal bytes", "tuned")
    # in a wide window the table has no scroll box of its own, so that its column titles stay in view
    yield f'<div class="claims-table"><table><thead><tr>{"".join(f"<th>{title}</th>" for title in titles)}</tr>'
    yield "</thead><tbody>"
    for row in summary_rows(judged):
        yield (
            f'<tr><td><a href="#{row.id}">{row.id}</a></td><td>{e(row.claim)}</td><td>{e(row.published)}</td>'
            f"<td>{e(row.measured)}</td><td>{_badge(row.verdict)}</td><td>{e(row.equal)}</td><td>{e(row.tuned)}</td></tr>"
        )
    yield "</tbody></table></div>"
    yield f"<p>{e(MODELS)}</p>"
    yield _table(AGREEMENT, [found.cells() for found in agreement(judged)], "models")
    paper = ""
    for one in judged:
        if one.experiment.paper != paper:
            paper = one.experiment.paper
            yield f"<h2>{e(paper)}</h2>"
        yield from _article(one)
    yield "<h2>How it was measured</h2><ul>"
    yield from (f"<li>{e(line.removeprefix('- '))}</li>" for line in conditions(judged, environments, models_of))
    yield "</ul>"


def _article(one: Judged) -> Iterator[str]:
    e, experiment = html.escape, one.experiment
    yield f'<article id="{experiment.id}"><h3>{experiment.id}: {e(experiment.title)} {_badge(one.status)}</h3>'
    yield f'<p class="setup">{e(setup_of(one))}</p>'
    if experiment.taken:
        listed = "".join(f"<li>{e(str(taken))}</li>" for taken in experiment.taken)
        yield f'<div class="setup">Not stated in the paper, and assumed here:<ul>{listed}</ul></div>'
    if one.outcome.complete:
        yield f'<div class="chart" id="chart-{experiment.id}"></div><ul class="claims">'
        for claim, verdict in one.verdicts:
            yield f"<li>{_badge(word_of(claim, verdict))} {e(claim.text)}"
            yield f'<div class="facts">published: {e(claim.published)} · measured: {e(verdict.measured)}</div>'
            if words := equal_words(verdict):
                yield f'<div class="facts">equal bytes: {e(words)}</div>'
            if words := second_words(claim, verdict):
                yield f'<div class="facts">{e(words)}</div>'
            if verdict.reason:
                yield f'<p class="reason">{e(verdict.reason)}</p>'
            yield "</li>"
        yield "</ul>"
        for sample, reason in one.outcome.skipped:
            yield f'<p class="setup">Skipped: {e(sample.series)} at {sample.x:g}: {e(reason)}</p>'
        yield from _numbers(one)
    else:
        yield f"<p>{e(one.outcome.why_not)}</p>"
    yield "</article>"


def _windows(found: Found) -> str:
    """Return the number of measurement windows, and of seeds if there are several."""
    windows = str(len(found.record["windows"])) if "windows" in found.record else ""
    return f"{windows} × {found.seeds} seeds" if found.seeds > 1 else windows


def _numbers(one: Judged) -> Iterator[str]:
    """The numbers behind the chart."""
    e, outcome = html.escape, one.outcome
    yield '<details><summary>numbers</summary><div class="wide"><table><thead><tr>'
    yield f"<th>line</th><th>{e(outcome.experiment.x.title)}</th>"
    yield "<th>measured</th><th>± 95 %</th><th>windows</th><th>model</th></tr></thead>"
    for facet in outcome.facets():
        for name in outcome.names():
            for found in outcome.line(name, facet):
                model = f"{found.model:,.4g}" if found.model is not None else ""
                label = f"{facet}: {name}" if facet else name
                yield (
                    f"<tr><td>{e(label)}</td><td>{found.x:g}</td><td>{found.y:,.4g}</td>"
                    f"<td>{found.interval:,.2g}</td><td>{_windows(found)}</td><td>{model}</td></tr>"
                )
    yield "</table></div></details>"
