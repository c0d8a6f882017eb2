"""The table of headlines: what its cells are made of, and when a headline reproduces."""

from __future__ import annotations

from typing import Any

import pytest

from semistream_lab.experiments.catalog import catalog
from semistream_lab.experiments.headlines.absolute_rates import COLUMNS, absolute_rates
from semistream_lab.experiments.headlines.cells import TITLES, cells
from semistream_lab.experiments.headlines.headline import Headline, Lines, row_of
from semistream_lab.experiments.headlines.paragraphs import paragraphs
from semistream_lab.experiments.headlines.table import HEADLINES, headline_rows
from semistream_lab.experiments.judge.outcome import Outcome
from semistream_lab.experiments.judge.verdicts import Judged, judge
from semistream_lab.experiments.measure.store import COMMITTED, Store
from semistream_lab.experiments.spec import Axis, Figure, Point, Sample, Workload


def _outcome(**lines: float) -> Outcome:
    samples, results = [], {}
    for name, rate in lines.items():
        for x in (1.0, 2.0):
            point = Point(workload=Workload(rows=1), algorithm=name, memory=1, settings={"x": x})
            samples.append(Sample(name, x, point))
            results[point.digest()] = {"rate": rate * x if name == "a" else rate}
    figure = Figure(
        id="e", paper="p", figure="f", title="t", setup="s", x=Axis("x"), y=Axis("y"), samples=tuple(samples)
    )
    return Outcome(figure, results)


def _headline(**options: Any) -> Headline:
    return Headline(id="h", paper="p", text="a is faster than b", published="2×", cause="paper",
                    as_published=(Lines("e", "a", "b"),), tuned=(Lines("other", "a", "b"),), **options)  # fmt: skip


def test_a_row_has_the_lowest_and_the_highest_ratio() -> None:
    row = row_of(_headline(), {"e": _outcome(a=3.0, b=2.0)}, {})
    assert (row.as_published, row.equal, row.tuned, row.today) == ("1.50–3.00×", "1.50–3.00×", None, None)
    assert row.reproduces
    assert row.cause is None


@pytest.mark.parametrize(("a", "reproduces"), [(1.0, True), (0.96, True), (0.94, False), (0.5, False)])
def test_an_order_reproduces_unless_a_ratio_contradicts_it_or_all_tie(a: float, reproduces: bool) -> None:
    row = row_of(_headline(), {"e": _outcome(a=a, b=1.0)}, {})
    assert row.reproduces is reproduces
    assert row.cause == (None if reproduces else "paper")


def test_a_tie_everywhere_is_no_order() -> None:
    headline = Headline(id="h", paper="p", text="b", published="", as_published=(Lines("e", "b", "c"),), cause="price")
    assert row_of(headline, {"e": _outcome(b=1.0, c=1.0)}, {}).reproduces is False


def test_a_rate_is_reached_within_a_tenth() -> None:
    for published, reached in ((1000.0, True), (1111.0, True), (1200.0, False)):
        headline = Headline(id="h", paper="p", text="t", published="", rate=published,
                            as_published=(Lines("e", "b"),))  # fmt: skip
        row = row_of(headline, {"e": _outcome(b=1000.0)}, {})
        assert (row.as_published, row.reproduces) == ("1 k/s", reached)


def test_what_was_not_measured_is_not_run() -> None:
    row = row_of(_headline(), {}, {})
    assert row.reproduces is None
    assert cells(row) == ["a is faster than b", "2×", "not run", "not run", "not run", "", "", "not run"]
    assert len(cells(row)) == len(TITLES)
    assert row.as_json()["reproduces"] is None


@pytest.fixture(scope="module")
def committed() -> list[Judged]:
    return judge(catalog().values(), Store(COMMITTED / "simulated", "simulated", "full").results())


def test_every_headline_refers_to_lines_that_exist() -> None:
    known = catalog()
    for headline in HEADLINES:
        groups = (headline.as_published, headline.equal or (), headline.tuned, headline.adaptive)
        for lines in (one for group in groups for one in group):
            names = {sample.series for sample in known[lines.experiment].samples}
            assert lines.first in names, (headline.id, lines)
            assert not lines.second or lines.second in names, (headline.id, lines)
    assert len({headline.id for headline in HEADLINES}) == len(HEADLINES)


def test_the_committed_results_reproduce_each_headline_or_say_why_not(committed: list[Judged]) -> None:
    rows = headline_rows(committed)
    for row in rows:
        assert row.reproduces is not None, row.headline.id
        if not row.reproduces:
            assert row.cause in ("paper", "price"), row.headline.id
            assert row.why, row.headline.id
    assert sum(row.reproduces is True for row in rows) >= 9
    texts = paragraphs(rows)
    assert len(texts) == 6
    assert not any("not run" in text for text in texts)
    table = absolute_rates(committed)
    assert all(len(line) == len(COLUMNS) for line in table)
    assert any(line[0].startswith("INLJ") and line[-1] == "yes" for line in table)


def test_every_failure_has_a_cause_and_a_reason(committed: list[Judged]) -> None:
    for one in committed:
        for claim, verdict in one.verdicts:
            assert bool(verdict.cause) == (not verdict.holds)
            if claim.counted and not verdict.holds:
                assert verdict.reason, (one.experiment.id, claim.text)
