"""The papers' headline claims, on the simulated device, at a tenth to a hundredth of the papers' sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semistream.experiments.catalog import catalog
from semistream.experiments.judge.analysis import FrontStageGain
from semistream.experiments.judge.outcome import Outcome
from semistream.experiments.judge.verdicts import judge
from semistream.experiments.measure.tasks import measure
from semistream.experiments.papers.cachejoins import AT_ONCE
from semistream.experiments.papers.cmesh_reasons import PUBLISHED as PUBLISHED_CMESH
from semistream.experiments.papers.cmesh_reasons import PUBLISHED_MESH
from semistream.experiments.papers.ssij_setups import PUBLISHED
from semistream.experiments.spec import Sample

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


def test_cmeshjoin_gains_what_its_model_says_and_loses_only_without_skew(measured: Measured) -> None:
    outcome = measured("cmesh-3d")
    for names in (("CMESHJOIN", "MESHJOIN"), (PUBLISHED_CMESH, PUBLISHED_MESH)):
        gains = ratios(outcome, *names)
        for skew, first, second in outcome.pairs(*names)[-2:]:
            assert first.model is not None
            assert second.model is not None
            assert gains[skew] == pytest.approx(first.model / second.model, rel=0.1)
        # what both stages hold for themselves takes the gain at 0.75 in a budget as small as this one
        assert gains[1.0] > 1.0
        assert gains[1.0] > gains[0.75] > 0.95
        assert gains[0.75] > gains[0.0]
        # both joins of a budget this small have a sixteenth of it for each of their stream buffers
        assert 0.8 < gains[0.0] < 1.0


def test_cmeshjoin_with_the_papers_bytes_gains_what_the_papers_model_gives(measured: Measured) -> None:
    gains = ratios(measured("cmesh-3d"), PUBLISHED_CMESH, PUBLISHED_MESH)
    assert gains[1.0] == pytest.approx(FrontStageGain(1_000_000, 12e6).best()[0], rel=0.1)
    assert gains[0.0] > 0.95


def test_the_papers_model_of_cmeshjoin_gives_less_than_the_paper_measures() -> None:
    assert FrontStageGain(100_000_000, 1.2e9).best()[0] == pytest.approx(3.8, abs=0.05)
    assert FrontStageGain(100_000_000, 0.12e9).best()[0] == pytest.approx(2.5, abs=0.05)
    assert FrontStageGain(20_000_000, 1.2e9).best()[0] > FrontStageGain(100_000_000, 1.2e9).best()[0]
    # processor costs of the hash table: 1 % of memory never gives 5 times, whatever they are
    assert FrontStageGain(100_000_000, 0.12e9).best(1.0)[0] < 4.1
    gains = [FrontStageGain(100_000_000, 1.2e9).best(seconds)[0] for seconds in (0.0, 1e-6, 1e-5, 1e-4)]
    assert gains == sorted(gains)
    assert gains[2] < 4.3


def test_ssij_is_three_times_the_published_meshjoin_and_more_with_many_rows_a_key(measured: Measured) -> None:
    outcome = measured("ssij-7")
    gains = ratios(outcome, "SSIJ", PUBLISHED, outcome.facets()[0])
    assert gains[1] > 3.0
    assert gains[10] > 1.05 * gains[1]
    ours = ratios(outcome, "SSIJ", "MESHJOIN", outcome.facets()[0])
    assert min(ours.values()) > 1.5
    for found in outcome.line("SSIJ", outcome.facets()[0]):
        assert found.y == pytest.approx(found.record["counting_model"], rel=0.1)


def test_x_hybridjoin_above_hybridjoin_above_meshjoin_with_skew(measured: Measured) -> None:
    outcome = measured("xhybrid-3c", lambda sample: sample.x > 0 and sample.series != "R-MESHJOIN")
    for first, second in (("X-HYBRIDJOIN", "HYBRIDJOIN"), ("HYBRIDJOIN", "MESHJOIN")):
        found = ratios(outcome, first, second)
        assert min(found.values()) > 1.0, (first, second, found)


def test_phases_in_parallel_are_above_phases_in_turn(measured: Measured) -> None:
    outcome = measured("opcache-6c", lambda sample: sample.x == 1.0)
    assert min(ratios(outcome, "P-CACHEJOIN", "CACHEJOIN").values()) > 1.0
    assert min(ratios(outcome, AT_ONCE, "P-CACHEJOIN").values()) > 1.0


def test_dynamic_memory_is_above_every_fixed_split(measured: Measured) -> None:
    outcome = measured("ssij-10")
    dynamic, *fixed = outcome.names()
    for split in fixed:
        assert min(ratios(outcome, dynamic, split).values()) > 1.0, split


def test_the_same_run_gives_the_same_numbers(measured: Measured, tmp_path: Path) -> None:
    for name in ("cmesh-3d", "xhybrid-3c"):
        outcome = measured(name, lambda sample: sample.x == 1.0 and sample.series != "R-MESHJOIN")
        sample = outcome.experiment.samples[0]
        assert measure(sample.point, "simulated", tmp_path) == _KNOWN[sample.point.digest()]


def test_a_whole_experiment_is_judged(measured: Measured) -> None:
    outcome = measured("cmesh-3d")
    (judged,) = judge([outcome.experiment], _KNOWN)
    assert judged.status == "fails"  # 7 times MESHJOIN is more than the model allows
    claim, verdict = judged.verdicts[0]
    assert claim.published == "7×"
    assert not verdict.holds
    assert "model gives" in verdict.reason
