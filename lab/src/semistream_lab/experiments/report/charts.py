"""Charts as Vega-Lite specifications: one description for the page and for the picture.

Measured points carry their 95 % confidence intervals. If there is a cost model, the line is the model. Otherwise a
dashed line connects the points.
"""

from __future__ import annotations

from typing import Any

from semistream_lab.experiments.judge.outcome import Found, Outcome
from semistream_lab.experiments.papers.settings import AS_PUBLISHED, EQUAL, TUNED
from semistream_lab.experiments.report.axes import at_the_edge, axis_of, own_scales, x_scale, y_scale
from semistream_lab.experiments.report.colours import colours

__all__ = ["chart", "lines"]

Spec = dict[str, Any]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"

_SHAPES = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "triangle-right", "triangle-left")
_LARGEST, _SMALLEST = 120, 60
"""Square pixels of a point of the first and of the last line."""
_CONFIG: Spec = {
    "font": "Helvetica, Arial, sans-serif",
    "background": "#ffffff",
    "view": {"stroke": "#d9d9d9"},
    "axis": {
        "labelFontSize": 12, "titleFontSize": 13, "titleFontWeight": "normal", "gridColor": "#ececec",
        "domainColor": "#888888", "tickColor": "#888888", "labelColor": "#333333", "titleColor": "#222222",
        "titlePadding": 8, "labelSeparation": 8,
    },
    "legend": {"labelFontSize": 12, "titleFontSize": 12, "labelLimit": 340, "symbolSize": 80, "symbolStrokeWidth": 2,
               "symbolOpacity": 1},
    "header": {"labelFontSize": 12, "titleFontSize": 12},
    "title": {"fontSize": 14, "subtitleFontSize": 12, "subtitleColor": "#555555", "anchor": "start", "offset": 10},
}  # fmt: skip


def chart(outcome: Outcome) -> Spec:
    """Return the chart of an experiment."""
    experiment = outcome.experiment
    rows = _rows(outcome)
    if experiment.chart == "heat":
        body = _heat(outcome, rows)
    elif experiment.chart == "bars":
        body = _bars(outcome, rows)
    else:
        body = _panels(outcome, rows)
    title: Spec = {"text": f"{experiment.id}: {experiment.title}", "subtitle": _subtitle(outcome, rows)}
    return {"$schema": SCHEMA, "config": _CONFIG, "title": title, **body}


def _subtitle(outcome: Outcome, rows: list[Spec]) -> str:
    intervals = any(row["high"] > row["low"] for row in rows)
    modelled = outcome.experiment.modelled and any(row["model"] is not None for row in rows)
    parts = ["points: measured" + (", with 95 % confidence intervals" if intervals else "")]
    if outcome.experiment.chart == "lines":
        if modelled:
            parts.append("lines: cost model")
        if any(row["model"] is None for row in rows):
            parts.append("dashed lines connect points")
        if outcome.experiment.published:
            parts.append("black diamonds: published")
        if _own(outcome, rows):
            parts.append("each panel has its own scale")
        if at_the_edge(outcome.experiment.y, rows):
            parts.append("points on the lower edge have smaller values")
        return "; ".join(parts)
    return f"{outcome.experiment.paper}, {outcome.experiment.figure}"


def _row(outcome: Outcome, label: str, panel: str, facet: str, found: Found) -> Spec:
    return {
        "series": label, "facet": panel, "scale": facet, "x": found.x, "y": found.y,
        "low": found.y - found.interval, "high": found.y + found.interval,
        "model": found.model if outcome.experiment.modelled else None,
    }  # fmt: skip


def _rows(outcome: Outcome) -> list[Spec]:
    """Return the points to draw, with the panel and the label of each.

    An experiment with joins as published and tuned has a panel for each setting, side by side. With equal bytes and
    compiled code the same measurements have other prices, if the paper's machine has its own. A line without a setting
    is in all panels.
    """
    split = any(AS_PUBLISHED in name or EQUAL in name for name in outcome.names())
    rows = [
        _row(outcome, label, panel, facet, found)
        for facet in outcome.facets()
        for name in outcome.names()
        for label, panel in (_settings(name, facet) if split else [(name, facet)])
        for found in outcome.line(name, facet)
    ]
    if split and outcome.prices is not None:  # the same measurements with the prices of compiled code
        rows += [
            _row(outcome, label, f"{facet}{EQUAL}".removeprefix(", "), facet, found)
            for facet in outcome.facets()
            for name in outcome.names() if TUNED not in name and EQUAL not in name
            for label, _ in _settings(name, facet)[:1]
            for found in outcome.compiled.line(name, facet)
        ]  # fmt: skip
    order = [f"{facet}{word}".removeprefix(", ") for facet in outcome.facets() for word in (AS_PUBLISHED, EQUAL, TUNED)]
    return sorted(rows, key=lambda row: order.index(row["facet"])) if split else rows


