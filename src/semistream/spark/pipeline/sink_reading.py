"""The tables ``[sink]`` and ``[dead_letters]`` of a pipeline file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from semistream.relation.databases import DatabaseAddress, DatabaseError
from semistream.relation.databases.address import has_password
from semistream.spark.pipeline.document import Document, Section
from semistream.spark.pipeline.plan import SinkPlan

__all__ = ["read_sink"]


def read_sink(
    document: Document, name: str, kinds: Sequence[str], address: Callable[[Section], str | None]
) -> SinkPlan | None:
    """Return the plan of the table; ``address`` reads its ``path``."""
    section = document.root.section(name, required=True)
    if section is None:
        return None
    kind = section.choice("format", kinds)
    columns = section.texts("columns")
    path = url = table = password = source = None
    partition_by: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    options: dict[str, str] = {}
    if kind in ("parquet", "delta"):
        path = address(section)
        partition_by = section.texts("partition_by")
    if kind == "kafka":
        key = section.texts("key")
        for setting, option in (("servers", "kafka.bootstrap.servers"), ("topic", "topic")):
            if (found := section.text(setting, required=True)) is not None:
                options[option] = found
    if kind == "relation":
        path = address(section)
        named = {"op": section.text("op", "op"), "order": section.text("order"), "at": section.text("at")}
        options = {name: column for name, column in named.items() if column is not None}
    if kind == "spark":
        source = section.text("source", required=True)
        path = address(section) if "path" in section else None
        partition_by = section.texts("partition_by")
    if kind in ("postgresql", "mariadb"):
        url, password = _database(document, section, kind)
        table = section.text("table", required=True)
        key = section.texts("key")
    elif kind != "relation":
        options |= section.options("options")
    if kind is None:  # the keys of an unknown kind cannot be checked
        return None
    section.finish()
    return SinkPlan(section.place, kind, path, url, table, key, password, partition_by, columns, options, source)


def _database(document: Document, section: Section, kind: str) -> tuple[str | None, str | None]:
    url = section.text("url", required=True)
    variable = section.text("password_env")
    password = None
    if variable is not None:
        password = document.environment.get(variable)
        if password is None:
            section.note(f"password_env names {variable}, which is not in the environment; set it", "password_env")
    if url is None:
        return None, password
    if has_password(url):
        section.note(
            'url contains a password, and others may read this file; put it into a variable: password_env = "NAME"',
            "url",
        )
    try:
        address = DatabaseAddress.parse(url, password, environment=document.environment)
    except DatabaseError as error:
        section.note(f"url: {error}", "url")
        return None, password
    if address.kind != kind:
        section.note(f"url is for {address.kind}, but format is {kind}; change one of them", "url")
    return url, address.password
