"""Judges on lines whose truth is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from semistream_lab.experiments.experiment import Claim, Experiment
from semistream_lab.experiments.judge import claims
from semistream_lab.experiments.judge.claims import Judge
from semistream_lab.experiments.judge.outcome import Outcome
from semistream_lab.experiments.judge.verdicts import judge
from semistream_lab.experiments.spec import Axis, Point, Sample, Workload

Line = Sequence[tuple[float, float]]


def _experiment(samples: tuple[Sample, ...], claims: tuple[Claim, ...]) -> Experiment:
    return Experiment(
        id="e", paper="p", figure="f", title="t", setup="s", x=Axis("x"), y=Axis("y"), samples=samples, claims=claims
    )


def outcome(lines: Mapping[str, Line], *, interval: float = 0.0, models: Mapping[str, Line] | None = None) -> Outcome:
    samples, results = [], {}
    for name, line in lines.items():
        model = dict((models or {}).get(name, ()))
        for x, y in line:
            point = Point(workload=Workload(rows=1), algorithm=name, memory=1, settings={"x": x})
            samples.append(Sample(name, x, point))
            results[point.digest()] = {"rate": y, "interval": interval, "model": model.get(x)}
    experiment = _experiment(tuple(samples), ())
    return Outcome(experiment, results)


UP = ((1.0, 1.0), (2.0, 2.0), (3.0, 4.0))
HILL = ((1.0, 1.0), (2.0, 3.0), (3.0, 2.0))


@pytest.mark.parametrize(
    ("judged", "lines", "holds"),
    [
        (claims.above("a", "b"), {"a": UP, "b": ((1.0, 0.5), (2.0, 1.9), (3.0, 3.0))}, True),
        (claims.above("a", "b"), {"a": UP, "b": ((1.0, 0.5), (2.0, 2.1), (3.0, 3.0))}, False),
        (claims.above("a", "b", but=(2.0,)), {"a": UP, "b": ((1.0, 0.5), (2.0, 2.1), (3.0, 3.0))}, True),
        (claims.above("a", "b", factor=2.0), {"a": UP, "b": ((1.0, 0.6), (2.0, 0.9), (3.0, 1.0))}, False),
        (claims.gain("a", "b", 4.0, x=3.0), {"a": UP, "b": ((3.0, 1.0),)}, True),
        (claims.gain("a", "b", 4.4, x=3.0), {"a": UP, "b": ((3.0, 1.0),)}, True),  # within a tenth
        (claims.gain("a", "b", 4.5, x=3.0), {"a": UP, "b": ((3.0, 1.0),)}, False),
        (claims.gain("a", "b", 3.0, x=3.0), {"a": UP, "b": ((3.0, 1.0),)}, False),  # and not more than a tenth above
        (claims.gain_goes("a", "b", way="up"), {"a": UP, "b": ((1.0, 1.0), (3.0, 1.0))}, True),
        (claims.gain_goes("a", "b", way="down"), {"a": UP, "b": ((1.0, 1.0), (3.0, 1.0))}, False),
        (claims.gain_goes("b", "a", way="down"), {"a": UP, "b": ((1.0, 1.5), (3.0, 1.0))}, True),
        (claims.gain_goes("b", "a", way="down"), {"a": UP, "b": ((1.0, 0.9), (3.0, 1.0))}, False),
        (claims.ends_below("a"), {"a": HILL}, True),
        (claims.ends_below("a"), {"a": UP}, False),
        (claims.flat("a", 0.1), {"a": ((1.0, 1.0), (2.0, 0.95))}, True),
        (claims.flat("a", 0.1), {"a": ((1.0, 1.0), (2.0, 1.2), (3.0, 1.0))}, False),
        (claims.gain_changes("a", "b", (1.0, 1.0), (3.0, 4.0)), {"a": UP, "b": ((1.0, 1.0), (3.0, 1.0))}, True),
        (claims.gain_changes("a", "b", (1.0, 1.0), (3.0, 6.0)), {"a": UP, "b": ((1.0, 1.0), (3.0, 1.0))}, False),
        (claims.rises("a"), {"a": UP}, True),
        (claims.rises("a", at_least=5.0), {"a": UP}, False),
        (claims.rises("a"), {"a": HILL}, False),
        (claims.falls("a"), {"a": tuple((4 - x, y) for x, y in UP)}, True),
        (claims.falls("a"), {"a": UP}, False),
        (claims.interior("a"), {"a": HILL}, True),
        (claims.interior("a"), {"a": UP}, False),
        (claims.falls_beyond("a", 2.0), {"a": HILL}, True),
        (claims.falls_beyond("a", 1.0), {"a": HILL}, False),
        (claims.falls_beyond("a", 2.0), {"a": UP}, False),
        (
            claims.gain_goes("a", "b", way="down"),
            {"a": ((1.0, 3.0), (2.0, 1.5), (3.0, 2.0)), "b": ((1.0, 1.0), (2.0, 1.0), (3.0, 1.0))},
            False,
        ),
        (claims.decays("a"), {"a": ((1.0, 100.0), (2.0, 30.0), (3.0, 4.0))}, True),
        (claims.decays("a"), {"a": ((1.0, 100.0), (2.0, 30.0), (3.0, 14.0))}, False),
    ],
)
def test_judges(judged: Judge, lines: Mapping[str, Line], holds: bool) -> None:
    verdict = judged(outcome(lines))
    assert verdict.holds is holds
    assert verdict.measured


def test_noise_is_not_held_against_an_order() -> None:
    close = {"a": ((1.0, 10.0), (2.0, 20.0)), "b": ((1.0, 10.1), (2.0, 12.0))}
    assert not claims.above("a", "b")(outcome(close)).holds
    assert claims.above("a", "b")(outcome(close, interval=0.2)).holds


def test_a_tie_everywhere_is_not_above() -> None:
    tied = {"a": ((1.0, 10.1), (2.0, 12.0)), "b": ((1.0, 10.0), (2.0, 12.1))}
    verdict = claims.above("a", "b")(outcome(tied, interval=0.2))
    assert not verdict.holds
    assert "nowhere above" in verdict.measured


def test_one_line_is_above_all_others_or_each_above_the_next() -> None:
    lines = {"a": ((1.0, 3.0),), "b": ((1.0, 1.0),), "c": ((1.0, 2.0),)}
    assert not claims.above("a", "b", "c")(outcome(lines)).holds
    assert claims.above("a", "b", "c", of_all=True)(outcome(lines)).holds
    assert not claims.above("b", "a", "c", of_all=True)(outcome(lines)).holds


def test_much_noise_does_not_turn_below_into_above() -> None:
    apart = {"a": ((1.0, 10.0),), "b": ((1.0, 12.0),)}
    assert not claims.above("a", "b")(outcome(apart, interval=5.0)).holds


def test_a_line_that_is_nowhere_above_by_more_than_its_intervals_is_not_above() -> None:
    apart = {"a": ((1.0, 12.0), (2.0, 11.0)), "b": ((1.0, 10.0), (2.0, 10.0))}
    assert claims.above("a", "b")(outcome(apart, interval=0.9)).holds
    tied = claims.above("a", "b")(outcome(apart, interval=1.1))
    assert not tied.holds
    assert "nowhere above by more than the intervals" in tied.measured


def test_noise_is_not_held_against_a_flat_line_up_to_as_much_once_more() -> None:
    line = {"a": ((1.0, 100.0), (2.0, 85.0))}
    assert not claims.flat("a", 0.1)(outcome(line)).holds
    assert claims.flat("a", 0.1)(outcome(line, interval=4.0)).holds
    assert not claims.flat("a", 0.1)(outcome({"a": ((1.0, 100.0), (2.0, 75.0))}, interval=50.0)).holds


def test_model_within() -> None:
    lines = {"a": UP}
    near, far = {"a": tuple((x, y * 1.04) for x, y in UP)}, {"a": tuple((x, y * 1.2) for x, y in UP)}
    assert claims.model_within(0.05)(outcome(lines, models=near)).holds
    assert not claims.model_within(0.05)(outcome(lines, models=far)).holds
    assert not claims.model_within(0.05)(outcome(lines)).holds  # no model at all


def test_what_an_interval_covers_is_not_held_against_a_model_up_to_the_tolerance_once_more() -> None:
    lines = {"a": ((1.0, 100.0),)}
    models = {"a": ((1.0, 100.0 / 1.07),)}
    assert not claims.model_within(0.05)(outcome(lines, models=models)).holds
    assert claims.model_within(0.05)(outcome(lines, models=models, interval=3.0)).holds
    far = {"a": ((1.0, 100.0 / 1.2),)}
    assert not claims.model_within(0.05)(outcome(lines, models=far, interval=50.0)).holds


def test_a_reason_is_given_only_where_it_is_needed() -> None:
    assert claims.rises("a", because="no")(outcome({"a": UP})).reason == ""
    assert claims.rises("a", because="no")(outcome({"a": HILL})).reason == "no"
    assert claims.rises("a", because=lambda found: found.names()[0])(outcome({"a": HILL})).reason == "a"


def test_an_experiment_holds_if_all_its_claims_do_and_is_not_run_if_a_point_lacks() -> None:
    point = Point(workload=Workload(rows=1), algorithm="a", memory=1)
    rising = Claim("rises", "so", claims.rises("a"))
    other = Claim("is a hill", "so", claims.interior("a"))
    samples = tuple(Sample("a", x, Point(workload=Workload(rows=1), algorithm="a", memory=int(x))) for x, _ in UP)
    results = {sample.point.digest(): {"rate": y} for sample, (_, y) in zip(samples, UP, strict=True)}

    def status(*judges: Claim, known: Mapping[str, dict[str, float]] = results) -> str:
        experiment = _experiment(samples, judges)
        return judge([experiment], known)[0].status

    assert status(rising) == "holds"
    assert status(rising, other) == "fails"
    assert status(rising, known={}) == "not run"
    assert status(rising, known={**results, samples[0].point.digest(): {"error": "broken"}}) == "not run"  # type: ignore[dict-item]
    assert point.digest() != samples[0].point.digest() or point == samples[0].point
