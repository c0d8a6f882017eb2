"""Draw docs/ratio.svg: our join on Spark beside Spark's own, from the raw results. Run it when they are new."""

from __future__ import annotations

import json
from pathlib import Path

DOCS = Path(__file__).parents[1]
RESULTS = {"10 M products, 1.5 GB": "rows-10m.json", "40 M products, 6.1 GB": "rows-40m.json"}
WIDTH, LEFT, LONGEST = 760, 224, 396


def drawn() -> str:
    """Return the picture."""
    measured = {label: json.loads((DOCS / "results-spark" / name).read_text()) for label, name in RESULTS.items()}
    most = max(max(one["ours"], one["stream_static"]) for one in measured.values())
    height = 62 + 92 * len(measured)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="system-ui, sans-serif">',
        f"<title>{'; '.join(_told(label, one) for label, one in measured.items())}</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="12" fill="#ffffff"/>',
        '<text x="18" y="30" font-size="17" font-weight="700" fill="#17212b">Stream rows a second on Spark, '
        "two cores</text>",
    ]
    for number, (label, one) in enumerate(measured.items()):
        y = 62 + 92 * number
        parts.append(f'<text x="18" y="{y}" font-size="14" fill="#566370">{label}</text>')
        bars = (
            ("semistream, 5 % of R in memory", "ours", "#0f766e"),
            ("stream-static join", "stream_static", "#94a3b8"),
        )
        for row, (name, key, color) in enumerate(bars):
            top, length = y + 10 + 26 * row, max(2.0, LONGEST * one[key] / most)
            ratio = f" · {one['ratio']:.1f} ×" if key == "ours" else ""
            parts.append(
                f'<text x="{LEFT - 8}" y="{top + 15}" font-size="12.5" text-anchor="end" fill="#17212b">{name}</text>'
                f'<rect x="{LEFT}" y="{top}" width="{length:.0f}" height="20" rx="4" fill="{color}"/>'
                f'<text x="{LEFT + length + 8:.0f}" y="{top + 15}" font-size="13.5" font-weight="700" fill="#17212b">'
                f"{one[key] / 1e3:.0f} k/s{ratio}</text>"
            )
    return "".join([*parts, "</svg>\n"])


def _told(label: str, one: dict[str, float]) -> str:
    return f"{label}: {one['ours'] / 1e3:.0f} k rows/s, Spark's own join {one['stream_static'] / 1e3:.0f} k rows/s"


if __name__ == "__main__":
    (DOCS / "ratio.svg").write_text(drawn())
