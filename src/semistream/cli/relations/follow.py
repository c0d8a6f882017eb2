"""``semistream follow``: keeps a relation equal to a Delta or Iceberg table."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from semistream.cli.console import out
from semistream.cli.path_arguments import RelationPath
from semistream.cli.relations.named_values import named_values

if TYPE_CHECKING:
    from semistream.relation.followed.follower import Lag, Step
    from semistream.relation.followed.lag_gauges import LagGauges

__all__ = ["follow", "step_line"]


def follow(
    table: Annotated[
        str,
        typer.Argument(
            help="Directory or address of a Delta table; with --catalog, namespace and name of an Iceberg table.",
            show_default=False,
        ),
    ],
    path: RelationPath,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", "-k", help="Key column, unique in the table; repeat it for several.", show_default=False),
    ] = None,
    catalog: Annotated[
        str | None,
        typer.Option("--catalog", help="Name of the Iceberg catalog in pyiceberg's configuration.", show_default=False),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            help="NAME=VALUE: a storage option of the Delta table, or a property of the catalog, such as "
            "uri=sqlite:////data/catalog.db; repeatable.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(help="Seconds between looks for new commits, until Ctrl-C. By default one.", show_default=False),
    ] = None,
    memory: Annotated[str, typer.Option(help="Memory budget for sorting and changed pages.")] = "512MB",
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build the relation again from the newest commit, as a new version.")
    ] = False,
    page_size: Annotated[str, typer.Option(help="Bytes of a page, for the first build.")] = "8KiB",
    fill: Annotated[float, typer.Option(help="Share of each page that is filled, for the first build.")] = 1.0,
    shards: Annotated[int, typer.Option(help="Number of parts, by hash of the key, for the first build.")] = 1,
    encoding: Annotated[
        str, typer.Option(help="auto packs columns where that saves bytes; plain does not. For the first build.")
    ] = "auto",
    port: Annotated[
        int | None,
        typer.Option(
            help="Serve the lag to Prometheus on this port of the loopback address, with --every; 0: any free port.",
            min=0, max=65535, show_default=False,
        ),
    ] = None,
) -> None:  # fmt: skip
    """Make a relation equal to a Delta or Iceberg table, and keep it equal.

    The relation is built from the newest commit, if it does not exist. Then each commit of the table becomes one
    version, which names the commit. A follow that was stopped or killed continues after the last version.
    """
    from semistream.core.arguments import check_at_least
    from semistream.relation.followed.follow import catch_up, keep_following
    from semistream.relation.followed.follower import Follower
    from semistream.relation.followed.lag_gauges import LagGauges

    if every is not None:
        check_at_least(0, every=every)
    elif port is not None:
        raise ValueError("--port serves the lag while the table is followed; give --every SECONDS too, or leave it out")
    follower = Follower(
        table, path, key, catalog=catalog, options=named_values("--option", options, "VALUE", "type=sql"),
        memory=memory, rebuild=rebuild, page_size=page_size, fill=fill, shards=shards, encoding=encoding,
    )  # fmt: skip

    def report(step: Step) -> None:
        out.print(step_line(step), soft_wrap=True)

    if every is None:
        if not catch_up(follower, report):
            out.print(f"{escape(str(path))} has all commits of {escape(table)}.", soft_wrap=True)
        return
    gauges = LagGauges()

    def lagging(lag: Lag) -> None:
        gauges.set(str(path), lag)

    with _served(gauges, port), _until_interrupted() as stop:
        keep_following(follower, every, stop, report, lagging)
    out.print("stopped; the next follow continues here")


def step_line(step: Step) -> str:
    """Return one line about a version."""
    from semistream.core.units import format_bytes

    what = (
        f"{step.rows:,} rows" if step.operation == "build" else f"{step.upserted:,} upserted, {step.deleted:,} deleted"
    )
    behind = f"; {step.lag.commits:,} commits behind ({step.lag.seconds:,.0f} s)" if step.lag.commits else ""
    return (
        f"[green]Version {step.version}[/green] is commit {escape(step.commit)}: {what}, "
        f"{format_bytes(step.bytes_written)} written in {step.seconds:.1f} s{behind}"
    )


@contextlib.contextmanager
def _served(gauges: LagGauges, port: int | None) -> Iterator[None]:
    if port is None:
        yield
        return
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        from semistream.core.errors import MissingExtraError

        raise MissingExtraError("prometheus-client", "spark") from None
    registry = CollectorRegistry()
    registry.register(gauges)
    server, thread = start_http_server(port, "127.0.0.1", registry)
    out.print(f"Lag at http://127.0.0.1:{server.server_port}/metrics")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def _until_interrupted() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set: the commit in progress is finished."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