def _settings(name: str, facet: str) -> list[tuple[str, str]]:
    """Return the label of a line and the panels that show it.

    >>> _settings("SSIJ, equal bytes, skew 0", "memory 1%"), _settings("INLJ", "")
    ([('SSIJ, skew 0', 'memory 1%, equal bytes')], [('INLJ', 'as published'), ('INLJ', 'tuned')])
    """
    found = [word for word in (AS_PUBLISHED, EQUAL, TUNED) if word in name] or [AS_PUBLISHED, TUNED]
    label = name.replace(found[0], "") if len(found) == 1 else name
    return [(label, f"{facet}{word}".removeprefix(", ")) for word in found]


def _colour(names: list[str]) -> tuple[Spec, Spec]:
    legend: Spec | None = {"title": None, "orient": "right"} if len(names) > 1 else None
    colour = {
        "field": "series", "type": "nominal", "sort": names, "legend": legend,
        "scale": {"domain": names, "range": colours(names)},
    }  # fmt: skip
    shape = {
        "field": "series", "type": "nominal", "sort": names, "legend": legend,
        "scale": {"domain": names, "range": [_SHAPES[at % len(_SHAPES)] for at in range(len(names))]},
    }  # fmt: skip
    return colour, shape


def _sizes(names: list[str]) -> Spec:
    """Return the sizes of points.

    A point hides what is below it, so lines that are drawn first have larger points.
    """
    if len(names) < 2:
        return {"value": _SMALLEST}
    step = (_LARGEST - _SMALLEST) / (len(names) - 1)
    sizes = [round(_LARGEST - step * at) for at in range(len(names))]
    scale = {"domain": names, "range": sizes}
    return {"field": "series", "type": "nominal", "legend": None, "sort": names, "scale": scale}


def _labels(rows: list[Spec]) -> list[str]:
    return list(dict.fromkeys(row["series"] for row in rows))


def lines(
    outcome: Outcome, rows: list[Spec], drawn: list[Spec], *, own: bool = False, width: int = 520, height: int = 300
) -> Spec:
    """Return one panel of lines.

    It shows ``rows``. All rows ``drawn`` share the same colours, and also the scales unless ``own``.
    """
    experiment = outcome.experiment
    names = _labels(drawn)
    colour, shape = _colour(names)
    size = _sizes(names)
    places, across = sorted({row["x"] for row in rows}), x_scale(experiment.x, rows)
    x = {
        "field": "x", "type": "quantitative", "scale": across,
        "axis": axis_of(experiment.x, places, across["domain"], width),
    }  # fmt: skip
    printed = _printed(outcome, rows[0])
    same = rows if own else [row for row in drawn if row["scale"] == rows[0]["scale"]]
    scale = y_scale(experiment.y, same + printed)
    y = {"type": "quantitative", "scale": scale, "axis": axis_of(experiment.y, domain=scale["domain"])}
    tooltip = [
        {"field": "series", "title": "line"},
        {"field": "x", "title": experiment.x.title},
        {"field": "y", "title": "measured", "format": ",.4~r"},
        {"field": "low", "title": "95 % from", "format": ",.4~r"},
        {"field": "high", "title": "to", "format": ",.4~r"},
        {"field": "model", "title": "model", "format": ",.4~r"},
    ]
    modelled = {row["series"] for row in rows if row["model"] is not None}
    layers: list[Spec] = []
    if modelled:
        layers.append({
            "transform": [{"filter": "datum.model != null"}],
            "mark": {"type": "line", "strokeWidth": 2, "opacity": 0.75},
            "encoding": {"x": x, "y": {**y, "field": "model"}, "color": colour},
        })  # fmt: skip
    if any(row["series"] not in modelled for row in rows):
        joined = {"or": [{"field": "series", "equal": name} for name in _labels(rows) if name not in modelled]}
        layers.append({
            "transform": [{"filter": joined}],
            "mark": {"type": "line", "strokeWidth": 1.2, "opacity": 0.55, "strokeDash": [4, 3]},
            "encoding": {"x": x, "y": {**y, "field": "y"}, "color": colour},
        })  # fmt: skip
    if any(row["high"] > row["low"] for row in rows):
        layers.append({
            "mark": {"type": "rule", "strokeWidth": 1.5, "clip": True},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour},
        })  # fmt: skip
    layers.append({
        "mark": {"type": "point", "filled": True, "opacity": 1},
        "encoding": {
            "x": x, "y": {**y, "field": "y"}, "color": colour, "shape": shape, "size": size, "tooltip": tooltip,
        },
    })  # fmt: skip
    if printed:
        layers.append({
            "data": {"values": printed},
            "mark": {"type": "point", "shape": "diamond", "size": 150, "strokeWidth": 2, "color": "#000000"},
            "encoding": {"x": x, "y": {**y, "field": "y"}, "tooltip": [tooltip[0], tooltip[1], tooltip[2]]},
        })  # fmt: skip
    return {"width": width, "height": height, "layer": layers}


