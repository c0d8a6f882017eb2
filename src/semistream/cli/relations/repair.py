"""``semistream repair``: damaged files made whole again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from semistream.cli.console import errors, out
from semistream.cli.path_arguments import RelationPath
from semistream.core.paths import is_address

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from semistream.relation.stores.store_path import StorePath

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
    nulls: Annotated[
        list[str] | None,
        typer.Option("--null", help="Text that is NULL in CSV files; repeatable.", show_default=False),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Take rows that a page's checksum does not prove, if keys and counts fit.")
    ] = False,
) -> None:
    """Make all files of all versions whole again, from what remains of them, from a copy, or from the data.

    Every page is read. What is damaged is mended if a single bit is wrong, or made of other files, or taken from the
    source and compared with what is known of it. Without --trust nothing is written that is not proved, by its
    checksum or, of pages that have none left, such as of a file that was cut, by their keys and the number of rows:
    their values are then the source's. Queries that stopped at it go on when they are started again. What cannot be
    repaired is said, with exit code 2.
    """
    from semistream.relation.damage.repair import Repaired, RepairError
    from semistream.relation.damage.repair import repair as make_whole
    from semistream.relation.storage import manifest as manifests

    given = {source: _place(source) for source in sources or ()}
    copies = [place for place in given.values() if place is not None and manifests.versions(place)]
    data = [source for source, place in given.items() if place not in copies]

    def reader() -> pa.RecordBatchReader:
        from semistream.cli.relations.master import find_master
        from semistream.cli.relations.table_files import parse_types

        manifest = manifests.load(path)  # repaired by now, if it had to be
        known = dict(zip(manifest.schema.names, manifest.schema.types, strict=True))
        given = parse_types(types or [])
        return find_master(data, given, table, manifest.schema.names, known=known, nulls=nulls or ()).reader()

    if len(copies) > 1:
        raise typer.BadParameter(f"{len(copies)} copies were given; give one of them", param_hint="--from")

    def report(repaired: Sequence[Repaired]) -> None:
        for one in repaired:
            what = "all" if one.page < 0 else f"page {one.page}"
            how = "a new version made of the data" if one.proof == "data" else f"proved by {one.proof}"
            out.print(f"{what} of {escape(one.file)}: {one.rows:,} rows, {how}", soft_wrap=True)
        if repaired:
            out.print(f"[green]Repaired[/green] {len(repaired)} of them.")
        if doubtful := sum(one.proof == "keys and counts" for one in repaired):
            errors.print(
                f"[yellow]![/yellow] Of {doubtful:,} no checksum proves the values: they are as right as the source's.",
                soft_wrap=True,
            )

    try:
        repaired = make_whole(path, reader if data else None, copy=copies[0] if copies else None, trust=trust)
    except RepairError as error:
        report(error.repaired)
        raise
    report(repaired)
    if not repaired:
        out.print("Nothing is damaged.")


def _place(source: str) -> Path | StorePath | None:
    """Return where a copy of a relation can be: None for a database."""
    from semistream.relation.stores.object_store import SCHEMES
    from semistream.relation.stores.store_path import place_of

    if is_address(source) and source.partition(":")[0].lower() not in SCHEMES:
        return None
    return place_of(source, "source")
