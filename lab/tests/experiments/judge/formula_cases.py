"""Cases of claims that a paper's own formulas give what was measured: met, or missed on either side."""

from __future__ import annotations

from dataclasses import replace

from experiments.judge.cases import C, Case, Found, Value, X, case
from semistream.costs import load_constants
from semistream.costs.basis.constants import DEFAULT
from semistream_lab.experiments.catalog import catalog
from semistream_lab.experiments.judge.analysis import FrontStageGain
from semistream_lab.experiments.judge.outcome import Found as OneFound
from semistream_lab.experiments.judge.papers_formulas import Formula
from semistream_lab.experiments.papers.xhybrid_grid import papers_rate


def by_its_formulas(name: str) -> Case:
    """A paper's own model, met or missed on either side."""
    points = {sample.x: sample.point for sample in catalog()[name].samples}
    return case(
        "Model and measurement",
        {X: lambda x: 1.04 * papers_rate(points[x])},
        {X: lambda x: 0.96 * papers_rate(points[x])},
        agreeing={X: lambda x: 1.01 * papers_rate(points[x])},
    )


def cache_sizes() -> Case:
    """CMESHJOIN's model: one size of the cache is off, to either side."""
    point = catalog()["cmesh-2"].samples[0].point
    law = FrontStageGain(point.workload.rows, point.memory, point.workload.exponent, point.workload.row_bytes)

    def times(factor: float) -> Found:
        return Found({C: lambda x: law.at(x / 100) * (factor if x == 10 else 1.0)})

    return case("The model is within", times(1.12), times(0.88), agreeing=times(1.02))


def by_formula(name: str, line: str, formula: Formula) -> Case:
    """The formulas of HYBRIDJOIN's paper, met or missed on either side."""
    points = {sample.x: sample.point for sample in catalog()["hybrid-11"].samples if sample.series == line}
    record = {
        "options": {"partition_pages": 416, "partitions": 86}, "memory_parts": {"stream table": 58_000_000},
        "waiting_bytes": 58,
    }  # fmt: skip
    constants, measured = load_constants(DEFAULT), OneFound(0.0, 0.0, 0.0, None, record)

    def times(factor: float) -> Found:
        return Found({line: lambda x: factor * formula(points[x], measured, constants)}, records={line: record})

    return case(f"The predicted cost of {name}", times(1.12), times(0.88), agreeing=times(1.02))


def by_tuned_formulas() -> Case:
    """X-HYBRIDJOIN's paper's own model, also where sizes are tuned."""
    chosen = {"partition_pages": 400, "pinned_pages": 300}
    points = {(sample.series, sample.x): sample.point for sample in catalog()["xhybrid-8"].samples}

    def rate(line: str, x: float) -> float:
        point = points[line, x]
        return papers_rate(replace(point, options={**point.options, **chosen}) if point.tuned else point)

    def times(factor: float) -> Found:
        lines = [f"{X}, its split tuned", f"{X}, untuned"]
        made: dict[str, Value] = {line: lambda x, line=line: factor * rate(line, x) for line in lines}
        return Found(made, records={line: {"options": chosen} for line in lines})

    return case("The predicted cost", times(1.12), times(0.88), agreeing=times(1.02))
