"""Draw docs/ratio.svg, which compares our join with Spark's own and DuckDB's. Run it after new results were stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).parents[1]
DARK = (
    '@media (prefers-color-scheme: dark) { [fill="#ffffff"] { fill: none } [fill="#17212b"] { fill: #e6ebf0 } '
    '[fill="#566370"] { fill: #a8b5bf } [fill="#0f766e"] { fill: #2dd4bf } [fill="#94a3b8"] { fill: #66727e } }'
)
"""Colours on a dark page."""
WIDTH, LEFT, LONGEST = 760, 224, 380
OURS, THEIRS = "#0f766e", "#94a3b8"


class Pair(NamedTuple):
    """Two rates that were measured in one run."""

    label: str
    other: str
    ours: float
    theirs: float


def sections() -> dict[str, list[Pair]]:
    """Return what is drawn: each section has a scale of its own."""
    spark = {_size(one): one for one in (_read("spark-100k.json"), _read("spark-40m-rows.json"))}
    engines = {"batches of 100,000": "peers-100k.json", "batches of 1,000,000": "peers-1m.json"}
    peers = {label: _read(name)["points"][0] for label, name in engines.items()}
    return {
        "Stream rows per second on Spark, micro-batches of 100,000": [
            Pair(label, "Spark's stream-static join", one["ours"], one["stream_static"]) for label, one in spark.items()
        ],
        "and in one Python process, 10 M products": [
            Pair(label, "DuckDB with R's Parquet", one["rates"]["adaptivejoin"], one["rates"]["duckdb"])
            for label, one in peers.items()
        ],
    }


def drawn() -> str:
    """Return the picture."""
    found = sections()
    height = 24 + sum(38 + 84 * len(pairs) for pairs in found.values())
    told = "; ".join(_told(pair) for pairs in found.values() for pair in pairs)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="system-ui, sans-serif">',
        f"<title>{told}</title>",
        f"<style>{DARK}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="12" fill="#ffffff"/>',
    ]
    y = 30
    for title, pairs in found.items():
        parts.append(f'<text x="18" y="{y}" font-size="17" font-weight="700" fill="#17212b">{title}</text>')
        y += 28
        most = max(max(pair.ours, pair.theirs) for pair in pairs)
        for pair in pairs:
            parts.append(f'<text x="18" y="{y}" font-size="14" fill="#566370">{pair.label}</text>')
            ratio = f" · {pair.ours / pair.theirs:.1f} ×"
            parts += _bar(y + 10, "semistream, 5 % of R in memory", pair.ours, most, OURS, ratio)
            parts += _bar(y + 36, pair.other, pair.theirs, most, THEIRS, "")
            y += 84
        y += 10
    return "".join([*parts, "</svg>\n"])


def _bar(top: int, name: str, rate: float, most: float, color: str, ratio: str) -> list[str]:
    length = max(2.0, LONGEST * rate / most)
    return [
        f'<text x="{LEFT - 8}" y="{top + 15}" font-size="12.5" text-anchor="end" fill="#17212b">{name}</text>',
        f'<rect x="{LEFT}" y="{top}" width="{length:.0f}" height="20" rx="4" fill="{color}"/>',
        f'<text x="{LEFT + length + 8:.0f}" y="{top + 15}" font-size="13.5" font-weight="700" fill="#17212b">'
        f"{_rate(rate)}{ratio}</text>",
    ]


def _size(found: dict[str, Any]) -> str:
    return f"{found['plan']['rows'] / 1e6:.0f} M products, {found['relation']['bytes'] / 1e9:.1f} GB as packed pages"


def _rate(rate: float) -> str:
    return f"{rate / 1e6:.2f} M/s" if rate >= 1e6 else f"{rate / 1e3:.0f} k/s"


def _told(pair: Pair) -> str:
    return f"{pair.label}: {_rate(pair.ours)}, {pair.other} {_rate(pair.theirs)}"


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "results" / name).read_text())
    return found


if __name__ == "__main__":
    (DOCS / "ratio.svg").write_text(drawn())
