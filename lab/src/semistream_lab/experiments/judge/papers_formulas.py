"""Rates that the papers' own formulas give for measured points: CMESHJOIN, MESHJOIN, HYBRIDJOIN and INLJ."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable

from semistream.costs import Constants, load_constants
from semistream.costs.basis.constants import DEFAULT
from semistream_lab.experiments.judge.analysis import FrontStageGain
from semistream_lab.experiments.judge.claims import Judge
from semistream_lab.experiments.judge.machine_prices import MachinePrices
from semistream_lab.experiments.judge.outcome import Found, Outcome
from semistream_lab.experiments.measure.machine_costs import slower
from semistream_lab.experiments.spec import Point, Verdict, Workload

__all__ = [
    "KAPPA",
    "Formula",
    "close_match",
    "derivative_optimum",
    "formula_gains",
    "hybrid_formula",
    "index_formula",
    "mesh_formula",
    "served_beyond",
    "within_formulas",
]

Formula = Callable[[Point, Found, Constants], float]
"""Computes the tuples per second that a paper's formulas give."""

KAPPA = 1.36
"""κ as fitted in HYBRIDJOIN's paper (Eq. 2), dimensionless: see `served_beyond`."""


def _waiting(found: Found) -> float:
    """Return the number of tuples that wait in memory."""
    return float(found.record["memory_parts"]["stream table"] / found.record["waiting_bytes"])


def served_beyond(found: Found, workload: Workload, pages: float) -> float:
    """Return the papers' κ: the tuples that a read serves, relative to what a uniform stream would give.

    A uniform stream would give the waiting tuples times the share of R that the read brings.
    """
    counts = found.record["counts"]
    served = counts["appended"] / max(1, counts["reads"])
    return float(served * workload.rows / (workload.tuples_of(pages) * _waiting(found)))


def _reading(pages: float, c: Constants) -> float:
    return c.seek_seconds + pages * c.transfer_seconds


def _served(c: Constants) -> float:
    """Return the seconds to read a tuple, add it, emit its result and remove it: c_S, c_A, c_O and c_E."""
    return 1e-9 * (c.admit + c.append + c.emit + c.evict)


def hybrid_formula(point: Point, found: Found, c: Constants) -> float:
    """HYBRIDJOIN, Eq. 2 to 4."""
    pages = float(found.record["options"]["partition_pages"])
    rows = point.workload.tuples_of(pages)
    matched = KAPPA * _waiting(found) * rows / point.workload.rows
    return matched / (_reading(pages, c) + 1e-9 * rows * c.probe + matched * _served(c))


def mesh_formula(point: Point, found: Found, c: Constants) -> float:
    """MESHJOIN, as in its own paper: a tuple is matched with each partition of R, and leaves after the last."""
    parts = float(found.record["options"]["partitions"])
    rows = point.workload.rows / parts
    matched = _waiting(found) / parts
    pages = rows / point.workload.tuples_of(1.0)
    return matched / (_reading(pages, c) + 1e-9 * rows * c.probe + matched * _served(c))


def index_formula(_: Point, __: Found, c: Constants) -> float:
    """INLJ: one page is read and searched per tuple."""
    return 1.0 / (_reading(1.0, c) + 1e-9 * (c.admit + c.probe + c.emit))


def formula_gains(
    outcome: Outcome, prices: MachinePrices, first: tuple[str, Formula], second: tuple[str, Formula]
) -> list[tuple[float, float]]:
    """Return each x position and the ratio of two lines that the papers' formulas give, with a machine's prices."""
    own = load_constants(DEFAULT)
    own = dataclasses.replace(slower(own, prices.processor), seek_seconds=own.seek_seconds * prices.seek)
    points = {(sample.series, sample.x): sample.point for sample, _ in outcome.measured()}
    return [
        (x, first[1](points[first[0], x], a, own) / second[1](points[second[0], x], b, own))
        for x, a, b in outcome.pairs(first[0], second[0])
    ]


def within_formulas(within: float, formula: Formula, series: str) -> Judge:
    """Judge that a paper's formulas agree with the measurement, as `model_within` judges our models."""

    def judge(outcome: Outcome) -> Verdict:
        outcome = outcome.compiled  # the formulas get the same prices
        worst, text = -1.0, ""
        for sample, found in outcome.measured():
            if sample.series != series:
                continue
            known = found.record.get("environment", {}).get("constants")
            simulated = dataclasses.replace(load_constants(DEFAULT), seek_seconds=sample.point.seek_seconds)
            c = Constants(**known) if known and outcome.real else simulated
            model = formula(sample.point, found, c)
            apart = found.y / model - 1.0
            beyond = abs(apart) - min(found.interval / model, within)
            if beyond > worst:
                worst, text = beyond, f"{apart:+.1%} ± {found.interval / model:.1%} at most, at {found.x:g}"
        if not text:
            return Verdict(False, "nothing measured", "no point of this join")
        reason = (
            "The formulas assume that a read serves tuples in proportion to the part of R that it brings, with one "
            "constant for all settings."
        )
        return Verdict(worst <= within, text, "" if worst <= within else reason)

    return judge


def derivative_optimum(outcome: Outcome) -> Verdict:
    """Judge that the best measured cache is next to the root of the model's derivative (§3.2)."""
    line = outcome.line("CMESHJOIN", outcome.facets()[0])
    best = max(line, key=lambda found: found.y)
    point = outcome.experiment.samples[0].point
    law = FrontStageGain(point.workload.rows, point.memory, point.workload.exponent, point.workload.row_bytes)
    root = 100 * law.best()[1]
    places = [found.x for found in line]
    at = places.index(best.x)
    inside = 0 < at < len(places) - 1 and places[at - 1] <= root <= places[at + 1]
    return Verdict(
        inside,
        f"best measured at {best.x:g} % of memory, root of the derivative at {root:.0f} %",
        "" if inside else "cached tuples have a different size in bytes here than in the paper",
    )


def close_match(outcome: Outcome) -> Verdict:
    """Judge that the rate depends on the size of the cache as the paper's model says, within 5 % (§3.2).

    The model gives the rate relative to MESHJOIN's, not the rate itself. So the median ratio of measurement to model
    is the unit. A cache of more than half of the memory leaves little for MESHJOIN: it is reported but not judged.
    """
    worst, text, beside, facet = -1.0, "", "", outcome.facets()[0]  # the paper's R; the other is a small one
    point = outcome.experiment.samples[0].point
    law = FrontStageGain(point.workload.rows, point.memory, point.workload.exponent, point.workload.row_bytes)
    ratios = [(found.y / law.at(found.x / 100.0), found) for found in outcome.line("CMESHJOIN", facet)]
    middle = statistics.median(ratio for ratio, _ in ratios)
    for ratio, found in ratios:
        apart, noise = ratio / middle - 1.0, found.interval / found.y
        if found.x > 50.0:
            beside += f"; {apart:+.1%} at {found.x:g} %"
        elif abs(apart) - min(noise, 0.05) > worst:
            worst = abs(apart) - min(noise, 0.05)
            text = f"{apart:+.1%} ± {noise:.1%} at most, at {found.x:g} % of the memory"
    reason = (
        "The model assumes that MESHJOIN's rate is proportional to the memory that the cache leaves. The disk buffer "
        "takes a part of that memory which does not become smaller."
    )
    return Verdict(worst <= 0.05, text + beside, "" if worst <= 0.05 else reason)
