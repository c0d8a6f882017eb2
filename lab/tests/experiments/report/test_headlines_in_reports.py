"""The table of headlines in the documentation and in both committed reports, and its form in HTML."""

from __future__ import annotations

from pathlib import Path

import pytest

from semistream_lab.experiments.headlines.headline import Headline, Row
from semistream_lab.experiments.measure.store import COMMITTED
from semistream_lab.experiments.report.html import page

DOCS = COMMITTED.parent


def _first_lines(report: Path) -> str:
    """Return what stands between the title of a report and the next heading."""
    text = report.read_text(encoding="utf-8").partition("\n")[2]
    return text.partition("\n## ")[0].strip()


def test_the_documentation_has_the_headlines_of_the_simulated_report() -> None:
    text = (DOCS / "experiments.md").read_text(encoding="utf-8")
    block = text.partition("<!-- headlines:")[2].partition("-->\n")[2].partition("<!-- end of headlines -->")[0]
    assert block.startswith("| headline |")
    assert block.strip() == _first_lines(COMMITTED / "simulated" / "report.md")


def test_the_real_report_begins_with_the_same_table() -> None:
    here, there = (_first_lines(COMMITTED / device / "report.md") for device in ("real", "simulated"))
    assert here.startswith("| headline |")
    assert here == there


def _row(reproduces: bool | None) -> Row:
    headline = Headline(id="h", paper="A paper", text="a < b", published="2×", as_published=(), cause="price")
    return Row(headline, "1.00–2.00×", None, None, None, None, reproduces, why="w")


@pytest.mark.parametrize(("reproduces", "badge"), [(True, "holds"), (False, "fails"), (None, "not-run")])
def test_the_page_has_a_verdict_for_each_headline_and_a_heading_for_each_paper(
    reproduces: bool | None, badge: str
) -> None:
    text = page([], [], {}, "", rows=[_row(reproduces), _row(reproduces)])
    assert text.count('class="paper"') == 1
    assert text.count(f'class="badge {badge}"') == 2
    assert "a &lt; b" in text
