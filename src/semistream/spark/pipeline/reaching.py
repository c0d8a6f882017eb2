"""Checks that directories, brokers and databases of a pipeline can be reached, before Spark starts."""

from __future__ import annotations

import glob
import os
import socket
from pathlib import Path

from semistream.core.errors import SemistreamError
from semistream.core.paths import is_address
from semistream.spark.monitoring.prometheus import PortTakenError, check_port
from semistream.spark.pipeline.document import Document, Place
from semistream.spark.pipeline.plan import PipelinePlan, SinkPlan, SourcePlan
from semistream.spark.sinks import DatabaseSink

__all__ = ["check_reachable"]

_SECONDS = 3.0
"""Timeout of a broker's answer, in seconds."""


def check_reachable(plan: PipelinePlan, document: Document) -> None:
    """Record what is missing, cannot be written, or does not answer. Nothing is created or changed."""
    if plan.source is not None:
        _try_source(plan.source, document)
    _try_folder(plan.checkpoint, ("checkpoint",), document)
    if plan.statistics.file is not None:
        _try_folder(plan.statistics.file.parent, ("statistics", "file"), document)
    if plan.statistics.port is not None:
        try:
            check_port(plan.statistics.port, "statistics")
        except PortTakenError as error:
            document.note(("statistics", "port"), str(error))
    for sink in (plan.sink, plan.dead_letters):
        if sink is not None:
            _try_sink(sink, document)


def _try_source(plan: SourcePlan, document: Document) -> None:
    if plan.format == "kafka":
        _try_brokers(plan.options.get("kafka.bootstrap.servers", ""), (*plan.place, "servers"), document)
    elif plan.path is not None and not is_address(plan.path) and not glob.glob(_spark_glob(plan.path)):
        document.note(
            (*plan.place, "path"), f"there is nothing at {plan.path}; create the directory in which files will arrive"
        )


def _spark_glob(path: str) -> str:
    """Return a pattern that finds at least the files of Spark's pattern, which also knows {a,b}."""
    return path if "{" not in path else path[: path.index("{")] + "*"


def _try_sink(plan: SinkPlan, document: Document) -> None:
    if plan.format == "kafka":
        _try_brokers(plan.options.get("kafka.bootstrap.servers", ""), (*plan.place, "servers"), document)
    elif plan.url is not None and plan.table is not None:
        try:
            database = DatabaseSink(plan.url, plan.table, key=plan.key, password=plan.password).database
            with database.connect():
                pass
        except SemistreamError as error:
            document.note((*plan.place, "url"), f"{error}; start it, or give another url")
    elif plan.path is not None and plan.format != "relation" and not is_address(plan.path):
        _try_folder(Path(plan.path), (*plan.place, "path"), document)


def _try_folder(path: Path | None, place: Place, document: Document) -> None:
    """Record an error if a path is not a directory, cannot be written, or cannot be created."""
    if path is None:
        return
    nearest = path
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        document.note(place, f"{path} cannot be a directory: {nearest} is a file; give another path, or remove it")
    elif not os.access(nearest, os.W_OK | os.X_OK):
        what = "" if nearest == path else f", so {path} cannot be made"
        document.note(
            place, f"{nearest} cannot be written by this user{what}; give another path, or grant access to it"
        )


def _try_brokers(servers: str, place: Place, document: Document) -> None:
    """Record an error if none of Kafka's servers answers; one is enough to find the others."""
    reasons: list[str] = []
    for server in filter(None, (part.strip() for part in servers.split(","))):
        host, _, port = server.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _SECONDS):
                return
        except ValueError:
            reasons.append(f"{server} is not HOST:PORT")
        except OSError as error:
            reasons.append(f"{server}: {error.strerror or error}")
    if reasons:
        document.note(place, f"no broker answers ({'; '.join(reasons)}); start one, or give other servers")
