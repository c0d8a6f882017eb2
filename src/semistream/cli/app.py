"""The commands of the command line, and how their errors are shown.

Commands import what they need when they run. ``semistream --help`` must not wait for Numba or for a JVM.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import semistream
from semistream.cli.algorithms import algorithms
from semistream.cli.console import COMPILING, debugging, errors, is_expected, print_error
from semistream.cli.demo import demo
from semistream.cli.found_commands import add_found_commands
from semistream.cli.init import init
from semistream.cli.relations.build import build
from semistream.cli.relations.evolve import evolve
from semistream.cli.relations.follow import follow
from semistream.cli.relations.index import index
from semistream.cli.relations.inspect import inspect
from semistream.cli.relations.look import head, query
from semistream.cli.relations.repair import repair
from semistream.cli.relations.versions import compact, delete, history, upsert, vacuum
from semistream.cli.run import run
from semistream.cli.tuning.plan import plan
from semistream.cli.tuning.tune import tune
from semistream.core.kernels import first_use

__all__ = ["app", "main"]

app = typer.Typer(
    name="semistream",
    help="Exact joins of a fast stream with a large relation on disk, in little memory.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(build)
app.command()(follow)
app.command()(inspect)
app.command()(head)
app.command()(query)
app.command()(init)
app.command()(run)
for command in (upsert, delete, evolve, compact, index, history, vacuum, repair):
    app.command()(command)
app.command()(algorithms)
app.command()(tune)
app.command()(plan)
add_found_commands(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"semistream {semistream.__version__}")
        raise typer.Exit()


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and Spark's log.")] = False,
) -> None:
    debugging.on = debug


def main() -> None:
    """Run the command line. An error is shown as one red message. The exit code is 2 if the user can fix it, else 1."""
    first_use.compiling.append(lambda: errors.print(f"[dim]{COMPILING}[/dim]"))
    try:
        app()
    except KeyboardInterrupt:  # for example while a JVM starts
        errors.print("stopped")
        sys.exit(130)
    except Exception as error:
        if debugging.on:
            raise
        print_error(error)
        sys.exit(2 if is_expected(error) else 1)
