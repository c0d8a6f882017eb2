"""Raw results: appended, found again, never overwritten."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from semistream_lab.experiments.measure.store import ResultsError, Store, code_version
from semistream_lab.experiments.spec import Point, Workload

POINT = Point(workload=Workload(rows=1000), algorithm="meshjoin", memory=100_000)


def test_digest_depends_on_everything() -> None:
    seen = {
        POINT.digest(),
        dataclasses.replace(POINT, memory=100_001).digest(),
        dataclasses.replace(POINT, options={"partition_pages": 3}).digest(),
        dataclasses.replace(POINT, workload=Workload(rows=1001)).digest(),
        dataclasses.replace(POINT, windows=3).digest(),
    }
    assert len(seen) == 5
    assert dataclasses.replace(POINT, options={"a": 1, "b": 2}).digest() == (
        dataclasses.replace(POINT, options={"b": 2, "a": 1}).digest()
    )


def test_results_come_back_with_what_they_were_measured_with(tmp_path: Path) -> None:
    store = Store(tmp_path / "results", "simulated", "test")
    assert store.results() == {}
    store.append(POINT, {"rate": 5.0}, 0.1)
    found = Store(tmp_path / "results", "simulated", "test").results()[POINT.digest()]
    assert found["rate"] == 5.0
    environment = found["environment"]
    assert environment["code"] == code_version()
    assert environment["constants"]["seek_seconds"] == 0.0085
    assert environment["machine"]["semistream"]
    assert environment["commit"]


def test_only_appended(tmp_path: Path) -> None:
    store = Store(tmp_path, "simulated", "test")
    store.append(POINT, {"rate": 5.0}, 0.1)
    before = store.path.read_bytes()
    Store(tmp_path, "simulated", "test").append(POINT, {"rate": 6.0}, 0.1)
    assert store.path.read_bytes().startswith(before)
    assert store.results()[POINT.digest()]["rate"] == 6.0  # the newest counts


def test_results_of_other_code_are_not_current(tmp_path: Path) -> None:
    store = Store(tmp_path, "simulated", "test")
    store.append(POINT, {"rate": 5.0}, 0.1)
    assert store.results(code_version())
    lines = [json.loads(line) for line in store.path.read_text().splitlines()]
    lines[0]["environment"]["code"] = "another"
    store.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert store.results(code_version()) == {}
    assert store.results()[POINT.digest()]["rate"] == 5.0


def test_a_line_cut_off_is_forgotten_and_a_broken_one_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path, "simulated", "test")
    store.append(POINT, {"rate": 5.0}, 0.1)
    whole = store.path.read_text()
    store.path.write_text(whole + '{"digest": "abc", "po')
    assert list(store.results()) == [POINT.digest()]
    store.path.write_text("nonsense\n" + whole)
    with pytest.raises(ResultsError, match="line 1"):
        store.results()
