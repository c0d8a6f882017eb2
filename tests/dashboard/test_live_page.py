"""The live page in a real browser: no error on its console, numbers that move, controls that act."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("starlette")
pytest.importorskip("playwright")

import uvicorn
from playwright.sync_api import expect

from browser import open_context, until
from made_batches import batch
from semistream.dashboard import Control, Dashboard
from semistream.spark.monitoring.prometheus import PortTakenError

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@dataclass
class Shown:
    """A dashboard, and what was done with its controls."""

    dashboard: Dashboard
    done: list[tuple[str, float | None]] = field(default_factory=list)


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    def act(name: str, value: float | None) -> str:
        if value == 1.5:
            raise ValueError("no such skew; give another")
        found.done.append((name, value))
        return f"{name} it is"

    controls = [
        Control("skew", "Skew", lambda value: act("skew", value), "Zipf", "range", 0.0, 2.0, 0.5, 1.0),
        Control("kill", "Kill a worker", lambda value: act("kill", value), "Done again"),
    ]
    history = tmp_path / "checkpoint-history.jsonl"
    with open(history, "w") as file:
        from semistream.dashboard.history import point_of

        file.writelines(json.dumps(point_of(batch(number, run="before"))) + "\n" for number in range(5))
    found = Shown(Dashboard("sales", 0, history=history, controls=controls))
    yield found
    found.dashboard.close()


@pytest.fixture
def page(chromium: Browser, shown: Shown) -> Iterator[Page]:
    errors: list[str] = []
    context = open_context(chromium, viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    opened.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    asked: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(shown.dashboard.url)
    opened.wait_for_selector("#batches tbody tr")
    yield opened
    context.close()
    assert errors == []
    assert asked
    assert all(url.startswith((shown.dashboard.url, "data:")) for url in asked), "nothing comes from the network"


def test_numbers_move_and_choices_choose(page: Page, shown: Shown) -> None:
    assert page.locator("#batches tbody tr").count() == 5, "the history of the run before"
    for number in range(5, 9):
        shown.dashboard.add(batch(number, 2000, version=2))
    expect(page.locator("#batches tbody th").first).to_have_text("8")
    tiles = page.locator("#tiles").inner_text()
    assert "20K rows/s" in tiles
    assert "76 %" in tiles, "of the rows with a key"
    assert "version 2" in tiles
    assert page.locator("#charts figure").count() == 6
    assert page.locator("#shards tbody tr").count() == 2
    assert page.locator("#missing tbody tr").first.inner_text().split("\t") == [
        "<4711>",
        "products",
        "at least 20",
        "2",
    ]
    page.get_by_role("combobox", name="Shard").select_option("1")
    expect(page.locator("#shards tbody tr")).to_have_count(1)
    page.get_by_role("combobox", name="Join").select_option("products")
    assert "products" in page.locator("#charts").inner_text()
    # paused, the page stands still; then it has what came meanwhile
    page.get_by_role("button", name="Pause").click()
    shown.dashboard.add(batch(9, 2000))
    page.wait_for_timeout(300)
    assert page.locator("#batches tbody th").first.inner_text() == "8"
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#batches tbody th").first).to_have_text("9")
    # a canvas that shows something
    drawn = "[...document.querySelector('canvas').getContext('2d').getImageData(0, 0, 300, 150).data].some(Boolean)"
    assert page.evaluate(drawn)


def test_an_idle_query_shows_the_last_known_memory_and_ratio(page: Page, shown: Shown) -> None:
    """A batch without rows has no counters; the page showed dashes."""
    shown.dashboard.add(batch(5))
    idle = batch(6, 0, parked=7)
    idle["joins"] = {"products": {"tasks": 0, "parked": idle["joins"]["products"]["parked"]}}
    shown.dashboard.add(idle)
    expect(page.locator("#batches tbody th").first).to_have_text("6")
    tiles = {line[0]: line[1:] for line in (box.split("\n") for box in page.locator("#tiles > div").all_inner_texts())}
    assert tiles["Memory"] == ["2.0 KB", "of 4.0 KB; R version 1, batch 5"]
    assert tiles["Answered from memory"][0] == "76 %"


def test_keys_that_an_update_may_have_added_are_not_listed_as_missing(page: Page, shown: Shown) -> None:
    expect(page.locator("#missing tbody tr")).to_have_count(2)
    updated = batch(5, version=2)
    updated["joins"]["products"]["missing"] = {"-1": 3}
    shown.dashboard.add(updated)
    expect(page.locator("#missing tbody tr")).to_have_count(1)
    assert page.locator("#missing tbody tr").inner_text().split("\t") == ["-1", "products", "at least 3", "2"]
    updated = batch(6, version=3)
    updated["joins"]["products"]["missing"] = {}
    shown.dashboard.add(updated)
    expect(page.locator("#absent")).to_be_hidden()


_SLOW_TO_LOAD = """
    window.seen = 0;
    const load = window.fetch;
    window.fetch = async (...what) => {
      const answer = await load(...what);
      await new Promise((goOn) => { window.goOn = goOn; });
      return answer;
    };
    window.EventSource = class extends EventSource {
      constructor(...what) { super(...what); this.addEventListener("point", () => { window.seen += 1; }); }
    };
