"""Counts of a measurement with the prices of another machine."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from semistream_lab.experiments.catalog import catalog
from semistream_lab.experiments.judge.machine_prices import JAVA_MYSQL_2010, MachinePrices, repriced
from semistream_lab.experiments.judge.outcome import Outcome
from semistream_lab.experiments.judge.verdicts import judge
from semistream_lab.experiments.measure.store import COMMITTED, Store
from semistream_lab.experiments.papers.settings import AS_PUBLISHED, TUNED
from semistream_lab.experiments.spec import Sample

Record = dict[str, Any]


@pytest.fixture(scope="module")
def results() -> dict[str, Record]:
    return Store(COMMITTED / "simulated", "simulated", "full").results()


def _measured(results: dict[str, Record], name: str) -> list[tuple[Sample, Record]]:
    return [
        (sample, results[sample.point.digest()]) for sample in catalog()[name].samples if not sample.aside
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["cmesh-3b", "opcache-6b", "hybrid-10d", "xhybrid-3b"])
def test_the_prices_that_were_measured_with_give_the_rate_that_was_measured(name, results):
    for sample, record in _measured(results, name):
        assert repriced(record, sample.point, MachinePrices("same", "the same")) == pytest.approx(
            record["rate"], rel=1e-3
        )


def test_reads_and_operations_have_their_own_prices(results):
    ((sample, record), *_) = [one for one in _measured(results, "hybrid-10d") if one[0].series == "INLJ"]
    # one read per tuple: the seek decides, and operations hardly matter
    faster = repriced(record, sample.point, MachinePrices("disk", "", seek=0.5))
    assert 1.0 / faster == pytest.approx(1.0 / record["rate"] - 0.5 * sample.point.seek_seconds, rel=1e-3)
    assert repriced(record, sample.point, MachinePrices("slow", "", processor=10.0)) > 0.99 * record["rate"]


def test_loads_at_once_help_only_a_join_that_loads_several_buffers(results):
    at_once = MachinePrices("two", "", loads=2)
    for sample, record in _measured(results, "opcache-6b"):
        gain = repriced(record, sample.point, at_once) / record["rate"]
        if sample.point.algorithm == "op_cachejoin":
            assert gain > 1.3, sample.series
        else:
            assert gain == pytest.approx(1.0, rel=1e-3), sample.series


def test_lines_as_published_have_the_papers_machine_and_tuned_ones_have_not(results):
    (judged,) = judge([catalog()["xhybrid-3b"]], results)
    outcome = judged.outcome
    assert outcome.prices == JAVA_MYSQL_2010
    for name in outcome.names():
        for ours, compiled in zip(outcome.line(name), outcome.compiled.line(name), strict=True):
            assert (ours.y < compiled.y) == (AS_PUBLISHED in name) == (TUNED not in name)
            assert (ours.model is None) == (AS_PUBLISHED in name)
    assert outcome.compiled.prices is None
    for _, verdict in judged.verdicts:
        assert verdict.equal is not None


def test_a_real_device_and_compiled_papers_keep_their_prices(results):
    (judged,) = judge([catalog()["ssij-11"]], results)
    assert judged.outcome.prices is None
    real = {name: {**record, "environment": {"device": "real"}} for name, record in results.items()}
    (judged,) = judge([catalog()["xhybrid-3b"]], real)
    assert judged.outcome.prices is None


def test_the_fit_is_within_eleven_percent_of_both_published_figures_and_no_other_factor_is_closer(results):
    experiment = catalog()["xhybrid-3b"]

    def apart(processor: float) -> float:
        prices = dataclasses.replace(JAVA_MYSQL_2010, processor=processor)
        pairs = Outcome(experiment, results, prices).pairs(f"HYBRIDJOIN{AS_PUBLISHED}", f"X-HYBRIDJOIN{AS_PUBLISHED}")
        found = {x: first.y / second.y for x, first, second in pairs}
        return max(abs(found[0.5] / 0.7 - 1.0), abs(found[8.0] / 0.5 - 1.0))

    assert apart(JAVA_MYSQL_2010.processor) < 0.11
    assert min(range(5, 60), key=apart) == JAVA_MYSQL_2010.processor
