"""``semistream index``: adds a secondary index to a relation, or removes one."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from semistream.cli.console import out
from semistream.cli.path_arguments import RelationPath

__all__ = ["index"]


def index(
    path: RelationPath,
    by: Annotated[
        list[str], typer.Option("--by", help="Column of the index; repeat it for several.", show_default=False)
    ],
    drop: Annotated[bool, typer.Option("--drop", help="Remove the index in a new version.")] = False,
) -> None:
    """Add a secondary index as a new version: a copy of the rows in the order of other columns than the key.

    The relation can then be joined on these columns (by = … in a pipeline file). Every later version keeps the index in
    step, which doubles what an update writes. Without the index, older versions stay as they are.
    """
    from semistream.relation.committing import commit_index, commit_without_index

    made = (commit_without_index if drop else commit_index)(path, by)
    indexes = ", ".join(" and ".join(one.key) for one in made.indexes) or "none"
    out.print(
        f"[green]Committed[/green] version {made.version} of {escape(str(path))}: {made.rows:,} rows; "
        f"secondary indexes: {escape(indexes)}.",
        soft_wrap=True,
    )
