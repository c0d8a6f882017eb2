"""The three settings of every comparison.

*As published*: the paper's way of measuring, its parameters, its contestants as their authors ran them, and the prices
of its machine. Claims are judged in this setting. *Equal bytes*: the same bytes per tuple for all contestants, in
compiled code. *Tuned*: our own bytes, and the options that the cost model finds best for each join.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from semistream_lab.experiments.spec import Point, Sample

__all__ = [
    "AS_PUBLISHED", "EQUAL", "TUNED", "as_published", "both_settings", "few_tuned", "published", "tuned",
    "with_more_seeds",
]  # fmt: skip

AS_PUBLISHED = ", as published"
EQUAL = ", equal bytes"
TUNED = ", tuned"


def published(*names: str) -> tuple[str, ...]:
    """Return the names of the lines of joins as published.

    >>> published("MESHJOIN")
    ('MESHJOIN, as published',)
    """
    return tuple(name + AS_PUBLISHED for name in names)


def tuned(*names: str) -> tuple[str, ...]:
    """Return the names of the lines of tuned joins."""
    return tuple(name + TUNED for name in names)


def both_settings(judge: Callable[..., Any], *names: str, **options: Any) -> dict[str, Any]:
    """Return ``judge`` and ``tuned`` of a claim: the same judge for the lines of both settings."""
    return {"judge": judge(*published(*names), **options), "tuned": judge(*tuned(*names), **options)}


def few_tuned(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """Leave tuned joins out at every second x position: they take most of the time, and no claim depends on them."""
    kept = list(samples)
    places = sorted({sample.x for sample in kept})
    if len(places) < 3:
        return tuple(kept)
    return tuple(sample for sample in kept if TUNED not in sample.series or places.index(sample.x) % 2 == 0)


def as_published(point: Point, node: int, **options: Any) -> Point:
    """Return a point whose join holds as many tuples as the papers' formulas say.

    A waiting tuple takes eight times its own bytes in the hash table and ``node`` bytes in the queue. A cached tuple
    takes eight bytes more than its own.
    """
    workload = point.workload
    given = {"waiting": 8.0 * workload.stream_bytes + node, "cached": workload.row_bytes + 8.0}
    return dataclasses.replace(
        point, options={**point.options, **options}, settings={**point.settings, "bytes": given}, tuned=False
    )


MORE_SEEDS = (2, 3)
"""Seeds of streams that are measured in addition to the first, where the intervals of one run decide a verdict."""


def with_more_seeds(samples: Iterable[Sample], x: float) -> tuple[Sample, ...]:
    """Add samples as published at one x position, with other seeds."""
    kept = tuple(samples)
    again = [
        dataclasses.replace(sample, point=_of_seed(sample.point, seed))
        for seed in MORE_SEEDS for sample in kept if sample.x == x and TUNED not in sample.series
    ]  # fmt: skip
    return (*kept, *again)


def _of_seed(point: Point, seed: int) -> Point:
    return dataclasses.replace(point, workload=dataclasses.replace(point.workload, seed=seed))
