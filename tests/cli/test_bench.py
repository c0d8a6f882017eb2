"""`semistream bench device` prints tables for people and JSON for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from semistream.cli.bench import app

SMALL = ["device", "--size", "3MB", "--rounds", "1", "--depth", "4"]


def test_json(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(app, [*SMALL, "--json", "--path", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.output
    result = json.loads(outcome.stdout)
    assert result["random_ratio"] > 0
    assert result["sequential_ratio"] > 0


def test_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semistream.cli.console.out._width", 140)
    outcome = CliRunner().invoke(app, [*SMALL, "--path", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.output
    for words in ("random pages", "sequential scan", "through the relation", "4 in flight", "Arrow IPC page"):
        assert words in outcome.output


def test_a_bad_size_is_explained() -> None:
    outcome = CliRunner().invoke(app, ["device", "--size", "3 apples"])
    assert isinstance(outcome.exception, ValueError)
    assert "unknown unit" in str(outcome.exception)
