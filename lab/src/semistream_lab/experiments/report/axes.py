"""Axes and scales of charts as Vega-Lite specifications."""

from __future__ import annotations

import itertools
import math
from typing import Any

from semistream_lab.experiments.spec import Axis

__all__ = ["at_the_edge", "axis_of", "own_scales", "x_scale", "y_scale"]

Spec = dict[str, Any]

_MOST_RANGE = 1e8
"""Largest ratio of both ends of a logarithmic axis; what is smaller is drawn at the lower end."""

_OWN_SCALES = 4.0
"""Panels have scales of their own if their maxima differ by more than this factor: on a common linear scale, the lowest
panel would be unreadable."""
_LETTER, _GAP = 7.0, 6.0
"""Pixels of a letter of a tick label, and between two labels."""


def at_the_edge(axis: Axis, rows: list[Spec]) -> bool:
    """Return whether points are drawn at the lower end of a logarithmic axis because they are below it."""
    return axis.log and min(row["y"] for row in rows) < y_scale(axis, rows)["domain"][0]


def own_scales(axis: Axis, panels: list[list[Spec]]) -> bool:
    """Return whether each panel needs a scale of its own: with a common one a panel would be a line at the bottom.

    >>> small, large = [{"y": 1.0, "high": 1.0, "model": None}], [{"y": 9.0, "high": 9.0, "model": None}]
    >>> own_scales(Axis("y"), [small, large]), own_scales(Axis("y", log=True), [small, large])
    (True, False)
    """
    tops = [max(row[name] for row in rows for name in ("y", "high", "model") if row[name] is not None)
            for rows in panels]  # fmt: skip
    return not axis.log and max(tops) > _OWN_SCALES * min(tops)


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


def axis_of(
    axis: Axis, places: list[float] | None = None, domain: list[float] | None = None, width: float = math.inf
) -> Spec:
    """Return an axis with labels at ``places``, or for a logarithmic axis at round numbers of ``domain``.

    Labels are slanted if they would overlap on ``width`` pixels.
    """
    # format each label separately: a common format for all ticks would write 0 as 0k and 150 as 1.5e+2
    spec: Spec = {"title": axis.title, "labelExpr": f"format(datum.value, '{axis.format}')"}
    if places is not None and len(places) <= 12:
        spec["values"] = places
        spec["labelOverlap"] = "greedy"
        if domain is not None and _overlap(axis, places, domain, width):
            spec |= {"labelAngle": -60, "labelAlign": "right", "labelBaseline": "top", "labelOverlap": False}
    elif axis.log and domain is not None:
        spec["values"] = _log_ticks(*domain)
        spec["labelOverlap"] = "greedy"
    return spec


def _overlap(axis: Axis, places: list[float], domain: list[float], width: float) -> bool:
    """Return whether horizontal labels at some of the places would overlap.

    >>> _overlap(Axis("x"), [1, 2, 100], [0, 100], 300.0), _overlap(Axis("x", log=True), [1, 10, 100], [1, 100], 300.0)
    (True, False)
    """

    def scaled(value: float) -> float:
        return math.log(value) if axis.log else value

    unit = width / (scaled(domain[1]) - scaled(domain[0]))
    return any(
        (scaled(right) - scaled(left)) * unit < _LETTER * (len(f"{left:g}") + len(f"{right:g}")) / 2 + _GAP
        for left, right in itertools.pairwise(places)
    )


def _log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten between two values, and more digits if the range is less than a decade.

    Return only powers if the range is four decades or more.

    >>> _log_ticks(300, 7000), _log_ticks(1200, 4100)
    ([500.0, 1000.0, 2000.0, 5000.0], [1500.0, 2000.0, 3000.0, 4000.0])
    """
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    digits: tuple[float, ...] = (1, 2, 5) if high / low < 1e4 else (1,)
    if high / low < 6:
        digits = (1, 1.5, 2, 3, 4, 5, 7)
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
