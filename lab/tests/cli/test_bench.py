"""`semistream bench device` prints tables for people and JSON for programs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from semistream_lab.benchmarks import device_rates
from semistream_lab.cli.bench import app

pytestmark = pytest.mark.xdist_group("bench device")  # one run for all

SMALL = ["device", "--size", "3MB", "--rounds", "1", "--depth", "4"]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run, as JSON."""
    outcome = CliRunner().invoke(app, [*SMALL, "--json", "--path", str(tmp_path_factory.mktemp("device"))])
    assert outcome.exit_code == 0, outcome.output
    printed: dict[str, Any] = json.loads(outcome.stdout)
    return printed


@pytest.mark.slow
def test_json(result: dict[str, Any]) -> None:
    assert result["random_ratio"] > 0
    assert result["sequential_ratio"] > 0


def test_tables(result: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semistream.cli.console.out._width", 140)
    monkeypatch.setattr(device_rates, "bench_device", lambda *_, **__: result)
    outcome = CliRunner().invoke(app, SMALL)
    assert outcome.exit_code == 0, outcome.output
    for words in ("random pages", "sequential scan", "through the relation", "4 in flight", "Arrow IPC page"):
        assert words in outcome.output


def test_a_bad_size_is_explained() -> None:
    outcome = CliRunner().invoke(app, ["device", "--size", "3 apples"])
    assert isinstance(outcome.exception, ValueError)
    assert "unknown unit" in str(outcome.exception)
