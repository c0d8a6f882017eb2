"""What a reader of the papers wants first, in ten lines: what reproduces, what does not, what cannot be right.

Counts, figures and lists follow from the verdicts; only the words around them are written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from semistream.experiments.experiment import Claim
from semistream.experiments.judge.model_agreement import agreement
from semistream.experiments.judge.verdicts import Judged
from semistream.experiments.spec import Verdict

__all__ = ["counted", "summary"]

Row = tuple[str, Claim, Verdict]
"""An experiment's id, a claim that counts, its verdict."""

_MOST_NAMED = 9


def counted(judged: Iterable[Judged]) -> list[Row]:
    """Return the claims that count, with their verdicts."""
    return [(one.experiment.id, claim, verdict) for one in judged for claim, verdict in one.verdicts if claim.counted]


def summary(judged: Sequence[Judged]) -> list[str]:
    """Return the lines; none if nothing was judged."""
    rows = counted(judged)
    if not rows:
        return []
    hold, fail = [row for row in rows if row[2].holds], [row for row in rows if not row[2].holds]
    papers = [
        f"{paper} {sum(verdict.holds for _, _, verdict in of)} of {len(of)}"
        for paper, group in groupby(judged, key=lambda one: one.experiment.paper) if (of := counted(group))
    ]  # fmt: skip
    lines = [
        f"Of {len(rows)} claims {len(hold)} hold as published and {len(fail)} do not: {', '.join(papers)}.",
        f"Orders that hold: {_named(hold, _is_order)}.",
        f"Orders that do not: {_named(fail, _is_order)}.",
        f"Published factors and figures that are met within a tenth: {_figures(hold)}.",
        f"Those that are not: {_figures(fail)}.",
        f"Shapes that hold (optima, rises and falls, models): {_named(hold, _is_shape)}.",
        f"Shapes that do not: {_named(fail, _is_shape)}.",
        f"Cannot be right, by the papers' own models or by arithmetic: {_impossible(fail)}.",
        _tuning(rows),
        _models(judged),
    ]
    return lines


def _is_figure(claim: Claim) -> bool:
    return any(character.isdigit() for character in claim.published)


def _is_order(claim: Claim) -> bool:
    return not _is_figure(claim) and (" above " in claim.text or " below " in claim.text or " less than " in claim.text)


def _is_shape(claim: Claim) -> bool:
    return not _is_figure(claim) and not _is_order(claim)


def _named(rows: Sequence[Row], kind: object) -> str:
    """Return which claims of a kind there are, by the sentence, with the experiments where it was judged."""
    assert callable(kind)
    where: dict[str, list[str]] = {}
    for name, claim, _ in rows:
        if kind(claim):
            where.setdefault(claim.text.rstrip("."), []).append(name)
    if not where:
        return "none"
    named = [f"{text} ({', '.join(names)})" for text, names in where.items()]
    more = f"; and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return "; ".join(named[:_MOST_NAMED]) + more


def _figures(rows: Sequence[Row]) -> str:
    found = [
        f"{claim.published} ({name}: {verdict.measured.split(';')[0].split(' (')[0]})"
        for name, claim, verdict in rows if _is_figure(claim)
    ]  # fmt: skip
    return "; ".join(found) or "none"


def _impossible(rows: Sequence[Row]) -> str:
    """Return failed claims whose figure contradicts something, and what; each reason once."""
    where: dict[str, list[str]] = {}
    for name, claim, _ in rows:
        if claim.impossible:
            where.setdefault(claim.impossible, []).append(f"{claim.published} in {name}")
    return "; ".join(f"{', '.join(names)}, since {why}" for why, names in where.items()) or "nothing"


def _tuning(rows: Sequence[Row]) -> str:
    both = [(name, verdict) for name, _, verdict in rows if verdict.tuned is not None]
    gained = [name for name, verdict in both if verdict.tuned and verdict.tuned.holds and not verdict.holds]
    lost = [name for name, verdict in both if verdict.tuned and not verdict.tuned.holds and verdict.holds]
    return (
        f"Tuning every join changes {len(gained) + len(lost)} of the {len(both)} verdicts that have both settings: "
        f"{_list(gained)} hold only tuned, {_list(lost)} only as published."
    )


def _list(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "none"


def _models(judged: Sequence[Judged]) -> str:
    rows = agreement(judged)
    if not rows:
        return "No cost model was compared with a measurement."
    worst = max(rows, key=lambda row: row.worst)
    near = sum(row.worst <= 0.05 for row in rows)
    return (
        f"Our cost models are within 5 % of every measurement for {near} of {len(rows)} joins; furthest is "
        f"{worst.algorithm} with {worst.worst:.1%} ({worst.where})."
    )
