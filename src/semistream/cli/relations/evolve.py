"""``semistream evolve``: adds, drops, renames and widens columns of a relation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from semistream.cli.console import out
from semistream.cli.path_arguments import RelationPath
from semistream.cli.relations.named_values import named_values

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["evolve"]


def evolve(
    path: RelationPath,
    add: Annotated[
        list[str] | None, typer.Option("--add", help="NAME=TYPE of a new column; repeatable.", show_default=False)
    ] = None,
    default: Annotated[
        list[str] | None,
        typer.Option(
            "--default",
            help="NAME=VALUE that existing rows have in a new column, instead of NULL; repeatable.",
            show_default=False,
        ),
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option("--drop", help="Column to remove; repeatable.", show_default=False)
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option("--rename", help="OLD=NEW name; repeatable.", show_default=False)
    ] = None,
    widen: Annotated[
        list[str] | None,
        typer.Option(
            "--widen", help="NAME=TYPE that holds all values, such as int64 for int32; repeatable.", show_default=False
        ),
    ] = None,
) -> None:
    """Change the columns, as a new version that writes no pages.

    Running queries keep the columns they started with. Key columns cannot change.
    """
    from semistream.cli.relations.table_files import parse_types
    from semistream.relation.evolving import ColumnChanges, commit_evolved

    added = parse_types(add, "--add")
    renamed = named_values("--rename", rename, "NEW", "name=title")
    defaults = _defaults(added, named_values("--default", default, "VALUE", "stock=0"))
    changes = ColumnChanges(added, drop or (), renamed, parse_types(widen, "--widen"), defaults)
    made = commit_evolved(path, changes)
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(made.schema.names, made.schema.types, strict=True))
    out.print(
        f"[green]Committed[/green] version {made.version} of {escape(str(path))}: {escape(columns)}.", soft_wrap=True
    )


def _defaults(added: Mapping[str, pa.DataType], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return defaults as values of their columns' types."""
    import pyarrow as pa

    values: dict[str, Any] = dict(texts)
    for name in texts.keys() & added.keys():
        try:
            values[name] = pa.array([texts[name]]).cast(added[name])[0]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueError(f"--default {name}={texts[name]} is not a value of type {added[name]}: {error}") from error
    return values