def _printed(outcome: Outcome, row: Spec) -> list[Spec]:
    """Return the values that the paper prints, as rows of the panel of ``row``; none in panels of other settings."""
    if EQUAL.removeprefix(", ") in row["facet"] or TUNED.removeprefix(", ") in row["facet"]:
        return []
    return [
        {"series": "published", "facet": row["facet"], "scale": row["scale"], "x": one.x, "y": one.y, "low": one.y,
         "high": one.y, "model": None}
        for one in outcome.experiment.published if one.facet in ("", row["scale"])
    ]  # fmt: skip


def _facets(rows: list[Spec]) -> dict[str, list[Spec]]:
    """Return the panels that are drawn, and the rows of each."""
    panels: dict[str, list[Spec]] = {}
    for row in rows:
        panels.setdefault(row["facet"], []).append(row)
    # a line that is alone in its panel, with nothing to compare it with, is only in the table of numbers
    most = max(len(_labels(here)) for here in panels.values())
    return {facet: here for facet, here in panels.items() if most == 1 or len(_labels(here)) > 1}


def _own(outcome: Outcome, rows: list[Spec]) -> set[str]:
    """Return the facets whose panels have their own scales."""
    panels: dict[str, list[list[Spec]]] = {}
    for here in _facets(rows).values():
        panels.setdefault(here[0]["scale"], []).append(here)
    return {facet for facet, same in panels.items() if own_scales(outcome.experiment.y, same)}


def _panels(outcome: Outcome, rows: list[Spec]) -> Spec:
    facets, own = _facets(rows), _own(outcome, rows)
    if len(facets) == 1:
        return {"data": {"values": rows}, **lines(outcome, rows, rows)}
    columns = 2 if len(facets) in (2, 4) else 3
    panels = []
    for facet, here in facets.items():
        panel = lines(outcome, here, rows, own=here[0]["scale"] in own, width=330 if columns == 2 else 250, height=240)
        title = {"text": facet, "fontSize": 12, "frame": "group"}
        panels.append({"data": {"values": here}, "title": title, **panel})
    return {"concat": panels, "columns": columns}


def _heat(outcome: Outcome, rows: list[Spec]) -> Spec:
    experiment = outcome.experiment
    best = max(rows, key=lambda row: row["y"])
    across = {"field": "x", "type": "ordinal", "axis": {"title": experiment.x.title, "labelAngle": 0}}
    order = sorted({row["series"] for row in rows}, key=lambda name: -float(name))
    down = {"field": "series", "type": "ordinal", "sort": order, "axis": {"title": experiment.facet_title}}
    values = [{**row, "best": row is best} for row in rows]
    return {
        "data": {"values": values}, "width": 520, "height": 320,
        "layer": [
            {
                "mark": "rect",
                "encoding": {
                    "x": across, "y": down,
                    "color": {
                        "field": "y", "type": "quantitative", "scale": {"scheme": "viridis"},
                        "legend": {"title": experiment.y.title, "format": "~s", "orient": "right"},
                    },
                },
            },
            {
                "mark": {"type": "text", "fontSize": 11},
                "encoding": {
                    "x": across, "y": down, "text": {"field": "y", "format": ".3~s"},
                    "color": {
                        "condition": {"test": f"datum.y < {0.7 * best['y']}", "value": "white"}, "value": "black"
                    },
                },
            },
            {
                "transform": [{"filter": "datum.best"}],
                "mark": {"type": "rect", "filled": False, "stroke": "#D7191C", "strokeWidth": 3},
                "encoding": {"x": across, "y": down},
            },
        ],
    }  # fmt: skip


def _bars(outcome: Outcome, rows: list[Spec]) -> Spec:
    experiment = outcome.experiment
    names = _labels(rows)
    colour, _ = _colour(names)
    x = {"field": "x", "type": "ordinal", "axis": {"title": experiment.x.title, "labelAngle": 0}}
    offset = {"field": "series", "sort": names}
    scale = y_scale(experiment.y, rows)
    y = {"type": "quantitative", "scale": scale, "axis": axis_of(experiment.y, domain=scale["domain"])}
    return {
        "data": {"values": rows}, "width": 520, "height": 300,
        "layer": [
            {
                "mark": {"type": "bar"},
                "encoding": {"x": x, "xOffset": offset, "y": {**y, "field": "y"}, "color": colour},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": {"x": x, "xOffset": offset, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
            },
        ],
    }  # fmt: skip
