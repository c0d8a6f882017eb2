"""What a report of a real device says, and what it leaves to the simulated one."""

from __future__ import annotations

from typing import Any

from semistream_lab.experiments.experiment import Claim, Experiment
from semistream_lab.experiments.judge import claims
from semistream_lab.experiments.judge.verdicts import Judged, judge
from semistream_lab.experiments.report.summary import summary
from semistream_lab.experiments.report.wording import introduction, setup_of
from semistream_lab.experiments.spec import Axis, Point, Sample, Workload


def _judged(device: str) -> list[Judged]:
    samples, results = [], {}
    for rows in (1_000, 250_000):
        point = Point(workload=Workload(rows=rows), algorithm="hybridjoin", memory=rows * 12)
        samples.append(Sample("a", float(rows), point))
        record: dict[str, Any] = {"rate": 100.0 / rows, "environment": {"device": device, "scale": "full"}}
        results[point.digest()] = record
    rising = Claim("a rises.", "7 times", claims.rises("a", because="seeks"), impossible="no disk does that")
    experiment = Experiment(
        id="e", paper="p", figure="Figure 1", title="t", setup="Set up.", x=Axis("x"), y=Axis("y"),
        samples=tuple(samples), claims=(rising,),
    )  # fmt: skip
    return judge([experiment], results)


def test_reasons_of_the_papers_disk_are_not_given_for_another() -> None:
    real, simulated = _judged("real"), _judged("simulated")
    assert [verdict.reason for _, verdict in simulated[0].verdicts] == ["seeks"]
    assert [verdict.reason for _, verdict in real[0].verdicts] == [""]
    assert [verdict.holds for _, verdict in real[0].verdicts] == [False]
    assert any("no disk does that" in line for line in summary(simulated))
    assert not any("annot be right" in line for line in summary(real))
    assert "the simulated report explains why a claim fails" in introduction(real)[0]
    assert "the simulated report" not in introduction(simulated)[0]


def test_sizes_are_those_of_the_run() -> None:
    assert setup_of(_judged("simulated")[0]) == "Figure 1. Set up."
    assert setup_of(_judged("real")[0]) == (
        "Figure 1. Set up. Here: R of 1 k to 250 k tuples, 12 KB to 3 MB of memory."
    )
