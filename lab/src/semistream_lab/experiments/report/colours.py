"""Colours of lines: each algorithm has its own in all charts."""

from __future__ import annotations

import re

__all__ = ["colours"]

_COLOURS = {
    "MESHJOIN": "#0072B2",
    "R-MESHJOIN": "#56B4E9",
    "CMESHJOIN": "#D55E00",
    "INLJ": "#555555",
    "HYBRIDJOIN": "#009E73",
    "X-HYBRIDJOIN": "#B0307E",
    "CACHEJOIN": "#E69F00",
    "P-CACHEJOIN": "#8C6D1F",
    "OP-CACHEJOIN": "#A11D21",
    "SSIJ": "#6A3D9A",
    "dynamic memory": "#6A3D9A",
    "Partition-based join": "#88A65E",
    "SQLite": "#3B8686",
    "PostgreSQL": "#33658A",
    "MariaDB": "#A98467",
}
_SETTING = re.compile(r", (tuned|its split tuned|skew 0$|13 pages)")
_OTHERS = ("#4C72B0", "#DD8452", "#55A868", "#C44E52", "#8172B3", "#937860", "#DA8BC3", "#8C8C8C")


def _shaded(colour: str, lighter: float) -> str:
    """Return a colour mixed with white."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * lighter):02x}" for part in parts)


def colours(names: list[str]) -> list[str]:
    """Return a colour for each line: the algorithm's own colour, in shades if it has several lines.

    Variants are lighter than the line they are compared with.

    >>> colours(["MESHJOIN", "CMESHJOIN, skew 0.5", "CMESHJOIN, skew 1"])
    ['#0072B2', '#eaae80', '#d55e00']
    >>> colours(["CMESHJOIN", "CMESHJOIN, tuned"])
    ['#d55e00', '#eaae80']
    """
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(name.partition(",")[0], []).append(name)
    chosen: dict[str, str] = {}
    others = iter(_OTHERS * 4)
    for family, members in families.items():
        base = _COLOURS.get(family) or next(others)
        dark_first = any(_SETTING.search(name) for name in members)
        for at, name in enumerate(reversed(members) if dark_first else members):
            steps = len(members) - 1
            chosen[name] = _shaded(base, 0.5 * (steps - at) / steps) if steps else base
            if steps and family not in _COLOURS and steps > 4:
                chosen[name] = base
    return [chosen[name] for name in names]
