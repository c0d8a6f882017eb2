"""Dark-mode colours for charts."""

from __future__ import annotations

__all__ = ["with_dark_colours"]

_COLOURS = {
    "#000": "#e6ebf0",
    "black": "#e6ebf0",
    "#888": "#8b98a5",
    "#ddd": "#3a4651",
    "#555555": "#a8b5bf",
    "#2a6f97": "#6cb0d6",
}
"""Colours of Vega-Lite and of our charts, with their replacements on a dark page."""


def with_dark_colours(svg: str) -> str:
    """Return a Vega-Lite chart with a second set of colours for dark mode, in which its background is transparent.

    >>> with_dark_colours('<svg width="9"><rect fill="white"/></svg>')[:68]
    '<svg width="9"><style>@media (prefers-color-scheme: dark) { [fill="w'
    """
    rules = ['[fill="white"] { fill: none }']
    for light, dark in _COLOURS.items():
        rules += [f'[{part}="{light}"] {{ {part}: {dark} }}' for part in ("fill", "stroke")]
    begin = svg.index(">", svg.index("<svg")) + 1
    return f"{svg[:begin]}<style>@media (prefers-color-scheme: dark) {{ {' '.join(rules)} }}</style>{svg[begin:]}"
