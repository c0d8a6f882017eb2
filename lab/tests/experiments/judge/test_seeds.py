"""Places that were measured with several seeds: their mean, and its interval."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from semistream_lab.experiments.catalog import catalog
from semistream_lab.experiments.confidence import interval
from semistream_lab.experiments.judge.machine_prices import JAVA_MYSQL_2010
from semistream_lab.experiments.judge.outcome import Outcome
from semistream_lab.experiments.measure.store import COMMITTED, Store
from semistream_lab.experiments.papers.settings import with_more_seeds
from semistream_lab.experiments.report.charts import chart
from semistream_lab.experiments.spec import Axis, Figure, Point, Sample, Workload


def _point(x: float) -> Point:
    return Point(workload=Workload(rows=1), algorithm="a", memory=1, settings={"x": x})


def _figure() -> Figure:
    samples = with_more_seeds([Sample("a", x, _point(x)) for x in (1.0, 2.0)], 2.0)
    return Figure(id="e", paper="p", figure="f", title="t", setup="s", x=Axis("x"), y=Axis("y"), samples=samples)


def _results(figure: Figure) -> dict[str, dict[str, Any]]:
    return {
        sample.point.digest(): {"rate": 10.0 * sample.point.workload.seed, "interval": 0.5} for sample in figure.samples
    }


def test_a_place_with_several_seeds_has_their_mean_and_its_interval() -> None:
    figure = _figure()
    one, several = Outcome(figure, _results(figure)).line("a")
    assert (one.y, one.interval, one.seeds) == (10.0, 0.5, 1)
    assert (several.y, several.seeds) == (20.0, 3)
    assert several.interval == pytest.approx(interval([10.0, 20.0, 30.0]))


def test_a_point_that_is_listed_twice_is_one_seed() -> None:
    figure = _figure()
    twice = dataclasses.replace(figure, samples=(*figure.samples, figure.samples[0]))
    assert [found.seeds for found in Outcome(twice, _results(figure)).line("a")] == [1, 3]


def test_an_outcome_is_incomplete_until_all_seeds_are_measured() -> None:
    figure = _figure()
    results = _results(figure)
    assert Outcome(figure, results).complete
    del results[figure.samples[-1].point.digest()]
    assert not Outcome(figure, results).complete


def test_a_chart_has_a_panel_for_each_of_the_three_settings() -> None:
    results = Store(COMMITTED / "simulated", "simulated", "full").results()
    drawn = chart(Outcome(catalog()["cmesh-3b"], results, JAVA_MYSQL_2010))
    assert [panel["title"]["text"] for panel in drawn["concat"]] == ["as published", "equal bytes", "tuned"]
    slow, compiled = ({(row["series"], row["x"]): row["y"] for row in panel["data"]["values"]} for panel in
                      drawn["concat"][:2])  # fmt: skip
    assert slow.keys() == compiled.keys()
    assert all(slow[place] < compiled[place] for place in slow)
