"""Every judge can fail: results that contradict a sentence are given to its judge, and so are some that agree."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from experiments.judge.cases import Case, Found
from experiments.judge.contrary import CASES
from semistream_lab.experiments.catalog import catalog
from semistream_lab.experiments.experiment import Claim, Experiment
from semistream_lab.experiments.judge.outcome import Outcome
from semistream_lab.experiments.judge.verdicts import Judged
from semistream_lab.experiments.papers.settings import AS_PUBLISHED, EQUAL, TUNED
from semistream_lab.experiments.report.summary import summary
from semistream_lab.experiments.spec import Sample, Verdict

EXPERIMENTS = catalog()
COUNTS = (
    "rows_in", "rows_out", "rows_done", "cache_hits", "probes", "appended", "evicted", "pages_read", "reads",
    "io_seconds",
)  # fmt: skip


def _record(y: float, metric: str) -> dict[str, Any]:
    """What a measurement has, whatever was measured."""
    return {
        "rate": y, "counting": y, metric: y, "model": None, "hit_ratio": 0.5, "io_share": 0.5, "late": 0, "tuples": 10,
        "counts": dict.fromkeys(COUNTS, 1000), "options": {"pinned_pages": 10, "partition_pages": 10, "partitions": 10},
        "waiting_bytes": 58, "join_phases": 5,
        "memory_parts": {"stream table": 58_000, "read buffer": 1_000_000}, "longest": 1.0, "sustained": y,
        "nominal": 1000.0,
    }  # fmt: skip


def _value(found: Found, sample: Sample) -> float:
    for lines in (found.facets.get(sample.facet, {}), found.lines):
        for name in (sample.series, sample.series.removesuffix(AS_PUBLISHED).removesuffix(EQUAL).removesuffix(TUNED)):
            if name in lines:
                value = lines[name]
                return value if isinstance(value, int | float) else value(sample.x)
    return 1.0


def _outcome(experiment: Experiment, found: Found) -> Outcome:
    """Results of an experiment as a case has them; no two samples share a point here."""
    samples, results = [], {}
    for at, sample in enumerate(experiment.samples):
        point = dataclasses.replace(sample.point, settings={**sample.point.settings, "at": at})
        y = _value(found, sample)
        record = _record(y, sample.metric or experiment.metric)
        if found.apart is not None:
            record |= {"model": y / found.apart}
        more = found.records.get(sample.series, {})
        record |= more(sample.x) if callable(more) else more
        samples.append(dataclasses.replace(sample, point=point))
        results[point.digest()] = record
    return Outcome(dataclasses.replace(experiment, samples=tuple(samples)), results)


ALL = [
    pytest.param(experiment, claim, id=f"{name}: {claim.text}")
    for name, experiment in EXPERIMENTS.items() for claim in experiment.claims
]  # fmt: skip


def _case(experiment: Experiment, claim: Claim) -> Case:
    at = experiment.claims.index(claim)
    cases = CASES.get(experiment.id, [])
    assert at < len(cases), f"{experiment.id}: nothing contradicts {claim.text!r}; add a case to contrary.py"
    assert claim.text.startswith(cases[at].claim), f"{experiment.id}: {cases[at].claim!r} is no case of {claim.text!r}"
    assert cases[at].contrary
    return cases[at]


@pytest.mark.parametrize(("experiment", "claim"), ALL)
def test_what_contradicts_a_claim_makes_it_fail_and_what_agrees_makes_it_hold(experiment, claim):
    case = _case(experiment, claim)
    for judge in filter(None, (claim.judge, claim.equal, claim.tuned)):
        for contrary in case.contrary:
            verdict = judge(_outcome(experiment, contrary))
            assert not verdict.holds, f"{verdict.measured} contradicts it"
            assert verdict.measured
            assert verdict.reason
        verdict = judge(_outcome(experiment, case.agreeing))
        assert verdict.holds, verdict.measured
        assert not verdict.reason


def test_the_summary_has_ten_lines_and_names_what_fails_and_what_cannot_be():
    judged = []
    for name, experiment in EXPERIMENTS.items():
        outcome = _outcome(experiment, Found())
        verdicts = [
            (claim, Verdict(CASES[name].index(case) % 2 == 0, "this was found"))
            for claim, case in zip(experiment.claims, CASES[name], strict=True)
        ]
        judged.append(Judged(experiment, outcome, verdicts))
    lines = summary(judged)
    assert len(lines) == 10
    text = "\n".join(lines)
    failed = [(one.experiment.id, claim) for one in judged for claim, found in one.verdicts if not found.holds]
    assert failed
    for name, claim in failed:
        assert (f"{name}: {claim.text.rstrip('.')} (this was found)" in text) == claim.counted
        assert claim.impossible in text
    whole = lines[1].partition(": ")[2].rstrip(".").split(", ")
    assert whole == [one.experiment.id for one in judged if one.status == "holds"]


def test_every_case_is_of_a_claim():
    assert set(CASES) == set(EXPERIMENTS)
    for name, cases in CASES.items():
        assert len(cases) == len(EXPERIMENTS[name].claims), name


def test_a_sentence_is_judged_once():
    counted = [
        (experiment.paper, experiment.figure, claim.text)
        for experiment in EXPERIMENTS.values() for claim in experiment.claims if claim.counted
    ]  # fmt: skip
    assert len(counted) == len(set(counted)) >= 60


def test_a_judge_is_the_same_on_a_real_device_and_at_a_small_scale():
    texts = {name: {claim.text for claim in experiment.claims} for name, experiment in EXPERIMENTS.items()}
    for device, scale in (("simulated", "test"), ("real", "full"), ("real", "test")):
        for name, experiment in catalog(device, scale).items():
            assert {claim.text for claim in experiment.claims} <= texts[name], name
