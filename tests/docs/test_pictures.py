"""Pictures of the documentation fit light and dark pages, whatever the system of the reader prefers."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import open_context

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DOCS = Path(__file__).parents[2] / "docs"


def _bright(chromium: Browser, picture: Path, scheme: str, place: Path) -> float:
    """Return the share of bright pixels of a picture on a page that has chosen a scheme, as Material's switch does."""
    image = pytest.importorskip("PIL.Image")
    back = "#1e2129" if scheme == "dark" else "#ffffff"
    page = place / f"{scheme}.html"
    page.write_text(f"<body style='color-scheme: {scheme}; background: {back}'><img src='{picture}' width='800'>")
    context = open_context(chromium, color_scheme="light")
    opened = context.new_page()
    opened.goto(f"file://{page}")
    shot = image.open(io.BytesIO(opened.locator("img").screenshot())).convert("L")
    context.close()
    return sum(shot.histogram()[170:]) / (shot.width * shot.height)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("picture", sorted(DOCS.glob("*.svg")), ids=lambda path: path.name)
def test_pictures_are_dark_on_dark_pages(chromium: Browser, picture: Path, tmp_path: Path) -> None:
    """All but three stayed white."""
    assert _bright(chromium, picture, "light", tmp_path) > 0.6
    assert 0.001 < _bright(chromium, picture, "dark", tmp_path) < 0.3, "letters are bright, and nothing else"


@pytest.mark.parametrize("name", ["peers.svg", "service-rates.svg"])
def test_all_letters_of_charts_have_a_dark_colour(name: str) -> None:
    """Labels of bars were black on a dark page."""
    text = (DOCS / name).read_text()
    colours = set(re.findall(r'<text[^>]*fill="([^"]+)"', text))
    assert colours
    assert {colour for colour in colours if f'[fill="{colour}"]' not in text} == set()
