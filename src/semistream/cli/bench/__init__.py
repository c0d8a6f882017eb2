"""`semistream bench`: numbers about this machine and the joins on it, a file for each command."""

from __future__ import annotations

import typer

from semistream.cli.bench.device import device
from semistream.cli.bench.joins import chart, joins
from semistream.cli.bench.memory import memory
from semistream.cli.bench.peers import peers
from semistream.cli.bench.spark import spark
from semistream.cli.bench.store import store

__all__ = ["app"]

app = typer.Typer(help="Measure this machine.", no_args_is_help=True)
for command in (device, joins, chart, memory, spark, store, peers):
    app.command()(command)
