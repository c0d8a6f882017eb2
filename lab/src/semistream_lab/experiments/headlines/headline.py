"""A headline: one main result of a paper, and the ratios or rates that were measured for it in each setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semistream.core.units import format_count
from semistream_lab.experiments.experiment import Cause
from semistream_lab.experiments.judge.outcome import Found, Outcome

__all__ = ["Headline", "Lines", "Row", "row_of"]

Outcomes = Mapping[str, Outcome]

_LEAST = 0.95
"""Tolerance of orders: a ratio of at least this does not contradict an order."""
_MORE = 1.05
"""At least one ratio must reach this: a tie everywhere is not an order."""
_MET = 0.9
"""Share of a published rate that counts as reached."""


@dataclass(frozen=True)
class Lines:
    """Two lines of an experiment whose ratio is taken, or one line whose rate is taken.

    Parameters
    ----------
    experiment
        Its id.
    first, second
        The lines. Without ``second`` the rate of ``first`` is taken.
    at
        The x positions; empty for all that were measured.
    facet
        The panel; None for all panels.
    """

    experiment: str
    first: str
    second: str = ""
    at: tuple[float, ...] = ()
    facet: str | None = None
    record: str = ""
    """Name of the number in the raw results; empty for the one that is drawn."""

    def values(self, outcome: Outcome) -> list[float]:
        """Return the ratios or rates that were measured."""
        if self.first in outcome.aside:
            return [float(outcome.aside[self.first][self.record])]
        facets = outcome.facets() if self.facet is None else [self.facet]
        return [value for facet in facets for x, value in self._in(outcome, facet) if not self.at or x in self.at]

    def _in(self, outcome: Outcome, facet: str) -> list[tuple[float, float]]:
        if self.second:
            return [(x, a.y / b.y) for x, a, b in outcome.pairs(self.first, self.second, facet)]
        line: list[Found] = outcome.line(self.first, facet)
        return [(found.x, float(found.record[self.record]) if self.record else found.y) for found in line]


@dataclass(frozen=True, kw_only=True)
class Headline:
    """A main result of a paper.

    Parameters
    ----------
    id, paper, text, published
        The result in a few words, and the figure or the words of the paper.
    as_published, equal, tuned, today, adaptive
        What is measured in each setting: the paper's conditions; equal bytes in compiled code, None for the same lines
        with compiled code's prices; tuned; on today's disk; adaptivejoin relative to the paper's join, both tuned.
    rate
        The published rate, if the headline is a rate and not a ratio.
    cause, why
        If it does not reproduce: the cause, and a function that derives the reason from the measurements.
    """

    id: str
    paper: str
    text: str
    published: str
    as_published: tuple[Lines, ...]
    equal: tuple[Lines, ...] | None = None
    tuned: tuple[Lines, ...] = ()
    today: tuple[Lines, ...] = ()
    adaptive: tuple[Lines, ...] = ()
    rate: float = 0.0
    cause: Cause | None = None
    why: Callable[[Outcomes], str] | None = None


@dataclass(frozen=True)
class Row:
    """A headline and what was measured for it; None where nothing was measured."""

    headline: Headline
    as_published: str | None
    equal: str | None
    tuned: str | None
    today: str | None
    adaptive: str | None
    reproduces: bool | None
    why: str = ""
    """The reason if it does not reproduce."""

    @property
    def cause(self) -> Cause | None:
        """Why it does not reproduce; None if it does, or was not measured."""
        return self.headline.cause if self.reproduces is False else None

    def as_json(self) -> dict[str, Any]:
        """Return the row for a JSON report."""
        return {
            "text": self.headline.text, "paper": self.headline.paper, "published": self.headline.published,
            "as_published": self.as_published, "equal_bytes": self.equal, "tuned": self.tuned,
            "today": self.today, "adaptivejoin": self.adaptive, "reproduces": self.reproduces, "cause": self.cause,
        }  # fmt: skip


def row_of(headline: Headline, outcomes: Outcomes, today: Outcomes) -> Row:
    """Return the row of a headline, from the outcomes of a simulated run and of a run on today's disk."""
    compiled = {name: outcome.compiled for name, outcome in outcomes.items()}
    first = _values(headline.as_published, outcomes)
    equal = _values(headline.as_published if headline.equal is None else headline.equal, compiled)
    reproduces = _reproduces(first, headline) if first else None
    return Row(
        headline, _text(first, headline), _text(equal, headline), _text(_values(headline.tuned, outcomes), headline),
        _text(_values(headline.today, today), headline), _text(_values(headline.adaptive, outcomes), None),
        reproduces, headline.why(outcomes) if headline.why and reproduces is False else "",
    )  # fmt: skip


def _values(lines: Sequence[Lines], outcomes: Outcomes) -> list[float]:
    return [value for one in lines if one.experiment in outcomes for value in one.values(outcomes[one.experiment])]


def _reproduces(values: list[float], headline: Headline) -> bool:
    """Return whether the direction is the published one, or the published rate is reached."""
    if headline.rate:
        return max(values) >= _MET * headline.rate
    return min(values) >= _LEAST and max(values) > _MORE


def _text(values: list[float], headline: Headline | None) -> str | None:
    """Return the range of ratios or rates as text.

    >>> _text([1.234, 3.0], None), _text([250.4, 1500.0], None), _text([], None)
    ('1.23–3.00×', '250 to > 1000×', None)
    """
    if not values:
        return None
    low, high = min(values), max(values)
    if headline is not None and headline.rate:
        return f"{format_count(high)}/s"
    if high > 1000:
        return f"{low:.0f} to > 1000×" if low <= 1000 else "> 1000×"
    if low >= 100:
        return f"{low:.0f}–{high:.0f}×"
    least, most = f"{low:.2f}", f"{high:.2f}"
    return f"{least}×" if least == most else f"{least}–{most}×"
