"""Measured rates of a join compared with all others, as a figure of its page, drawn from the raw results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["plots"]

DOCS = Path(__file__).parents[1]
WIDTH, LEFT, LONGEST, STEP = 640, 150, 380, 19


class Run(NamedTuple):
    """Rates that were measured in one run."""

    told: str
    rates: dict[str, float]
    hits: dict[str, float]


def _runs() -> list[Run]:
    found = []
    for name, where in (("random", "frequent keys anywhere in R"), ("noperm", "frequent keys together in R")):
        raw = _read(f"service-rates-{name}.json")
        hits = {join: one["hit_ratio"] for join, one in raw["joins"].items()}
        found.append(Run(f"All joins of one run, {where}; {raw['when'][:10]}", raw["rates"], hits))
    raw = _read("peers-100k.json")
    found.append(Run(f"Against alternatives, same memory; {raw['when'][:10]}", raw["points"][0]["rates"], {}))
    return found


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "results" / name).read_text())
    return found


def plots(join: str) -> str:
    """Return the figures of a join as HTML: one per run that it was in, with the join itself coloured."""
    return "\n\n".join(_figure(join, run) for run in _runs() if join in run.rates)


def _rate(rate: float) -> str:
    return f"{rate / 1e6:.2f} M" if rate >= 1e6 else f"{rate / 1e3:.0f} k"


def _figure(join: str, run: Run) -> str:
    ranked = sorted(run.rates.items(), key=lambda item: -item[1])
    most = ranked[0][1]
    place = [name for name, _ in ranked].index(join) + 1
    hits = f", {run.hits[join]:.0%} answered from memory" if run.hits.get(join) else ""
    told = f"{join}: {_rate(run.rates[join])} tuples/s, place {place} of {len(ranked)}{hits}"
    height = STEP * len(ranked) + 12
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{told}" font-family="system-ui, sans-serif">',
    ]
    for number, (name, rate) in enumerate(ranked):
        top, length = 6 + STEP * number, max(2.0, LONGEST * rate / most)
        color, weight = ("#009485", "700") if name == join else ("var(--md-default-fg-color--lighter, #cbd5e1)", "400")
        parts.append(
            f'<text x="{LEFT - 8}" y="{top + 12}" font-size="12" text-anchor="end" font-weight="{weight}" '
            f'fill="currentColor">{name}</text>'
            f'<rect x="{LEFT}" y="{top + 1}" width="{length:.0f}" height="{STEP - 5}" rx="3" fill="{color}"/>'
            f'<text x="{LEFT + length + 6:.0f}" y="{top + 12}" font-size="11.5" font-weight="{weight}" '
            f'fill="currentColor">{_rate(rate)}/s</text>'
        )
    return f"<figure>{''.join(parts)}</svg><figcaption>{run.told}. {told}.</figcaption></figure>"
