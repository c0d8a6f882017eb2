"""Finds the options of a join with the highest rate by its cost model.

Coordinate ascent: one option after the other is set to its best value while the others are fixed, until nothing
changes. Then finer steps around the optimum are tried. Models have few options, and most have one maximum. So this
needs some hundred evaluations, where the full grid needs thousands; a test compares the two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from semistream.core.errors import BudgetTooSmallError
from semistream.costs import Costs, Prediction, Setting

__all__ = ["best_of_grid", "best_split"]

_ROUNDS = 4
_REFINEMENTS = 3


def best_split(costs: Costs, setting: Setting, memory: int, *, fixed: Mapping[str, Any] | None = None) -> Prediction:
    """Return the best prediction of a model over its tunable options.

    The prediction contains only these options.

    Parameters
    ----------
    fixed
        Given options, which are not tuned.

    Raises
    ------
    BudgetTooSmallError
        If the budget is too small for every split.
    """
    given = dict(fixed or {})
    lacking: list[BudgetTooSmallError] = []
    known: dict[tuple[tuple[str, Any], ...], float] = {}

    def rate(options: Mapping[str, Any]) -> float:
        key = tuple(sorted(options.items()))
        if key not in known:
            try:
                known[key] = costs.quick(setting, memory, **options, **given).rate
            except BudgetTooSmallError as error:
                lacking.append(error)
                known[key] = 0.0
        return known[key]

    choices = {name: values for name, values in costs.choices(setting, memory).items() if name not in given and values}
    starts = [
        {name: values[int(share * (len(values) - 1))] for name, values in choices.items()} for share in (0.0, 0.5)
    ]
    best = max((_ascend(start, choices, rate) for start in starts), key=rate)
    steps = dict(choices)
    for _ in range(_REFINEMENTS):
        steps = {name: _finer(values, best[name]) for name, values in steps.items()}
        best = _ascend(best, steps, rate)
    if rate(best) <= 0.0:
        raise min(lacking, key=lambda error: error.minimum)
    found = _polished(costs, setting, memory, best, given)
    told = {**best, **given}
    return dataclasses.replace(found, options={name: found.options.get(name, told[name]) for name in told})


def best_of_grid(costs: Costs, setting: Setting, memory: int, *, fixed: Mapping[str, Any] | None = None) -> Prediction:
    """Return the best prediction over the whole grid of a model's choices; slow but certain, for tests."""
    best: Prediction | None = None
    given = dict(fixed or {})
    lacking: BudgetTooSmallError | None = None
    for options in costs.grid(setting, memory):
        try:
            found = costs.predict(setting, memory, **{**options, **given})
        except BudgetTooSmallError as error:
            lacking = error
            continue
        if best is None or found.rate > best.rate:
            best = found
    if best is None:
        assert lacking is not None
        raise lacking
    return best


def _ascend(
    start: dict[str, Any], choices: Mapping[str, list[Any]], rate: Callable[[Mapping[str, Any]], float]
) -> dict[str, Any]:
    best = dict(start)
    for _ in range(_ROUNDS):
        before = dict(best)
        for name, values in choices.items():
            best[name] = max([best[name], *values], key=lambda value: rate({**best, name: value}))
        if best == before:
            break
    return best


def _finer(values: list[Any], chosen: Any) -> list[Any]:
    """Return values between the chosen one and its neighbours."""
    if not isinstance(chosen, int | float) or isinstance(chosen, bool):
        return [chosen]
    numbers = sorted(value for value in values if value is not None)
    below = [value for value in numbers if value < chosen]
    above = [value for value in numbers if value > chosen]
    near = []
    for other in (*below[-1:], *above[:1]):
        middle = (other * chosen) ** 0.5 if min(other, chosen) > 0 else (other + chosen) / 2
        near.append(round(middle) if isinstance(chosen, int) else middle)
    return sorted({*near, chosen, *below[-1:], *above[:1]})


def _polished(
    costs: Costs, setting: Setting, memory: int, best: dict[str, Any], given: Mapping[str, Any]
) -> Prediction:
    """Return the full prediction; if the quick one is only an approximation, also try cache sizes around it."""
    tried = [costs.predict(setting, memory, **best, **given)]
    if "cache_share" in best:
        for factor in (0.85, 1.15):
            share = min(best["cache_share"] * factor, 0.95)
            try:
                tried.append(costs.predict(setting, memory, **{**best, "cache_share": share}, **given))
            except BudgetTooSmallError:
                continue
    return max(tried, key=lambda found: found.rate)
