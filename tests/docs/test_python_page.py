"""Every block of the page on look-ups runs, with the package that it is about."""

from __future__ import annotations

import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "python.md").read_text()
BLOCKS = {
    found[1]: found[2]
    for found in re.finditer(r"^##? ([^\n]*)\n(?:(?!^##? ).)*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
}
FIRST = "Look up keys from Python, without Spark"
NEEDED = {"Dask": "dask", "Quix Streams": "quixstreams", "Kafka, exactly once": "confluent_kafka"}


def run(title: str, **replaced: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in (FIRST, title) if title != FIRST else (FIRST,):
        text = BLOCKS[block]
        for before, after in replaced.items():
            text = text.replace(before.replace("_", ":"), after)
        exec(compile(text, f"{block} (docs/how-to/python.md)", "exec"), names)
    return names


def test_every_block_is_known() -> None:
    assert set(BLOCKS) == {FIRST, "asyncio", "Polars", "DuckDB", *NEEDED}
    assert PAGE.count("```python") == len(BLOCKS)


@pytest.mark.parametrize("title", [title for title in BLOCKS if not title.startswith("Kafka")])
def test_blocks_run(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if title in NEEDED:
        pytest.importorskip(NEEDED[title])
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(
        1
    ) as thread:  # asyncio.run refuses a thread with an event loop, as Playwright's tests leave it
        names = thread.submit(run, title).result()
    names["lookups"].close()
    names["relation"].close()


def test_the_block_of_kafka_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kafka: Any) -> None:
    pytest.importorskip("confluent_kafka")
    kafka.send("sales", [f'{{"sale": {number}, "product": {number * 300}}}' for number in range(5)])
    monkeypatch.chdir(tmp_path)
    names = run("Kafka, exactly once", localhost_9092=kafka.servers)
    with sqlite3.connect("facts.db") as database:
        rows = database.execute("SELECT sale, name FROM facts ORDER BY sale").fetchall()
    assert rows == [(number, f"product {number * 300}" if number < 4 else None) for number in range(5)]
    names["relation"].close()
