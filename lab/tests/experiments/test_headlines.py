"""The papers' headline claims, on the simulated device, at a tenth to a hundredth of the papers' sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semistream_lab.experiments.catalog import catalog
from semistream_lab.experiments.judge.analysis import FrontStageGain
from semistream_lab.experiments.judge.outcome import Outcome
from semistream_lab.experiments.judge.verdicts import judge
from semistream_lab.experiments.measure.tasks import measure
from semistream_lab.experiments.papers.settings import published, tuned
from semistream_lab.experiments.papers.ssij.ssij_setups import AUTHORS, EQUAL_SSIJ, MESH, TUNED_MESH, TUNED_SSIJ
from semistream_lab.experiments.spec import Sample

pytestmark = pytest.mark.slow

Record = dict[str, Any]
Measured = Callable[..., Outcome]

_KNOWN: dict[str, Record] = {}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Measure an experiment, or those of its samples that are chosen; points that experiments share once."""
    directory = tmp_path_factory.mktemp("data")

    def run(name: str, chosen: Callable[[Sample], bool] = lambda _: True) -> Outcome:
        whole = catalog("simulated", "test")[name]
        experiment = dataclasses.replace(whole, samples=tuple(filter(chosen, whole.samples)))
        for sample in experiment.samples:
            if sample.point.digest() not in _KNOWN:
                _KNOWN[sample.point.digest()] = measure(sample.point, "simulated", directory)
        outcome = Outcome(experiment, _KNOWN)
        assert outcome.complete
        return outcome

    return run


def ratios(outcome: Outcome, first: str, second: str, facet: str = "") -> dict[float, float]:
    found = {x: a.y / b.y for x, a, b in outcome.pairs(first, second, facet)}
    assert found
    return found


@pytest.mark.long
def test_cmeshjoin_gains_what_its_model_says(measured: Measured) -> None:
    outcome = measured("cmesh-3d")
    for names in (tuned("CMESHJOIN", "MESHJOIN"), published("CMESHJOIN", "MESHJOIN")):
        gains = ratios(outcome, *names)
        for skew, first, second in outcome.pairs(*names)[1:]:
            assert first.model is not None
            assert second.model is not None
            assert gains[skew] == pytest.approx(first.model / second.model, rel=0.1)
        assert gains[1.0] > 1.0
        assert list(gains.values()) == sorted(gains.values())
        assert 0.7 < gains[0.0] < 1.0


def test_cmeshjoin_as_published_gains_what_the_papers_model_gives(measured: Measured) -> None:
    gains = ratios(measured("cmesh-3d"), *published("CMESHJOIN", "MESHJOIN"))
    law = FrontStageGain(1_000_000, 12e6)
    assert gains[1.0] == pytest.approx(law.best()[0], rel=0.1)
    # the cache that suits exponent 1, whatever the stream is: what it takes from waiting tuples is lost without skew
    assert gains[0.0] == pytest.approx(1.0 - law.best_share, abs=0.05)


def test_the_papers_model_of_cmeshjoin_gives_less_than_the_paper_measures() -> None:
    assert FrontStageGain(100_000_000, 1.2e9).best()[0] == pytest.approx(3.8, abs=0.05)
    assert FrontStageGain(100_000_000, 0.12e9).best()[0] == pytest.approx(2.5, abs=0.05)
    assert FrontStageGain(20_000_000, 1.2e9).best()[0] > FrontStageGain(100_000_000, 1.2e9).best()[0]
    # processor costs of the hash table: 1 % of memory never gives 5 times, whatever they are
    assert FrontStageGain(100_000_000, 0.12e9).best(1.0)[0] < 4.1
    gains = [FrontStageGain(100_000_000, 1.2e9).best(seconds)[0] for seconds in (0.0, 1e-6, 1e-5, 1e-4)]
    assert gains == sorted(gains)
    assert gains[2] < 4.3


def test_joins_hold_as_many_tuples_as_the_papers_say(measured: Measured) -> None:
    outcome = measured("hybrid-10d", lambda sample: sample.x == 50.0 and sample.series.endswith("published"))
    for name in published("HYBRIDJOIN", "MESHJOIN"):
        record = outcome.at(name, 50.0).record
        waiting = record["memory_parts"]["stream table"] / record["waiting_bytes"]
        assert waiting * 172 + record["memory_parts"]["disk buffer"] == pytest.approx(5e6, rel=0.01)
        assert record["budget"] < 5e6


@pytest.mark.long
def test_ssij_gains_more_with_many_rows_a_key_and_with_tuned_thresholds(measured: Measured) -> None:
    outcome = measured("ssij-7", lambda sample: sample.point.task == "rate")
    facet = "memory 10%"
    best, authors, equal = (ratios(outcome, TUNED_SSIJ, AUTHORS, facet), ratios(outcome, EQUAL_SSIJ, AUTHORS, facet),
                            ratios(outcome, EQUAL_SSIJ, MESH, facet))  # fmt: skip
    assert best[1] > 3.0
    assert best[10] > best[1]
    # with the bytes of its authors MESHJOIN holds about a third of what ours does
    assert all(2.0 < authors[x] / equal[x] < 4.0 for x in equal)
    assert ratios(outcome, TUNED_SSIJ, TUNED_MESH, facet) == ratios(outcome, TUNED_SSIJ, MESH, facet)


def test_x_hybridjoin_above_hybridjoin_above_meshjoin_with_skew(measured: Measured) -> None:
    outcome = measured("xhybrid-3c", lambda sample: sample.x == 1.0 and "R-MESHJOIN" not in sample.series)
    for setting in (published, tuned):
        for pair in (("X-HYBRIDJOIN", "HYBRIDJOIN"), ("HYBRIDJOIN", "MESHJOIN")):
            assert min(ratios(outcome, *setting(*pair)).values()) > 1.0, (setting, pair)


def test_phases_in_parallel_are_near_their_model_and_not_far_from_phases_in_turn(measured: Measured) -> None:
    # above them at the papers' sizes; here what lies between the phases is as much as overlapping wins
    outcome = measured("pcache-4c", lambda sample: sample.x == 1.0 and sample.series.endswith("tuned"))
    names = tuned("P-CACHEJOIN", "CACHEJOIN")
    assert min(ratios(outcome, *names).values()) > 0.9
    for name in names:
        found = outcome.at(name, 1.0)
        assert found.y == pytest.approx(found.model, rel=0.15)


def test_the_same_run_gives_the_same_numbers(measured: Measured, tmp_path: Path) -> None:
    for name in ("cmesh-3d", "xhybrid-3c"):
        outcome = measured(name, lambda sample: sample.x == 1.0 and "R-MESHJOIN" not in sample.series)
        sample = outcome.experiment.samples[0]
        assert measure(sample.point, "simulated", tmp_path) == _KNOWN[sample.point.digest()]


def test_a_whole_experiment_is_judged(measured: Measured) -> None:
    outcome = measured("cmesh-3d")
    (judged,) = judge([outcome.experiment], _KNOWN)
    # 7 times MESHJOIN is more than the model allows; that is judged in cmesh-3b, and does not count again
    assert judged.status == ("holds" if all(found.holds for one, found in judged.verdicts if one.counted) else "fails")
    claim, verdict = judged.verdicts[0]
    assert (claim.published, claim.standing) == ("7×", "repeated")
    assert not verdict.holds
    assert "model gives" in verdict.reason
    assert verdict.tuned is not None
