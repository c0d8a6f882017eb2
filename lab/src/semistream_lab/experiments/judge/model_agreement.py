"""How close the cost models are to the measurements, per join, over all points of a run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from semistream_lab.experiments.judge.verdicts import Judged

__all__ = ["AGREEMENT", "Agreement", "agreement"]

AGREEMENT = ("join", "points", "half of them within", "over memory within", "all within", "interval there", "furthest")
"""Column titles of the table."""


@dataclass(frozen=True)
class Agreement:
    """One join's measurements against its model."""

    algorithm: str
    points: int
    median: float
    """Median relative distance of the measured rate from the model's."""
    worst: float
    """Largest relative distance."""
    where: str
    """The experiment and the point with the largest distance."""
    interval: float
    """Half of the 95 % confidence interval at that point, relative to the measured rate."""
    over_memory: float | None = None
    """Largest relative distance among the points of memory sweeps; None if there are none."""

    def cells(self) -> list[str]:
        """Return the cells of the table row."""
        memory = "" if self.over_memory is None else f"{self.over_memory:.1%}"
        return [self.algorithm, str(self.points), f"{self.median:.1%}", memory, f"{self.worst:.1%}",
                f"± {self.interval:.1%}", self.where]  # fmt: skip


def agreement(judged: Iterable[Judged]) -> list[Agreement]:
    """Return how each join agrees with its model; every point is counted once."""
    seen: set[str] = set()
    apart: dict[str, list[tuple[float, str, float]]] = {}
    by_memory: dict[str, float] = {}
    for one in judged:
        outcome = one.outcome.compiled
        if outcome.experiment.metric not in ("rate", "counting") or not outcome.experiment.modelled:
            continue
        for sample, found in outcome.measured():
            name, join = sample.point.digest(), sample.point.algorithm
            if found.model and not sample.metric and outcome.experiment.x.title.startswith("memory"):
                by_memory[join] = max(by_memory.get(join, 0.0), abs(found.y / found.model - 1))
            if found.model and not sample.metric and name not in seen:
                seen.add(name)
                place = f"{outcome.experiment.id}: {sample.series}, {outcome.experiment.x.title} {sample.x:g}"
                apart.setdefault(join, []).append(
                    (abs(found.y / found.model - 1), place, found.interval / found.y if found.y else 0.0)
                )
    rows = []
    for algorithm, distances in sorted(apart.items()):
        worst = max(distances)
        median = statistics.median(one[0] for one in distances)
        rows.append(Agreement(algorithm, len(distances), median, *worst, by_memory.get(algorithm)))
    return rows
