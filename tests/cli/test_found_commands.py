"""Commands of other packages: found as entry points, and what is said where a package is missing or broken."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
import typer
from typer.testing import CliRunner, Result

from semistream.cli import found_commands
from semistream.cli.console import is_expected

theirs = typer.Typer(no_args_is_help=True)


@theirs.command()
def one() -> None:
    print("one of theirs")


@theirs.command()
def two() -> None:
    print("two of theirs")


def run(monkeypatch: pytest.MonkeyPatch, entries: dict[str, object], *arguments: str) -> Result:
    """Run a program whose only commands are those of these entry points; an exception stands for one that fails."""
    found = [EntryPoint(name, "theirs.commands:app", found_commands.GROUP) for name in entries]

    def load(entry: EntryPoint) -> object:
        loaded = entries[entry.name]
        if isinstance(loaded, Exception):
            raise loaded
        return loaded

    monkeypatch.setattr(found_commands, "entry_points", lambda group: found if group == found_commands.GROUP else [])
    monkeypatch.setattr(EntryPoint, "load", load)
    app = typer.Typer()
    app.command("own")(lambda: None)
    found_commands.add_found_commands(app)
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})


def test_commands_of_an_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, {"bench": theirs}, "bench", "two").output == "two of theirs\n"


@pytest.mark.parametrize("name", ["bench", "experiments"])
@pytest.mark.parametrize("arguments", [(), ("joins", "--rows", "3"), ("--help",)])
def test_without_the_laboratory_its_commands_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, arguments: tuple[str, ...]
) -> None:
    error = run(monkeypatch, {}, name, *arguments).exception
    assert isinstance(error, found_commands.MissingCommandError)
    assert is_expected(error)
    assert str(error) == (
        f"'semistream {name}' comes with semistream-lab, which is not installed; "
        "run: pip install semistream-lab, or in a checkout: pip install ./lab"
    )


def test_help_says_what_its_commands_need(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = run(monkeypatch, {}, "--help").output
    assert listed.count("(needs semistream-lab)") == 2


def test_a_broken_package_breaks_only_its_own_command(monkeypatch: pytest.MonkeyPatch) -> None:
    broken: dict[str, object] = {"bench": ImportError("no module named 'gone'")}
    assert run(monkeypatch, broken, "own").exit_code == 0
    error = run(monkeypatch, broken, "bench", "joins").exception
    assert isinstance(error, found_commands.MissingCommandError)
    assert "comes with theirs.commands, which cannot be imported (no module named 'gone')" in str(error)
