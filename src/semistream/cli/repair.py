"""``semistream repair``: damaged pages made whole again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from semistream.cli.arguments import RelationPath
from semistream.cli.console import out
from semistream.core.paths import is_address, local_path

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["repair"]


def repair(
    path: RelationPath,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            help="A copy of the relation, or the data it was built from: files, a Delta table, a database. Repeatable.",
            show_default=False,
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", help="Table in the database: NAME or SCHEMA.NAME.", show_default=False)
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", help="NAME=TYPE of a CSV column, instead of R's; repeatable.", show_default=False),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Take rows that a page's checksum does not prove, if keys and counts fit.")
    ] = False,
) -> None:
    """Make damaged pages and indexes of all versions whole again, from a copy or from the data.

    Every page is read. What is damaged is taken from the source, compared with what is known of it, and written in its
    place; queries that stopped at it go on when they are started again.
    """
    from semistream.relation import manifest as manifests
    from semistream.relation.repair import repair as make_whole

    manifest = manifests.load(path)
    given = {source: None if is_address(source) else local_path(source) for source in sources or ()}
    copies = [place for place in given.values() if place is not None and manifests.versions(place)]
    data = [source for source, place in given.items() if place not in copies]

    def reader() -> pa.RecordBatchReader:
        from semistream.cli.master import find_master
        from semistream.cli.sources import parse_types

        known = dict(zip(manifest.schema.names, manifest.schema.types, strict=True)) | parse_types(types or [])
        return find_master(data, known, table, manifest.schema.names).reader()

    if len(copies) > 1:
        raise typer.BadParameter(f"{len(copies)} copies were given; give one of them", param_hint="--from")
    repaired = make_whole(path, reader if data else None, copy=copies[0] if copies else None, trust=trust)
    for one in repaired:
        what = "index" if one.page < 0 else f"page {one.page}"
        out.print(f"{what} of {one.file}: {one.rows:,} rows, proved by {one.proof}", soft_wrap=True)
    out.print(f"[green]Repaired[/green] {len(repaired)} of them." if repaired else "Nothing is damaged.")
