"""``semistream algorithms``: lists the available joins."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from semistream.cli.console import out, print_json

__all__ = ["algorithm_rows", "algorithms", "markdown_table"]


def algorithm_rows() -> list[dict[str, Any]]:
    """Return the registry entry of each join: id, title, when to use it, whether it keeps to a memory budget."""
    from semistream.joins import algorithms, find

    joins = [find(name) for name in algorithms()]
    return [
        {
            "id": join.id,
            "title": join.title,
            "when": join.when,
            "bounded": join.bounded,
        }
        for join in joins
    ]


def markdown_table() -> str:
    """Return the registry as the table in the README; a test keeps the two equal."""
    rows = [f"| `{row['id']}` | {row['title']} |" for row in algorithm_rows()]
    return "\n".join(["| id | what it is |", "|---|---|", *rows])


def algorithms(
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of the README.")] = False,
) -> None:
    """List the joins of the registry."""
    from rich.table import Table

    rows = algorithm_rows()
    if json:
        print_json({"algorithms": rows})
        return
    if markdown:
        print(markdown_table())
        return
    table = Table(header_style="bold")
    table.add_column("id", style="cyan", no_wrap=True)
    table.add_column("what it is")
    table.add_column("when")
    for row in rows:
        table.add_row(
            row["id"],
            row["title"],
            row["when"],
        )
    out.print(table)
