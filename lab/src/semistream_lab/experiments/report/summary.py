"""A summary in ten lines for readers of the papers: what reproduces, what does not, what cannot be right.

Counts, figures and lists are computed from the verdicts; only the words around them are written here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from semistream_lab.experiments.experiment import Claim
from semistream_lab.experiments.judge.model_agreement import agreement
from semistream_lab.experiments.judge.verdicts import Judged
from semistream_lab.experiments.papers.settings import AS_PUBLISHED
from semistream_lab.experiments.spec import Verdict

__all__ = ["counted", "summary"]

Row = tuple[str, Claim, Verdict]
"""An experiment's id, a claim that counts, its verdict."""

_MOST_LETTERS = 60


def counted(judged: Iterable[Judged]) -> list[Row]:
    """Return the claims that count, with their verdicts."""
    return [(one.experiment.id, claim, verdict) for one in judged for claim, verdict in one.verdicts if claim.counted]


def summary(judged: Sequence[Judged]) -> list[str]:
    """Return the lines: ten if there are results of all five papers, none if nothing was judged.

    The line on figures that cannot be right is left out for a real device: its sizes and disk are not the papers'.
    """
    rows = counted(judged)
    if not rows:
        return []
    hold, fail = [row for row in rows if row[2].holds], [row for row in rows if not row[2].holds]
    whole = [one.experiment.id for one in judged if one.status == "holds"]
    of_papers = groupby((one for one in judged if one.verdicts), key=lambda one: one.experiment.paper)
    return [
        f"Of {len(rows)} claims {len(hold)} hold as published and {len(fail)} do not{_causes(fail)}.",
        f"Every claim holds for: {_list(whole)}.",
        *(_paper(name, found) for name, group in of_papers if (found := counted(group))),
        *([] if any(one.outcome.real for one in judged) else [_impossible(fail)]),
        _tuning(rows),
        _models(judged),
    ]


def _causes(rows: Sequence[Row]) -> str:
    """Return how many failures have which cause."""
    counts = Counter(verdict.cause for _, _, verdict in rows if verdict.cause)
    named = {"paper": "the paper", "price": "the prices of its machine", "ours": "ours"}
    found = [f"{counts[cause]} {words}" for cause, words in named.items() if counts[cause]]
    return f" (causes: {', '.join(found)})" if found else ""


def _paper(name: str, rows: Sequence[Row]) -> str:
    """Return how many claims of a paper hold, and the failed ones with what was measured instead."""
    failed = [
        f"{where}: {claim.text.rstrip('.')} ({_short(verdict.measured)})"
        for where, claim, verdict in rows if not verdict.holds
    ]  # fmt: skip
    text = f"{name}: {len(rows) - len(failed)} of {len(rows)} hold."
    return f"{text} Failed: {'; '.join(failed)}." if failed else text


def _short(measured: str) -> str:
    """Return the beginning of what was measured.

    >>> _short("not met at 1 of 3 places; A, as published : B, as published 0.98 at 0.5; 3 times")
    'A : B 0.98 at 0.5'
    """
    parts = [part.strip() for part in measured.replace(AS_PUBLISHED, "").split(";")]
    first = next((part for part in parts if not part.startswith("not met at")), parts[0])
    first = first.split(" (")[0]
    return first if len(first) <= _MOST_LETTERS else f"{first[:_MOST_LETTERS].rsplit(' ', 1)[0]} …"


def _impossible(rows: Sequence[Row]) -> str:
    """Return the failed claims whose figure cannot be right, with the reasons, each given once."""
    where: dict[str, list[str]] = {}
    for name, claim, _ in rows:
        if claim.impossible:
            figure = any(character.isdigit() for character in claim.published)
            said = claim.published if figure else claim.text.rstrip(".")
            where.setdefault(claim.impossible, []).append(f"{said} ({name})")
    found = "; ".join(f"{', '.join(names)}, since {why}" for why, names in where.items()) or "nothing"
    return f"Cannot be right, by the papers' own models or by arithmetic: {found}."


def _tuning(rows: Sequence[Row]) -> str:
    both = [(name, verdict) for name, claim, verdict in rows if verdict.tuned is not None and claim.second == "tuned"]
    gained = [name for name, verdict in both if verdict.tuned and verdict.tuned.holds and not verdict.holds]
    lost = [name for name, verdict in both if verdict.tuned and not verdict.tuned.holds and verdict.holds]
    return (
        f"Tuning every join changes {len(gained) + len(lost)} of the {len(both)} verdicts with both settings. Only "
        f"tuned these hold: {_list(gained)}; only as published: {_list(lost)}."
    )


def _list(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "none"


def _models(judged: Sequence[Judged]) -> str:
    rows = agreement(judged)
    if not rows:
        return "No cost model was compared with a measurement."
    worst = max(rows, key=lambda row: row.worst)
    near = sum(row.worst <= 0.05 for row in rows)
    swept = [row.over_memory for row in rows if row.over_memory is not None]
    over = f"; in the sweeps of memory they are off by {max(swept):.1%} at most" if swept else ""
    without = [one.experiment.id for one in judged if one.verdicts and _is_rate(one) and not one.experiment.modelled]
    return (
        f"Our cost models are within 5 % of every measurement for {near} of {len(rows)} joins{over}; the furthest is "
        f"{worst.algorithm} with {worst.worst:.1%} ({worst.where}). Not compared, because no model describes their "
        f"stream or what is counted: {_list(without)}."
    )


def _is_rate(one: Judged) -> bool:
    return one.experiment.metric in ("rate", "counting")
