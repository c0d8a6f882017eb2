"""Shared by comparisons of SSIJ with MESHJOIN: the metric, the notes of an experiment, and judges."""

from __future__ import annotations

import dataclasses

from semistream_lab.experiments.judge.claims import Judge
from semistream_lab.experiments.judge.outcome import Outcome
from semistream_lab.experiments.papers.cmesh import RATE
from semistream_lab.experiments.papers.ssij.ssij_setups import AUTHORS, LESS
from semistream_lab.experiments.scales import Size
from semistream_lab.experiments.spec import Verdict

__all__ = ["COUNTED", "LOG", "PRICED", "RAISED_UNTIL_FULL", "UNPRICED", "metric", "notes", "with_authors"]

LOG = dataclasses.replace(RATE, log=True, zero=False)
"""The axis of rates."""


UNPRICED = "Results are counted, not materialized, as in all figures with more than 100 results per tuple."
PRICED = (
    "A tuple has 16 results here, and each has the price of compiled code, 120 ns: 480,000 tuples/s in the paper leave "
    "130 ns per result, and nearly nothing else costs time once the cache has learned an interval."
)


def notes(size: Size, *, counted: bool = False) -> str:
    """Return how the comparison is scaled, and that results are counted; ``counted``: also why."""
    return " ".join([LESS] * size.published + [COUNTED if counted else UNPRICED] * size.simulated)


def metric(size: Size) -> str:
    """Return the rate that is compared: with results counted if simulated."""
    return "counting" if size.simulated else "rate"


RAISED_UNTIL_FULL = (
    "As published: arrivals are raised until memory overflows before the stream ends, and MESHJOIN has its authors' "
    "bytes. From 10 % on the whole stream of 20 M tuples would fit."
)
COUNTED = (
    "Results are counted, not materialized. At K = 400 and 9 times MESHJOIN's rate (Figure 7), about 5500 tuples/s in "
    "the paper, there are 20 million results per second. That leaves 50 ns per result, reads included."
)


def with_authors(judge: Judge, series: str) -> Judge:
    """Add to a verdict the ratios to MESHJOIN with its authors' bytes, which holds fewer tuples."""

    def judged(outcome: Outcome) -> Verdict:
        verdict = judge(outcome)
        ratios = [
            first.y / second.y
            for facet in outcome.facets()
            for _, first, second in outcome.pairs(series, AUTHORS, facet)
        ]
        if not ratios:
            return verdict
        text = f"{min(ratios):.2f} to {max(ratios):.2f} times MESHJOIN with its authors' bytes"
        return dataclasses.replace(verdict, measured=f"{verdict.measured}; {text}")

    return judged
