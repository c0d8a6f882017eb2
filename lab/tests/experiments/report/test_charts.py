"""Charts that a reader can read: no label on another, no point hidden, no panel flattened by its neighbours."""

from __future__ import annotations

from typing import Any

from semistream_lab.experiments.judge.outcome import Outcome
from semistream_lab.experiments.report.axes import axis_of
from semistream_lab.experiments.report.charts import chart
from semistream_lab.experiments.spec import Axis, Figure, Point, Sample, Workload


def _chart(rates: dict[tuple[str, str, float], float], *, log: bool = False) -> dict[str, Any]:
    """Return the chart of an experiment with a rate for each line, panel and x position."""
    samples, results = [], {}
    for (line, panel, x), rate in rates.items():
        point = Point(workload=Workload(rows=1), algorithm=line, memory=1, settings={"x": x, "panel": panel})
        samples.append(Sample(line, x, point, panel))
        results[point.digest()] = {"rate": rate}
    figure = Figure(id="e", paper="p", figure="f", title="t", setup="s", x=Axis("x"), y=Axis("y", log=log),
                    samples=tuple(samples))  # fmt: skip
    return chart(Outcome(figure, results))


def _points(panel: dict[str, Any]) -> dict[str, Any]:
    return next(layer["encoding"] for layer in panel["layer"] if layer["mark"]["type"] == "point")


def _tops(drawn: dict[str, Any]) -> list[float]:
    return [_points(panel)["y"]["scale"]["domain"][1] for panel in drawn["concat"]]


def test_a_point_below_another_is_larger() -> None:
    drawn = _chart({("a", "", 1.0): 5.0, ("b", "", 1.0): 5.0, ("c", "", 1.0): 5.0})
    sizes = _points(drawn)["size"]["scale"]["range"]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3


def test_a_single_line_has_points_of_one_size() -> None:
    assert _points(_chart({("a", "", 1.0): 5.0, ("a", "", 2.0): 6.0}))["size"] == {"value": 60}


def test_panels_have_their_own_scales_if_a_common_one_makes_one_unreadable() -> None:
    def rates(tuned: float) -> dict[tuple[str, str, float], float]:
        settings = (("as published", 10.0), ("tuned", tuned))
        return {(f"{line}, {setting}", "", 1.0): rate for line in "ab" for setting, rate in settings}

    near, far = _chart(rates(30.0)), _chart(rates(90.0))
    assert len(set(_tops(near))) == 1
    assert len(set(_tops(far))) == 2
    assert "own scale" not in near["title"]["subtitle"]
    assert "own scale" in far["title"]["subtitle"]
    assert len(set(_tops(_chart(rates(90.0), log=True)))) == 1  # on a logarithmic axis both are readable


def test_labels_that_would_overlap_are_slanted_and_all_shown() -> None:
    crowded = axis_of(Axis("x"), [1.0, 2.0, 100.0], [0.0, 100.0], 300.0)
    assert (crowded["labelAngle"], crowded["labelOverlap"], crowded["values"]) == (-60, False, [1.0, 2.0, 100.0])
    assert "labelAngle" not in axis_of(Axis("x"), [1.0, 50.0, 100.0], [0.0, 100.0], 300.0)


def test_a_point_below_a_logarithmic_axis_is_mentioned() -> None:
    shown = _chart({("a", "", 1.0): 1.0, ("b", "", 1.0): 2.0}, log=True)
    below = _chart({("a", "", 1.0): 1e-9, ("b", "", 1.0): 2.0}, log=True)
    assert "lower edge" not in shown["title"]["subtitle"]
    assert "lower edge" in below["title"]["subtitle"]
