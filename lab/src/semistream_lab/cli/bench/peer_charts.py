"""Pictures of ``semistream bench peers``: bars if there are few points, a line of dots per point if there are many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from semistream.cli.dark_charts import with_dark_colours
from semistream.core.units import format_bytes, format_count, memory_said

__all__ = ["draw_peers", "peer_chart"]

COLOURS = {
    "adaptivejoin": "#d1495b",
    "the papers' joins": "#2a6f97",
    "peers": "#e0a030",
    "all of R in memory": "#b8c4cc",
    "limit of the device": "#555555",
}
_KINDS = {"join": "the papers' joins", "peer": "peers", "ideal": "all of R in memory", "limit": "limit of the device"}
_MOST_PANELS = 4


def draw_peers(found: dict[str, Any], path: Path) -> bool:
    """Draw a result if vl-convert is installed. Return whether it was drawn."""
    try:
        import vl_convert
    except ImportError:
        return False
    path.write_text(with_dark_colours(vl_convert.vegalite_to_svg(peer_chart(found))))
    return True


def peer_chart(found: dict[str, Any]) -> dict[str, Any]:
    """Return a Vega-Lite specification: one panel of bars per point, or a single panel of dots for many points."""
    values = [
        {
            "name": name,
            "rate": rate,
            "label": format_count(rate) + "/s",
            "kind": "adaptivejoin" if name == "adaptivejoin" else _KINDS[point["kinds"][name]],
            "point": number,
            "where": _briefly(point),
        }
        for number, point in enumerate(found["points"])
        for name, rate in sorted(point["rates"].items(), key=lambda item: -item[1])
    ]
    machine, commit = found["machine"], found["commit"].partition(" ")[0][:10]
    where = f"{machine['cores']} cores, {machine['file_system']}, {found['when'][:10]}, commit {commit}"
    shown = [label for label in COLOURS if any(value["kind"] == label for value in values)]
    colour = {
        "field": "kind", "type": "nominal", "legend": {"title": None, "orient": "bottom", "labelFontSize": 12},
        "scale": {"domain": shown, "range": [COLOURS[label] for label in shown]},
    }  # fmt: skip
    if len(found["points"]) > _MOST_PANELS:
        panels = [_dots(values, colour)]
    else:
        panels = _bars(found, values, colour)
    title = {
        "text": "Stream tuples joined per second, in the same memory", "subtitle": [where, _limited(found["limit"])],
        "anchor": "start", "fontSize": 16,
    }  # fmt: skip
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": title,
        "background": "white",
        "concat": panels,
        "columns": 2 if len(panels) > 1 else 1,
        "config": {"view": {"stroke": None}, "font": "sans-serif"},
    }


def _bars(found: dict[str, Any], values: list[dict[str, Any]], colour: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        _panel([value for value in values if value["point"] == number], _said(point), colour)
        for number, point in enumerate(found["points"])
    ]


def _dots(values: list[dict[str, Any]], colour: dict[str, Any]) -> dict[str, Any]:
    rate = {
        "field": "rate", "type": "quantitative", "title": "tuples per second", "scale": {"type": "log"},
        "axis": {"format": "~s"},
    }  # fmt: skip
    place = {
        "field": "where",
        "type": "nominal",
        "sort": None,
        "title": None,
        "axis": {"labelLimit": 400, "grid": True},
    }
    return {
        "width": 560,
        "height": {"step": 18},
        "data": {"values": values},
        "mark": {"type": "point", "filled": True, "size": 55, "opacity": 0.8},
        "encoding": {"y": place, "x": rate, "color": colour},
    }


def _panel(values: list[dict[str, Any]], title: str, colour: dict[str, Any]) -> dict[str, Any]:
    top = max((value["rate"] for value in values), default=1.0)
    rate = {
        "field": "rate", "type": "quantitative", "title": "tuples per second", "axis": {"format": "~s", "tickCount": 5},
        "scale": {"domain": [0, 1.15 * top]},
    }  # fmt: skip
    place = {"field": "name", "type": "nominal", "sort": None, "title": None, "axis": {"labelFontSize": 12}}
    return {
        "title": {"text": title, "anchor": "start", "fontSize": 12, "fontWeight": "normal"},
        "width": 420,
        "height": {"step": 22},
        "data": {"values": values},
        "encoding": {"y": place, "x": rate},
        "layer": [
            {"mark": {"type": "bar", "cornerRadiusEnd": 3}, "encoding": {"color": colour}},
            {"mark": {"type": "text", "align": "left", "dx": 4}, "encoding": {"text": {"field": "label"}}},
        ],
    }


def _said(point: dict[str, Any]) -> str:
    memory = f"{memory_said(point['memory'])} ({format_bytes(point['memory_bytes'])})"
    return (
        f"R {format_count(point['rows'])} × {point['row_bytes']} B, memory {memory}, Zipf {point['zipf']:g}, "
        f"batches of {format_count(point['batch'])}"
    )


def _briefly(point: dict[str, Any]) -> str:
    rows, batch = format_count(point["rows"]), format_count(point["batch"])
    return f"R {rows}, {memory_said(point['memory'])}, Zipf {point['zipf']:g}, batch {batch}"


def _limited(limit: str) -> str:
    return f"memory limit: {limit.partition(',')[0]}"
