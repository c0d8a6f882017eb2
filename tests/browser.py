"""A real browser for tests: Debian's Chromium, driven by Playwright; tests that find none are skipped and say so."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page


PATIENCE = 240
"""Seconds that a page is waited for: nothing is timed here, and machines that run tests are shared."""


def open_context(browser: Browser, **options: Any) -> BrowserContext:
    """Return a fresh profile in which pages are waited for with patience."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE * 1000)
    return context


def until(page: Page, holds: Callable[[], Any]) -> None:
    """Wait until something holds, while the page goes on."""
    for _ in range(10 * PATIENCE):
        if holds():
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"{PATIENCE} seconds were not enough")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Chromium without a window."""
    playwright = pytest.importorskip("playwright.sync_api")
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    playwright.expect.set_options(timeout=PATIENCE * 1000)
    with playwright.sync_playwright() as driver:
        # in a container, and as root, Chromium's own sandbox does not start
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"], timeout=PATIENCE * 1000)
        yield browser
        browser.close()
