"""A line for each micro-batch: columns on a screen, sentences elsewhere."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from rich.console import Console

from made_batches import batch
from semistream.cli.batch_lines import BatchLines


def lines(terminal: bool, *batches: dict[str, Any], letters: bool = False) -> list[str]:
    joins = [SimpleNamespace(name="products")]
    plan: Any = SimpleNamespace(joins=joins, trigger="100 milliseconds", has_dead_letters=letters)
    screen = io.StringIO()
    report = BatchLines(plan, Console(file=screen, force_terminal=terminal, width=200, color_system=None))
    for one in batches:
        report.add(one)
    return screen.getvalue().splitlines()


def test_sentences() -> None:
    first, second = lines(False, batch(0), batch(1, version=3, parked=12))
    assert first == (
        "batch 0: 1,000 rows, 20 k rows/s, backlog 70, 0.10 s; products: 76% from memory, 124 pages read, "
        "90 without a match, 10 with a NULL key, version 1"
    )
    assert "0.11 s, longer than the trigger interval of 0.1 s; products" in second
    assert "12 parked, 1 found late, 2 expired, version 3" in second
    assert "0.10 s, 3 dead letters; products" in lines(False, batch(0), letters=True)[0]


def test_columns() -> None:
    shown = lines(True, *(batch(number, version=2) for number in range(31)), batch(31, rows=0) | {"dead": 0})
    assert len(shown) == 31 + 2 * 2, "headings come again, and micro-batches without rows do not"
    assert shown[0].split() == ["│", "products"]
    assert shown[1].split() == [
        "batch", "rows", "rows/s", "backlog", "seconds", "│", "memory", "pages", "no", "match", "NULL", "parked",
        "late", "v",
    ]  # fmt: skip
    assert shown[4].split()[:6] == ["2", "1,000", "20", "k", "70", "0.12!"]
    assert shown[4].index("│") == shown[1].index("│")
    assert shown[4].split()[-5:] == ["90", "10", "–", "–", "2"]
    above, headings, first = lines(True, batch(0), letters=True)
    assert headings.split()[5] == "dead"
    assert first.split()[6] == "3"
    assert above.index("│") == headings.index("│") == first.index("│")


def test_parked_rows_that_were_found_late_are_told_in_the_batch_that_found_them() -> None:
    parked = {"waiting": 12, "found_late": 3, "expired": 2}
    found = batch(5, parked=12)
    found["joins"]["products"]["parked"] = parked
    assert "12 parked, 3 found late, 2 expired, version 1" in lines(False, found)[0]
    assert lines(True, found)[2].split()[-3:] == ["12", "3", "1"]
    none_new = batch(6, rows=0) | {"dead": 0}
    none_new["joins"]["products"]["parked"] = parked
    assert len(lines(False, none_new)) == 1, "no new rows, but parked ones were found"
    none_new["joins"]["products"]["parked"] = {"waiting": 12, "found_late": 0, "expired": 0}
    assert lines(False, none_new) == []
