"""A chart of a recommendation: predicted rates over memory, and over the size of the cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semistream.cli.dark_charts import with_dark_colours
from semistream.core.errors import MissingExtraError
from semistream.core.units import format_bytes

if TYPE_CHECKING:
    from semistream.tuner import Tuning

__all__ = ["check_image", "draw", "vega_lite"]

Spec = dict[str, Any]

_LINES = 6
_STEPS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
_SHARES = [round(0.05 * step, 2) for step in range(1, 20)]


def check_image(path: Path) -> None:
    """Raise if a picture cannot be written to this path."""
    if path.suffix not in (".svg", ".png"):
        raise ValueError(f"the picture must be .svg or .png, not {path.suffix or path.name!r}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"there is no directory {path.absolute().parent} to draw {path.name} in")
    _converter()


def draw(tuning: Tuning, path: Path, progress: Callable[[str], None] = lambda _: None) -> None:
    """Write the picture atomically."""
    spec = vega_lite(tuning, progress)
    progress("drawing")
    converter = _converter()
    if path.suffix == ".png":
        picture = converter.vegalite_to_png(spec, scale=2)
    else:
        picture = with_dark_colours(converter.vegalite_to_svg(spec)).encode()
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(picture)
    beside.replace(path)


def _converter() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise MissingExtraError("vl-convert-python", "charts") from None
    return vl_convert


def vega_lite(tuning: Tuning, progress: Callable[[str], None] = lambda _: None) -> Spec:
    """Return the chart of a tuning in Vega-Lite: the fastest joins, and the cache of the recommended join."""
    setting = tuning.setting
    shown = [found.algorithm for found in tuning.predictions[:_LINES]]
    if tuning.best.algorithm not in shown:
        shown[-1] = tuning.best.algorithm
    panels = [_over_memory(tuning, shown, progress)]
    if "cache_share" in tuning.best.options:
        progress("sizes of the cache")
        panels.append(_over_cache(tuning))
    title = {
        "text": f"Predicted rates: R of {setting.rows:,} rows, {format_bytes(setting.pages * setting.page_bytes)}",
        "subtitle": f"Zipf {setting.exponent:.2f}; costs: {setting.constants.name}; every point at its best split",
        "anchor": "start", "fontSize": 15, "subtitleFontSize": 12, "offset": 12,
    }  # fmt: skip
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": title, "background": "white", "spacing": 32, "hconcat": panels,
        "config": {
            "font": "sans-serif", "view": {"stroke": "#d9d9d9"},
            "axis": {"labelFontSize": 12, "titleFontSize": 13, "titleFontWeight": "normal", "gridColor": "#ececec"},
            "legend": {"labelFontSize": 12, "titleFontSize": 12, "symbolStrokeWidth": 3},
        },
    }  # fmt: skip


def _over_memory(tuning: Tuning, shown: list[str], progress: Callable[[str], None]) -> Spec:
    """Return the rates of some joins over memory, each at its best split."""
    from semistream.core.errors import BudgetTooSmallError
    from semistream.tuner.tuning import compare

    rows: list[Spec] = []
    for step in _STEPS:
        memory = int(tuning.memory * step)
        progress(f"rates with {format_bytes(memory)}")
        try:
            found = tuning if step == 1.0 else compare(tuning.setting, memory, shown)
        except BudgetTooSmallError:
            continue
        rows += [
            {"join": one.algorithm, "memory": memory / 1e6, "rate": one.rate}
            for one in found.predictions if one.algorithm in shown
        ]  # fmt: skip
    x: Spec = {"field": "memory", "type": "quantitative", "title": "memory, MB"}
    x |= {"scale": {"type": "log", "nice": False, "padding": 12}, "axis": {"format": "~r", "tickCount": 5}}
    y = {
        "field": "rate", "type": "quantitative", "title": "stream tuples per second",
        "scale": {"type": "log", "nice": False, "padding": 12}, "axis": {"format": "~s", "tickCount": 6},
    }  # fmt: skip
    colour = {
        "field": "join",
        "type": "nominal",
        "sort": shown,
        "title": None,
        "legend": {"orient": "bottom", "columns": 3},
    }
    return {
        "width": 420, "height": 300,
        "layer": [
            {
                "data": {"values": [{"memory": tuning.memory / 1e6}]},
                "mark": {"type": "rule", "strokeDash": [4, 4], "color": "#888888"}, "encoding": {"x": x},
            },
            {
                "data": {"values": rows},
                "mark": {"type": "line", "point": True, "strokeWidth": 2},
                "encoding": {"x": x, "y": y, "color": colour},
            },
        ],
    }  # fmt: skip


def _over_cache(tuning: Tuning) -> Spec:
    """Return the rate of the recommended join over its cache's share of the memory; other options are unchanged."""
    from semistream.core.errors import BudgetTooSmallError
    from semistream.costs import costs_of

    best, rows = tuning.best, []
    for share in sorted({*_SHARES, best.options["cache_share"]}):
        try:
            found = costs_of(best.algorithm).predict(
                tuning.setting, tuning.memory, **{**best.options, "cache_share": share}
            )
        except BudgetTooSmallError:
            continue
        rows.append({"share": share, "rate": found.rate})
    title = f"cache's share of {format_bytes(tuning.memory)}, {best.algorithm}"
    x = {"field": "share", "type": "quantitative", "title": title, "axis": {"format": "%"}}
    y = {
        "field": "rate", "type": "quantitative", "title": "stream tuples per second", "axis": {"format": "~s"},
    }  # fmt: skip
    chosen = [row for row in rows if row["share"] == best.options["cache_share"]]
    return {
        "width": 320, "height": 300,
        "layer": [
            {"data": {"values": rows}, "mark": {"type": "line", "strokeWidth": 2}, "encoding": {"x": x, "y": y}},
            {
                "data": {"values": chosen}, "mark": {"type": "point", "size": 90, "filled": True, "color": "#d55e00"},
                "encoding": {"x": x, "y": y},
            },
        ],
    }  # fmt: skip
