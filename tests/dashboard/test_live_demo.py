"""The demo that goes on, in a real browser: a query runs, its numbers move, and each of its controls acts on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("starlette")
pytest.importorskip("playwright")
pytest.importorskip("duckdb")

from playwright.sync_api import expect

from browser import open_context, until
from semistream.dashboard import Dashboard
from semistream.dashboard.demo_controls import LiveDemo
from semistream.spark.demo.star_join import OURS, build_relations
from semistream.spark.demo.star_schema import DemoPlan, rehearse, write_masters
from semistream.spark.demo.warehouse_questions import loaded
from semistream.spark.monitoring.listening import StatisticsListener

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from pyspark.sql import SparkSession


@pytest.fixture
def show(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[Dashboard, Path]]:
    """A small demo at work."""
    plan = DemoPlan(rows=20_000, sales=50_000, shards=2, memory="25%")
    rehearse(plan, tmp_path)
    write_masters(plan, tmp_path)
    build_relations(plan, tmp_path).close()
    demo = LiveDemo(spark, plan, tmp_path, rate=1000)  # a burst of ten thousand, which is soon worked off
    page = Dashboard("demo", controls=demo.controls(), query=OURS)
    listener = StatisticsListener([page])
    spark.streams.addListener(listener)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            demo.run(page)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield page, tmp_path
    finally:
        demo.stop()
        thread.join(60)
        spark.streams.removeListener(listener)
        page.close()
        assert failed == []


@pytest.fixture
def page(chromium: Browser, show: tuple[Dashboard, Path]) -> Iterator[Page]:
    errors: list[str] = []
    context = open_context(chromium, viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    opened.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto(show[0].url)
    yield opened
    context.close()
    assert errors == []


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
def test_every_control_acts_on_the_running_query(page: Page, show: tuple[Dashboard, Path]) -> None:
    history = show[0].history
    newest = page.locator("#batches tbody th").first
    expect(newest).to_be_visible()

    def points() -> list[dict[str, Any]]:
        return history.points()

    def press(button: str, said: str) -> None:
        page.get_by_role("button", name=button).click()
        expect(page.locator("#said")).to_contain_text(said)

    def slide(slider: str, key: str, said: str) -> None:
        page.get_by_role("slider", name=slider).press(key)
        expect(page.locator("#said")).to_contain_text(said)

    slide("Skew", "Home", "exponent is 0 now")
    slide("Burst", "End", "10,000 sales per second")
    press("Change the hot keys", "frequent ones now")
    press("Kill a Python worker", "Killed Python worker")
    press("Update 1,000 products", "version 2 of R")
    before = points()[-1]
    slide("Memory", "End", "with 50 % of R")
    # history goes on over the restart, with the new memory and the new version
    until(page, lambda: points()[-1]["run"] != before["run"] and points()[-1]["joins"]["products"]["version"] == 2)
    runs = [point["run"] for point in points()]
    assert runs[0] == before["run"]
    numbers = [point["batch"] for point in points()]
    # but one that was done when the query was stopped, and not told of any more
    untold = {point["batch"] - 1 for point in points() if point["run"] != before["run"]}
    assert numbers == sorted(set(numbers))
    assert set(range(numbers[0], numbers[-1])) - set(numbers) <= {min(untold)}, "no micro-batch is left out"
    now = points()[-1]
    assert now["joins"]["products"]["memory"] > 1.9 * before["joins"]["products"]["memory"]
    until(page, lambda: max(point["rows"] for point in points()) >= 10_000)  # the burst, whenever it is taken in
    page.get_by_role("combobox", name="Join").select_option("products")
    expect(page.locator("#tiles")).to_contain_text("version 2")
    press("Query the warehouse", "below the charts")
    expect(page.locator("#answers h3")).to_have_count(5)
    assert loaded(show[1] / OURS)
