"""How points are measured, by the name of their task: from a `Point` to a record of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from semistream.experiments.running import Run
from semistream.experiments.sources import open_sides
from semistream.experiments.spec import DeviceKind, Point

__all__ = ["interval", "measure", "tasks"]

Record = dict[str, Any]
Task = Callable[[Point, DeviceKind, Path], Record]

# Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)


def interval(values: Sequence[float]) -> float:
    """Return half the width of the 95 % confidence interval of the mean.

    >>> round(interval([10.0, 11.0, 9.0]), 2)
    2.48
    """
    n = len(values)
    if n < 2:
        return 0.0
    mean = sum(values) / n
    variance = sum((value - mean) ** 2 for value in values) / (n - 1)
    return _STUDENT[min(n - 1, len(_STUDENT)) - 1] * math.sqrt(variance / n)


def measure_rate(point: Point, device: DeviceKind, directory: Path) -> Record:
    """Service rate with a stream that is always there."""
    sides = open_sides(point.workload, device, directory, point.seek_seconds)
    with sides.relation:
        run = Run(point, sides)
        warm = run.warm_up()
        windows = list(run.windows())
        rates = [window.rate for window in windows]
        mean = sum(rates) / len(rates)
        done = windows[-1].done
        total = {
            name: sum(getattr(window.done, name) for window in windows)
            for name in (
                "rows_in", "rows_out", "rows_done", "cache_hits", "probes", "appended", "evicted", "recorded",
                "buffered", "pages_read", "reads", "io_seconds",
            )
        }  # fmt: skip
        seconds = sum(window.seconds for window in windows)
        return {
            "rate": mean,
            "interval": interval(rates),
            "windows": rates,
            "seconds": seconds,
            "warm_up_rows": warm,
            "counts": total,
            "hit_ratio": total["cache_hits"] / max(1, total["rows_done"]),
            "io_share": total["io_seconds"] / seconds if seconds else 0.0,
            "model": run.predicted(),
            "options": dict(run.options),
            "memory_parts": run.join.budget.parts(),
            "steps": done.steps,
        }


tasks: dict[str, Task] = {"rate": measure_rate}


def measure(point: Point, device: DeviceKind, directory: Path) -> Record:
    """Measure one point."""
    return tasks[point.task](point, device, directory)
