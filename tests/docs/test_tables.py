"""Tables of the results pages are those of the raw results."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "_site" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_have_the_tables_of_the_raw_results(tables: ModuleType) -> None:
    stale = [page.name for page in tables.pages() if tables.filled(page.read_text()) != page.read_text()]
    assert stale == [], "run: python docs/_site/tables.py"


def test_every_table_is_on_a_page(tables: ModuleType) -> None:
    marked = {name for page in tables.pages() for name in re.findall(r"<!-- table: ([\w-]+) -->", page.read_text())}
    assert marked == set(tables.TABLES)


def test_every_result_file_is_behind_a_page(tables: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    read, used = tables._read, set()
    monkeypatch.setattr(tables, "_read", lambda name: used.add(f"{name}.json") or read(name))
    for table in tables.TABLES.values():
        table()
    text = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    stored = {path.name for path in (ROOT / "docs" / "results").glob("*.json*")}
    assert {name for name in stored - used if name not in text} == set()
