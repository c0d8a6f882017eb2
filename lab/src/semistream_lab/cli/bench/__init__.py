"""`semistream bench`: measure this machine and the joins on it. One file per command."""

from __future__ import annotations

import typer

from semistream_lab.cli.bench.device import device
from semistream_lab.cli.bench.joins import chart, joins
from semistream_lab.cli.bench.lookup import lookup
from semistream_lab.cli.bench.memory import memory
from semistream_lab.cli.bench.peers import peers
from semistream_lab.cli.bench.spark import spark
from semistream_lab.cli.bench.spark_versions import spark_versions
from semistream_lab.cli.bench.star import star
from semistream_lab.cli.bench.store import store

__all__ = ["app"]

app = typer.Typer(help="Measure this machine and the joins on it.", no_args_is_help=True)
for command in (device, joins, chart, memory, spark, star, store, peers, lookup, spark_versions):
    app.command()(command)
