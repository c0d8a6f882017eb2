"""What the papers' own formulas give for a point that was measured: MESHJOIN, HYBRIDJOIN and INLJ."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from semistream.costs import Constants, load_constants
from semistream.costs.basis.constants import DEFAULT
from semistream.experiments.judge.claims import Judge
from semistream.experiments.judge.outcome import Found, Outcome
from semistream.experiments.spec import Point, Verdict

__all__ = ["Formula", "hybrid_formula", "index_formula", "mesh_formula", "within_formulas"]

Formula = Callable[[Point, Found, Constants], float]
"""Tuples a second that a paper's formulas give."""

_KAPPA = 1.36
"""What HYBRIDJOIN's paper fits (Eq. 2)."""
_PAGE = 8192


def _waiting(found: Found) -> float:
    """Return the tuples that wait in memory."""
    return float(found.record["memory_parts"]["stream table"] / found.record["waiting_bytes"])


def _reading(pages: float, c: Constants) -> float:
    return c.seek_seconds + pages * c.transfer_seconds


def _served(c: Constants) -> float:
    """Return the seconds of a tuple that comes in, waits, is matched and leaves: c_S, c_A, c_O and c_E."""
    return 1e-9 * (c.admit + c.append + c.emit + c.evict)


def hybrid_formula(point: Point, found: Found, c: Constants) -> float:
    """HYBRIDJOIN, Eq. 2 to 4."""
    pages = float(found.record["options"]["partition_pages"])
    rows = pages * _PAGE / point.workload.row_bytes
    matched = _KAPPA * _waiting(found) * rows / point.workload.rows
    return matched / (_reading(pages, c) + 1e-9 * rows * c.probe + matched * _served(c))


def mesh_formula(point: Point, found: Found, c: Constants) -> float:
    """MESHJOIN, as its own paper has it: a tuple is matched with each of R's partitions, and leaves after the last."""
    parts = float(found.record["options"]["partitions"])
    rows = point.workload.rows / parts
    matched = _waiting(found) / parts
    pages = rows * point.workload.row_bytes / _PAGE
    return matched / (_reading(pages, c) + 1e-9 * rows * c.probe + matched * _served(c))


def index_formula(_: Point, __: Found, c: Constants) -> float:
    """INLJ: a page is read and searched for each tuple."""
    return 1.0 / (_reading(1.0, c) + 1e-9 * (c.admit + c.probe + c.emit))


def within_formulas(within: float, formula: Formula, series: str) -> Judge:
    """Judge that a paper's formulas give what was measured, as `model_within` does ours."""

    def judge(outcome: Outcome) -> Verdict:
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
            "The formulas take what a read serves to be in proportion to the part of R that it brings, by one constant "
            "for all settings."
        )
        return Verdict(worst <= within, text, "" if worst <= within else reason)

    return judge
