"""What a case of a claim is made of: results that contradict its sentence, and results that agree with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

C, M, H, X, R = "CMESHJOIN", "MESHJOIN", "HYBRIDJOIN", "X-HYBRIDJOIN", "R-MESHJOIN"
P, OP, CA = "P-CACHEJOIN", "OP-CACHEJOIN", "CACHEJOIN"
Value = float | Callable[[float], float]


@dataclass(frozen=True)
class Found:
    """Results: what each line has, everywhere or by its place.

    Lines are named as in the experiment, or without their setting; all others are at 1. ``apart`` is what the measured
    number is of the model's.
    """

    lines: dict[str, Value] = field(default_factory=dict)
    apart: float | None = None
    records: Mapping[str, dict[str, Any] | Callable[[float], dict[str, Any]]] = field(default_factory=dict)
    facets: dict[str, dict[str, Value]] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """What contradicts a claim, and what agrees with it."""

    claim: str
    """How its text begins."""
    contrary: tuple[Found, ...]
    agreeing: Found


def case(claim: str, *contrary: Found | dict[str, Value], agreeing: Found | dict[str, Value]) -> Case:
    made = [one if isinstance(one, Found) else Found(one) for one in (*contrary, agreeing)]
    return Case(claim, tuple(made[:-1]), made[-1])


def order(claim: str, first: str, *others: str) -> Case:
    """One line above others: it is below one of them, it is equal to all."""
    above = {first: 2.0, **dict.fromkeys(others, 1.0)}
    return case(claim, {first: 0.9, others[-1]: 1.0}, {**above, others[0]: 2.0}, {}, agreeing=above)


def times(claim: str, first: str, second: str, published: float, **other: Any) -> Case:
    """About so many times: less and more contradict it."""
    return case(
        claim, Found({first: 0.8 * published}, **other), Found({first: 1.2 * published}, **other),
        agreeing=Found({first: published}, **other),
    )  # fmt: skip


def model(claim: str, within: float) -> Case:
    """Too slow and too fast both contradict a model."""
    return case(
        claim,
        Found(apart=1 + 2.5 * within),
        Found(apart=1 - 2.5 * within),
        Found(),
        agreeing=Found(apart=1 + within / 2),
    )


def hill(claim: str, line: str, top: float) -> Case:
    return case(claim, {line: lambda x: x + 1}, {line: lambda x: 1 / (x + 1)}, {}, agreeing={line: peak(top)})


def peak(top: float) -> Callable[[float], float]:
    return lambda x: 10.0 - abs(x - top) / (x + top + 1)


def up(x: float) -> float:
    return 1.0 + x


def down(x: float) -> float:
    return 100.0 / (1.0 + x)
