"""The laboratory's metadata agree with the product's, and its commands are found."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import typer

import semistream
import semistream_lab

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def test_versions_are_the_same() -> None:
    assert semistream_lab.__version__ == PROJECT["version"] == semistream.__version__
    assert PROJECT["dependencies"] == [f"semistream=={semistream.__version__}"]


def test_entry_points_name_commands() -> None:
    commands = PROJECT["entry-points"]["semistream.commands"]
    assert set(commands) == {"bench", "experiments"}
    for name, value in commands.items():
        assert isinstance(EntryPoint(name, value, "semistream.commands").load(), typer.Typer)
