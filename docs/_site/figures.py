"""Figures of the joins: their structures and one iteration of the loop, as SVG drawn from a short description each."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

__all__ = ["FIGURES", "Figure", "svg"]

_CELL, _ROW, _BOX, _HIGH = 205, 92, 156, 56


@dataclass(frozen=True)
class Figure:
    """Boxes at places (column, row), and numbered steps between two of them.

    Column 0 is the stream and the results, columns 1 and 2 are memory, column 3 is the disk.
    """

    boxes: dict[str, tuple[int, float, str]]
    steps: list[tuple[str, str, str]]


_STREAM, _RESULT, _DISK = (0, 0, "tuples arrive"), (0, 2, "joined rows"), (3, 1, "pages of R")


def _figure(boxes: dict[str, tuple[int, float, str]], *steps: tuple[str, str, str]) -> Figure:
    return Figure({"stream": _STREAM, "results": _RESULT, **boxes, "R on disk": _DISK}, list(steps))


_FRONT = {"H_R, hot tuples": (1, 0, "the front stage")}
_QUEUE = {"H_S and queue": (1, 1.0, "waiting tuples"), "disk buffer": (2, 1.9, "a partition")}
_HYBRID = (
    ("H_S and queue", "R on disk", "the key of the oldest waiting tuple selects a partition"),
    ("R on disk", "disk buffer", "the partition is read"),
    ("disk buffer", "H_S and queue", "each of its rows is looked up in H_S and joined with all waiting tuples"),
    ("H_S and queue", "results", "tuples that are completely joined are output"),
)
_FRONTED = (
    ("stream", "H_R, hot tuples", "a tuple is looked up in the cache of hot tuples"),
    ("H_R, hot tuples", "results", "a hit is answered immediately, without a read"),
    ("H_R, hot tuples", "H_S and queue", "a miss waits"),
)
_LEARNED = ("disk buffer", "H_R, hot tuples", "rows that many tuples waited for are admitted to the cache")

FIGURES: dict[str, Figure] = {
    "oracle": _figure(
        {"all of R": (1, 1, "sorted, unbounded")},
        ("R on disk", "all of R", "R is read once, at the start"),
        ("stream", "all of R", "each tuple is looked up"),
        ("all of R", "results", "the joined row is output immediately"),
    ),
    "inlj": _figure(
        {"index": (1, 0, "first key of each page"), "disk buffer": (2, 1.5, "pages in flight")},
        ("stream", "index", "the index locates the page of the key"),
        ("index", "R on disk", "this page is requested for this tuple only"),
        ("R on disk", "disk buffer", "it is read"),
        ("disk buffer", "results", "the tuple is joined with its rows and output"),
    ),
    "meshjoin": _figure(
        _QUEUE,
        ("stream", "H_S and queue", "w tuples enter H_S and the queue"),
        ("R on disk", "disk buffer", "the next b pages are read, in a cyclic scan of R"),
        ("disk buffer", "H_S and queue", "every row is probed in H_S"),
        ("H_S and queue", "results", "the oldest w tuples have been compared with all of R and are output"),
    ),
    "partitioned_join": _figure(
        {
            "wait buffer": (1, 1, "by partition"),
            "index": (1, 0, "key to partition"),
            "disk buffer": (2, 1.9, "a partition"),
        },
        ("stream", "index", "the index locates the partition that a tuple needs"),
        ("index", "wait buffer", "the tuple waits in the list of its partition"),
        ("wait buffer", "R on disk", "the partition with the most waiting tuples is requested"),
        ("R on disk", "disk buffer", "it is read"),
        ("disk buffer", "wait buffer", "all tuples that wait for it are joined"),
        ("wait buffer", "results", "the joined rows are output"),
    ),
    "hybridjoin": _figure(_QUEUE, ("stream", "H_S and queue", "tuples fill H_S, and the queue by age"), *_HYBRID),
    "x_hybridjoin": _figure(
        {**_QUEUE, "pinned pages": (2, 0, "frequent, stay in memory")},
        ("stream", "pinned pages", "tuples are looked up in the pinned pages"),
        ("pinned pages", "H_S and queue", "tuples without a hit wait"),
        *_HYBRID,
    ),
    "cmeshjoin": _figure(
        {**_FRONT, **_QUEUE},
        *_FRONTED,
        ("R on disk", "disk buffer", "after w misses the next pages are read, in a cyclic scan"),
        ("disk buffer", "H_S and queue", "every row is probed in H_S; the oldest w tuples are output"),
        _LEARNED,
    ),
    "cachejoin": _figure({**_FRONT, **_QUEUE}, *_FRONTED, *_HYBRID, _LEARNED),
    "p_cachejoin": _figure(
        {**_FRONT, "I_B": (2, 0, "between two threads"), **_QUEUE},
        ("stream", "H_R, hot tuples", "one thread looks tuples up in the cache"),
        ("H_R, hot tuples", "results", "hits are output"),
        ("H_R, hot tuples", "I_B", "misses are added to the intermediate buffer"),
        ("I_B", "H_S and queue", "the other thread moves them into H_S and joins them as HYBRIDJOIN does"),
        ("R on disk", "disk buffer", "while it reads, the first thread continues"),
        ("disk buffer", "H_S and queue", "all waiting tuples are joined"),
        ("H_S and queue", "results", "the joined rows are output"),
    ),
    "ssij": _figure(
        {
            "input buffer": (1, 0, "pending tuples"),
            "page cache": (2, 0, "by utility"),
            "stream buffer": (1, 1, "lists by page"),
            "read buffer": (2, 1.6, "runs of pages"),
        },
        ("stream", "input buffer", "tuples gather"),
        ("input buffer", "page cache", "a batch is sorted and located in one pass over the index; cached pages answer"),
        ("input buffer", "stream buffer", "the others wait in the list of their page"),
        ("stream buffer", "R on disk", "the needed pages are requested by the cheapest plan of runs"),
        ("R on disk", "read buffer", "they are read"),
        ("read buffer", "stream buffer", "each page is joined with the tuples of its list"),
        ("stream buffer", "results", "the joined rows are output"),
        ("read buffer", "page cache", "a page with a higher utility than others is kept"),
    ),
    "adaptivejoin": _figure(
        {
            "window": (1, 0, "Arrow, unchanged"),
            "arena": (1, 1.2, "rows of R, by key"),
            "frames": (2, 1.6, "pages in flight"),
        },
        ("stream", "window", "each tuple gets the number of its key; the batches are not changed"),
        ("window", "arena", "each distinct key is looked up once; known rows answer"),
        ("arena", "R on disk", "unknown keys are sorted, located in one pass, and read by the cheapest plan"),
        ("R on disk", "frames", "the next pages are being read while the last ones are searched"),
        ("frames", "arena", "their rows are added to the arena; the least frequently requested rows are evicted"),
        ("arena", "results", "one gather per column, in the order of the stream"),
    ),
}
FIGURES["r_meshjoin"] = FIGURES["meshjoin"]
FIGURES["op_cachejoin"] = FIGURES["p_cachejoin"]
FIGURES["front+x_hybridjoin"] = FIGURES["cachejoin"]
FIGURES["front+inlj"] = _figure(
    {**_FRONT, "index": (2, 0, "first key of each page"), "disk buffer": (2, 1.6, "pages in flight")},
    _FRONTED[0],
    _FRONTED[1],
    ("H_R, hot tuples", "index", "a miss is looked up in the index"),
    ("R on disk", "disk buffer", "its page is read for this tuple only"),
    ("disk buffer", "results", "it is joined with its rows and output"),
    _LEARNED,
)
FIGURES["front+ssij"] = FIGURES["ssij"]


def svg(name: str, figure: Figure) -> str:
    """Return the drawing, with a text description for screen readers."""
    width, height = 4 * _CELL, int(3 * _ROW + 20)
    told = "; ".join(f"{number}, from {a} to {b}: {text}" for number, (a, b, text) in enumerate(figure.steps, 1))
    parts = [
        f'<svg class="structures" viewBox="0 0 {width} {height}" role="img" xmlns="http://www.w3.org/2000/svg">',
        f"<title>Structures of {escape(name)}, and one iteration of its loop</title><desc>{escape(told)}</desc>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="currentColor"/></marker></defs>',
        f'<rect x="{_CELL - 12}" y="4" width="{2 * _CELL - 8}" height="{height - 8}" rx="10" fill="none" '
        'stroke="currentColor" stroke-dasharray="5 5" opacity=".5"/>',
        f'<text x="{_CELL}" y="{height - 12}" font-size="13" fill="currentColor" opacity=".75">'
        "memory, within the budget</text>",
    ]
    places = {
        box: (column * _CELL + 8 + _BOX / 2, row * _ROW + 14 + _HIGH / 2)
        for box, (column, row, _) in figure.boxes.items()
    }
    lines, numbers = _arrows(figure, places)
    parts += lines  # drawn below the boxes, as a line may cross one
    for box, (column, row, note) in figure.boxes.items():
        x, y = column * _CELL + 8, row * _ROW + 14
        look = "outer" if column in (0, 3) else "inner"
        parts.append(
            f'<rect class="{look}" x="{x}" y="{y}" width="{_BOX}" height="{_HIGH}" rx="8" '
            'fill="var(--md-code-bg-color, #f4f5f6)" '
            f'stroke="currentColor"/><text x="{x + _BOX / 2}" y="{y + 24}" text-anchor="middle" font-size="15" '
            f'font-weight="600" fill="currentColor">{escape(box)}</text><text x="{x + _BOX / 2}" y="{y + 42}" '
            f'text-anchor="middle" font-size="12" fill="currentColor" opacity=".8">{escape(note)}</text>'
        )
    return "".join([*parts, *numbers, "</svg>"])


def _arrows(figure: Figure, places: dict[str, tuple[float, float]]) -> tuple[list[str], list[str]]:
    """Return lines and their numbers. A second line between the same boxes is drawn next to the first."""
    lines, numbers = [], []
    seen: dict[frozenset[str], int] = {}
    for number, (start, end, _) in enumerate(figure.steps, 1):
        pair = frozenset((start, end))
        aside = 17 * seen.get(pair, 0)
        seen[pair] = seen.get(pair, 0) + 1
        (ax, ay), (bx, by) = _edge(places[start], places[end]), _edge(places[end], places[start])
        ax, ay, bx, by = ax + aside, ay + aside, bx + aside, by + aside
        x, y = ax + 0.4 * (bx - ax), ay + 0.4 * (by - ay)
        lines.append(
            f'<line x1="{ax:.0f}" y1="{ay:.0f}" x2="{bx:.0f}" y2="{by:.0f}" stroke="currentColor" '
            'stroke-width="1.6" marker-end="url(#tip)"/>'
        )
        numbers.append(
            f'<circle cx="{x:.0f}" cy="{y:.0f}" r="9.5" fill="#0f766e"/><text x="{x:.0f}" y="{y + 4:.0f}" '
            f'text-anchor="middle" font-size="12" font-weight="700" fill="#fff">{number}</text>'
        )
    return lines, numbers


def _edge(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    """Return where the line to ``end`` leaves the box around ``start``."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    reach = min(_BOX / 2 / abs(dx) if dx else 9e9, _HIGH / 2 / abs(dy) if dy else 9e9)
    return start[0] + dx * reach, start[1] + dy * reach
