"""Commands of other installed packages: entry points of the group ``semistream.commands``.

An entry point names a Typer application. Its commands form a group with the name of the entry point::

    [project.entry-points."semistream.commands"]
    bench = "semistream_lab.cli.bench:app"

``bench`` and ``experiments`` come with semistream-lab. If it is not installed, both commands say what to install.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import typer

from semistream.core.errors import SemistreamError

__all__ = ["GROUP", "MissingCommandError", "add_found_commands"]

GROUP = "semistream.commands"

_LABORATORY = {
    "bench": "Measure this machine (needs semistream-lab).",
    "experiments": "The papers' experiments (needs semistream-lab).",
}
"""Commands of semistream-lab, with the help text shown if it is not installed."""


class MissingCommandError(SemistreamError, ImportError):
    """The package of a command is not installed, or cannot be imported."""


def add_found_commands(app: typer.Typer) -> None:
    """Add the commands of installed packages. A command that cannot be imported says so when it is called."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    for name, entry in sorted(found.items()):
        try:
            app.add_typer(entry.load(), name=name)
        except Exception as error:  # of any kind: the other commands must still work
            _add_refusal(app, name, f"From {entry.value}, which cannot be imported.", _broken(entry, error))
    for name, told in _LABORATORY.items():
        if name not in found:
            _add_refusal(app, name, told, _not_installed(name))


def _add_refusal(app: typer.Typer, name: str, told: str, error: MissingCommandError) -> None:
    def refuse() -> None:
        raise error

    takes_all = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(name, help=told, context_settings=takes_all)(refuse)


def _not_installed(name: str) -> MissingCommandError:
    return MissingCommandError(
        f"'semistream {name}' comes with semistream-lab, which is not installed; run: pip install semistream-lab, "
        "or in a checkout: pip install ./lab"
    )


def _broken(entry: EntryPoint, error: Exception) -> MissingCommandError:
    package = entry.dist.name if entry.dist else entry.module
    return MissingCommandError(
        f"'semistream {entry.name}' comes with {package}, which cannot be imported ({error}); "
        f"install {package} again or remove it"
    )
