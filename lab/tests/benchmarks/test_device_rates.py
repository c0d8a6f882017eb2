"""The device benchmark: whole and honest at a tiny size. Nothing here is timed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semistream.core.machine import describe_machine, file_system_of
from semistream_lab.benchmarks.device_rates import bench_device

pytestmark = pytest.mark.slow


def test_a_tiny_run_has_every_number_and_leaves_nothing_behind(tmp_path: Path) -> None:
    said: list[str] = []
    result = bench_device(tmp_path, "3MB", depth=4, rounds=1, progress=said.append)
    assert json.loads(json.dumps(result)) == result
    assert result["random_ratio"] == result["random"]["relation"] / result["random"]["raw"] > 0
    assert result["sequential_ratio"] == result["sequential"]["relation"] / result["sequential"]["raw"] > 0
    for part in ("random", "sequential"):
        raw = [rate for name, rate in result[part].items() if name.startswith("raw_")]
        assert result[part]["raw"] == max(raw), "raw must be the fastest raw way there is"
    assert result["settings"]["depth"] == 4
    assert result["settings"]["relation_bytes"] >= 3_000_000
    assert all(rate > 0 for rate in result["in_flight"].values())
    assert all(value > 0 for value in result["format"].values())
    assert len(said) >= 4
    assert not list(tmp_path.iterdir())


def test_larger_pages(tmp_path: Path) -> None:
    result = bench_device(tmp_path, "3MB", 65536, rounds=1, formats=False)
    assert result["settings"]["page_bytes"] == 65536
    assert "format" not in result


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give at least 10000"):
        bench_device(tmp_path, "1KB")
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        bench_device(tmp_path, "3MB", rounds=0)
    with pytest.raises(ValueError, match="unknown unit"):
        bench_device(tmp_path, "3 apples")


def test_the_machine_is_described_but_not_named(tmp_path: Path) -> None:
    import platform

    machine = describe_machine(tmp_path)
    assert machine["cores"]
    assert machine["cpu"]
    text = json.dumps(machine)
    assert str(tmp_path) not in text
    assert len(platform.node()) < 4 or platform.node() not in text


def test_file_systems() -> None:
    assert file_system_of(Path("/proc")) == "proc"
    assert file_system_of(Path("/proc/self/no/such/thing")) == "proc"
