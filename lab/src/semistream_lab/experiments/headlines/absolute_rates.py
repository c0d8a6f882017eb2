"""Absolute rates that the papers state, and ours: with the prices of the paper's machine and with compiled code's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from semistream.core.units import format_count
from semistream_lab.experiments.headlines.headline import Lines
from semistream_lab.experiments.judge.outcome import Outcome
from semistream_lab.experiments.judge.verdicts import Judged
from semistream_lab.experiments.papers.ssij.ssij_deadlines import SLOW
from semistream_lab.experiments.papers.ssij.ssij_setups import EQUAL_SSIJ, SSIJ

__all__ = ["COLUMNS", "RATES_NOTE", "absolute_rates"]

COLUMNS = ("what", "published", "paper's machine", "compiled code", "the prices were fitted on it")
"""Column titles of the table."""


RATES_NOTE = (
    "The prices of Java with MySQL have three numbers, fitted on INLJ's 150 tuples/s and on HYBRIDJOIN's share of "
    "X-HYBRIDJOIN's rate (70 % at 0.5 M tuples, 50 % at 8 M), and on no other figure. P-CACHEJOIN's rate is not met: "
    "operations 450 times as expensive as compiled code would give it, but then OP-CACHEJOIN could not be faster than "
    "P-CACHEJOIN. Ratios in parentheses are ours relative to the published rate."
)


@dataclass(frozen=True)
class _Stated:
    what: str
    published: float
    lines: Lines
    compiled: Lines | None = None
    """The line of compiled code; None for the same line with other prices."""
    fitted: bool = False
    unit: str = "/s"


_STATED = (
    _Stated("INLJ keeps up with at least (HYBRIDJOIN §6.2.1)", 150.0, Lines("hybrid-10d", "INLJ", at=(50.0,)),
            fitted=True),
    _Stated("P-CACHEJOIN, 100 MB, a buffer of 2 MB (Figure 3)", 13_200.0, Lines("pcache-3", "P-CACHEJOIN", at=(2.0,))),
    _Stated("X-HYBRIDJOIN's pinned part in 4000 reads, 50 MB (Figure 3d)", 0.4e6,
            Lines("xhybrid-3d", "X-HYBRIDJOIN", at=(50.0,)), unit=""),
    _Stated("the same with 250 MB, more than", 2e6, Lines("xhybrid-3d", "X-HYBRIDJOIN", at=(250.0,)), unit=""),
    _Stated("SSIJ with 1 % memory, about or more than (§VI-A)", 3000.0, Lines("ssij-5", SSIJ, at=(1.0,)),
            Lines("ssij-5", EQUAL_SSIJ, at=(1.0,))),
    _Stated("SSIJ with locality, 10 % memory (§VI-D)", 480_000.0,
            Lines("ssij-t3", "dynamic memory", at=(10.0,), record="nominal")),
    _Stated("SSIJ within 10 s (Figure 16)", 550.0, Lines("ssij-16", "SSIJ", at=(10.0,))),
    _Stated("SSIJ within 2 min (Figure 16)", 22_000.0, Lines("ssij-16", "SSIJ", at=(120.0,))),
    _Stated("MESHJOIN, R of 5 GB, 375 MB (Figure 16)", 5500.0, Lines("ssij-16", SLOW, record="counting")),
)  # fmt: skip


def absolute_rates(judged: Iterable[Judged]) -> list[list[str]]:
    """Return the rows of the table, with empty cells where nothing was measured; no rows for a real device."""
    judged = [one for one in judged if not one.outcome.real]
    outcomes = {one.experiment.id: one.outcome for one in judged if one.outcome.measured()}
    rows = []
    for stated in _STATED:
        there = _value(stated.lines, outcomes)
        compiled = _value(stated.compiled or stated.lines, {name: one.compiled for name, one in outcomes.items()})
        if there is not None:
            cells = [_text(stated.published, stated.unit), *(_cell(value, stated) for value in (there, compiled))]
            rows.append([stated.what, *cells, "yes" if stated.fitted else "no"])
    return rows


def _value(lines: Lines, outcomes: Mapping[str, Outcome]) -> float | None:
    found = lines.values(outcomes[lines.experiment]) if lines.experiment in outcomes else []
    return found[0] if found else None


def _cell(value: float | None, stated: _Stated) -> str:
    if value is None:
        return ""
    return f"{_text(value, stated.unit)} ({value / stated.published:.2g}×)"


def _text(value: float, unit: str) -> str:
    return f"{format_count(value)}{unit}"
