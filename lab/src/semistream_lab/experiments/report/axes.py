"""Axes and scales of charts as Vega-Lite specifications."""

from __future__ import annotations

import math
from typing import Any

from semistream_lab.experiments.spec import Axis

__all__ = ["axis_of", "x_scale", "y_scale"]

Spec = dict[str, Any]

_MOST_RANGE = 1e8
"""Largest ratio of both ends of a logarithmic axis; what is smaller is drawn at the lower end."""


def y_scale(axis: Axis, rows: list[Spec]) -> Spec:
    """Return a scale with room for all points, their intervals and the model."""
    values = [row[name] for row in rows for name in ("y", "high", "model") if row[name] is not None]
    low, high = min(row["y"] for row in rows), max(values)
    if axis.log:
        least = max(min(value for value in values if value > 0), high / _MOST_RANGE)
        return {"type": "log", "domain": [least * 0.7, high * 1.4], "clamp": True}
    # a percentage axis ends at 100 %
    top = min(high * 1.05, 1.0) if axis.format.endswith("%") and high <= 1.0 else high * 1.05
    return {"domain": [0 if axis.zero else low * 0.95, top or 1.0], "nice": True}


def axis_of(axis: Axis, places: list[float] | None = None, domain: list[float] | None = None) -> Spec:
    """Return an axis with labels at ``places``, or for a logarithmic axis at round numbers of ``domain``."""
    # format each label separately: a common format for all ticks would write 0 as 0k and 150 as 1.5e+2
    spec: Spec = {"title": axis.title, "labelExpr": f"format(datum.value, '{axis.format}')"}
    if places is not None and len(places) <= 12:
        spec["values"] = places
        spec["labelOverlap"] = "greedy"
    elif axis.log and domain is not None:
        spec["values"] = _log_ticks(*domain)
        spec["labelOverlap"] = "greedy"
    return spec


def _log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten between two values; only powers if the range is four decades or more.

    >>> _log_ticks(300, 7000)
    [500.0, 1000.0, 2000.0, 5000.0]
    """
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    digits = (1, 2, 5) if high / low < 1e4 else (1,)
    return [digit * power for power in powers for digit in digits if low <= digit * power <= high]


def x_scale(axis: Axis, rows: list[Spec]) -> Spec:
    """Return a scale with a little room on both sides."""
    low, high = min(row["x"] for row in rows), max(row["x"] for row in rows)
    if axis.log:
        room = (high / low) ** 0.03 if high > low else 2.0
        return {"type": "log", "domain": [low / room, high * room], "nice": False}
    room = (high - low) * 0.03 or 1.0
    # a little room on both sides, so that no point sits on the frame
    return {"domain": [min(low - room, 0.0) if low == 0 else low - room, high + room], "nice": False, "zero": False}