"""


def test_what_is_told_while_the_page_loads_is_not_lost(chromium: Browser, shown: Shown) -> None:
    """What it had loaded took the place of what it had heard meanwhile."""
    context = open_context(chromium)
    opened = context.new_page()
    opened.add_init_script(_SLOW_TO_LOAD)
    shown.dashboard.tell("ratio", {"ours": 300.0, "theirs": 100.0, "note": "before"})
    opened.goto(shown.dashboard.url)
    until(opened, lambda: opened.evaluate("window.goOn !== undefined"))
    shown.dashboard.tell("ratio", {"ours": 400.0, "theirs": 100.0, "note": "meanwhile"})
    by_another = urllib.request.Request(
        shown.dashboard.url.rstrip("/") + "/controls/skew", b'{"value": 0.5}', {"X-Semistream": "page"}
    )
    urllib.request.urlopen(by_another, timeout=60).close()
    shown.dashboard.add(batch(5))
    until(opened, lambda: opened.evaluate("window.seen") == 1)
    opened.evaluate("window.goOn()")
    expect(opened.locator("#batches tbody tr")).to_have_count(6)
    expect(opened.locator("#pitch")).to_contain_text("4.0 ×")
    expect(opened.get_by_role("slider", name="Skew")).to_have_value("0.5")
    context.close()


def test_controls_act_and_say_what_is_wrong(page: Page, shown: Shown) -> None:
    slider = page.get_by_role("slider", name="Skew")
    slider.focus()
    slider.press("ArrowLeft")
    expect(page.locator("#said")).to_have_text("skew it is")
    page.get_by_role("button", name="Kill a worker").press("Enter")
    expect(page.locator("#said")).to_have_text("kill it is")
    # another page shows what was done on this one, and so does this one when it is loaded again
    other = page.context.new_page()
    other.goto(shown.dashboard.url)
    expect(other.get_by_role("slider", name="Skew")).to_have_value("0.5")
    slider.press("End")
    expect(other.get_by_role("slider", name="Skew")).to_have_value("2")
    expect(other.locator("#said")).to_have_text("skew it is")
    other.close()
    assert shown.done == [("skew", 0.5), ("kill", None), ("skew", 2.0)]
    shown.dashboard.tell("ratio", {"ours": None, "theirs": None, "note": "too early"})
    expect(page.locator("#pitch")).to_have_text("too early")
    shown.dashboard.tell("ratio", {"ours": 300.0, "theirs": 100.0, "note": "as many"})
    shown.dashboard.tell("answers", [{"question": "Who?", "rows": [["a", 3, "3"], ["b", 1, "1"]]}])
    expect(page.locator("#pitch")).to_contain_text("3.0 × faster")
    shown.dashboard.tell("ratio", {"ours": 0.5, "theirs": 2.0, "note": "sooner", "seconds": True})
    expect(page.locator("#pitch")).to_contain_text("4.0 × faster")
    expect(page.locator("#pitch")).to_contain_text("500 ms")
    shown.dashboard.tell("ratio", {"ours": 6.0, "theirs": 2.0, "note": "later", "seconds": True})
    expect(page.locator("#pitch")).to_contain_text("3.0 × slower")
    shown.dashboard.tell("ratio", {"ours": 2.04, "theirs": 2.0, "note": "equal", "seconds": True})
    expect(page.locator("#pitch")).to_contain_text("About as fast")
    expect(page.locator("#pitch")).not_to_contain_text("×")
    assert "Who?" in page.locator("#answers").inner_text()


def test_it_reads_on_a_phone_in_the_dark_and_by_keyboard(chromium: Browser, shown: Shown) -> None:
    context = open_context(chromium, viewport={"width": 390, "height": 844}, color_scheme="dark")
    opened = context.new_page()
    opened.goto(shown.dashboard.url)
    opened.wait_for_selector("#batches tbody tr")
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390, "nothing sticks out"
    assert opened.evaluate("document.documentElement.dataset.theme") == "dark"
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.textContent") == "Skip to content"
    unnamed = """[...document.querySelectorAll('button, select, input, meter')].filter(
        (one) => !(one.labels?.length || one.textContent.trim() || one.ariaLabel)).length"""
    assert opened.evaluate(unnamed) == 0, "a screen reader has a name for everything"
    contrast = opened.evaluate(CONTRAST)
    opened.get_by_role("button", name="Switch between light and dark").click()
    assert opened.evaluate("document.documentElement.dataset.theme") == "light"
    assert min(contrast, opened.evaluate(CONTRAST)) >= 4.5
    context.close()


CONTRAST = """() => {
  const light = (text) => {
    const parts = text.match(/[0-9.]+/g).slice(0, 3).map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const back = light(getComputedStyle(document.querySelector('.tiles > div')).backgroundColor);
  return Math.min(...[...document.querySelectorAll('dt, dd b, dd span')].map((one) => {
    const front = light(getComputedStyle(one).color);
    return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
  }));
}"""


def test_only_the_page_itself_is_served(shown: Shown) -> None:
    """Neither another host's name, which its pages could be given, nor a form of another site."""
    url = shown.dashboard.url

    def status(path: str, headers: dict[str, str], body: bytes | None = None) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(urllib.request.Request(url + path, body, headers), timeout=60) as answer:
                return answer.status, answer.headers["Content-Security-Policy"]
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    assert status("/", {})[0] == 200
    assert "default-src 'self'" in status("/data", {})[1]
    assert status("/data", {"Host": "evil.example"})[0] == 400
    assert status("/controls/kill", {}, b'{"value": null}')[0] == 403
    assert status("/controls/nothing", {"X-Semistream": "page"}, b"{}")[0] == 404
    code, text = status("/controls/skew", {"X-Semistream": "page"}, b'{"value": 1.5}')
    assert (code, json.loads(text)) == (400, {"error": "no such skew; give another"})
    assert "between 0 and 2" in status("/controls/skew", {"X-Semistream": "page"}, b'{"value": 7}')[1]
    assert shown.done == []
    with pytest.raises(PortTakenError, match="cannot be used for the page"):
        Dashboard("other", int(url.rpartition(":")[2]))


@pytest.mark.parametrize(
    "body",
    [b"[1]", b"null", b"1", b'"value"', b"", b"{", b"\xff", b"[" * 100_000, b'{"value":' * 100_000, b'{"value": [1]}',
     b'{"value": null}', b'{"value": true}', b'{"value": "1"}', b"{}", b'{"value": NaN}',
     b'{"value": 1' + b"0" * 400 + b"}"],
    ids=lambda body: body[:20].decode(errors="replace"),
)  # fmt: skip
def test_a_body_that_says_nothing_is_refused_with_the_reason(shown: Shown, body: bytes) -> None:
    request = urllib.request.Request(shown.dashboard.url + "/controls/skew", body, {"X-Semistream": "page"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    told = json.loads(refused.value.read())["error"]
    assert refused.value.code == 400
    assert "JSON object" in told or "needs a number" in told or "between 0 and 2" in told
    assert len(told) < 200
    assert shown.done == []


def test_no_other_page_may_frame_it(shown: Shown) -> None:
    """Another site could lay its own page over the controls, and have a visitor click them."""
    for path in ("/", "/data", "/static/dashboard.js", "/nothing"):
        try:
            headers = urllib.request.urlopen(shown.dashboard.url + path, timeout=60).headers
        except urllib.error.HTTPError as error:
            headers = error.headers
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Frame-Options"] == "DENY"


def test_who_asks_early_waits_and_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is told before the thread that serves it has begun."""
    run = uvicorn.Server.run

    def late(server: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
        time.sleep(0.3)
        run(server, sockets)

    monkeypatch.setattr(uvicorn.Server, "run", late)
    page = Dashboard("sales", 0)
    try:
        with urllib.request.urlopen(page.url, timeout=60) as answer:
            assert answer.status == 200
    finally:
        page.close()
