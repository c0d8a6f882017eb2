"""``semistream repair``: restores damaged files."""

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

_NEW_VERSIONS = {
    "data": "a new version built from the data",
    "rows": "a new version with a secondary index sorted again from R's rows",
}
"""How a repair is described that made a new version."""


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
        typer.Option("--null", help="Text that means NULL in CSV files; repeatable.", show_default=False),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Accept rows that no page checksum proves, if keys and counts match.")
    ] = False,
) -> None:
    """Restore all files of all versions, from what remains of them, from a copy, or from the original data.

    Every page is read. A damaged page is corrected if a single bit is wrong, rebuilt from other files, or taken from
    the source and verified. Without --trust only verified pages are written. A page is verified by its checksum. If its
    checksum is lost, for example in a truncated file, it is verified by its keys and its number of rows; its values
    are then those of the source. Queries that stopped because of the damage continue when they are started again. Exit
    code 2 if something cannot be repaired.
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

        manifest = manifests.load(path)  # already repaired at this point if it was damaged
        known = dict(zip(manifest.schema.names, manifest.schema.types, strict=True))
        given = parse_types(types)
        return find_master(data, given, table, manifest.schema.names, known=known, nulls=nulls or ()).reader()

    if len(copies) > 1:
        raise typer.BadParameter(f"{len(copies)} copies were given; give only one", param_hint="--from")

    def report(repaired: Sequence[Repaired]) -> None:
        for one in repaired:
            what = "all" if one.page < 0 else f"page {one.page}"
            how = _NEW_VERSIONS.get(one.proof, f"proved by {one.proof}")
            out.print(f"{what} of {escape(one.file)}: {one.rows:,} rows, {how}", soft_wrap=True)
        if repaired:
            out.print(f"[green]Repaired[/green] {len(repaired)} damaged parts.")
        if doubtful := sum(one.proof == "keys and counts" for one in repaired):
            errors.print(
                f"[yellow]![/yellow] No checksum proves the values of {doubtful:,}: they are those of the source.",
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
    """Return the path or store address of a source, which may hold a copy of a relation; None for a database."""
    from semistream.relation.stores.object_store import SCHEMES
    from semistream.relation.stores.store_path import place_of

    if is_address(source) and source.partition(":")[0].lower() not in SCHEMES:
        return None
    return place_of(source, "source")
