"""``semistream algorithms``: the joins there are."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from semistream.cli.console import out, print_json

__all__ = ["WHEN", "algorithm_rows", "algorithms", "markdown_table"]


WHEN = {
    "oracle": "To say what is right, and how fast it could be: R must fit into memory.",
    "inlj": "As the bar to clear; or for a handful of tuples an hour.",
    "meshjoin": "A disk without random reads to speak of, no skew, and no hurry.",
    "r_meshjoin": "As MESHJOIN, when R grows.",
    "partitioned_join": "Where a tuple may wait for ever; else never: nothing bounds the wait for a rare key.",
    "hybridjoin": "Some skew, an index, and little memory. Short, and good to read first.",
    "x_hybridjoin": "Skew with frequent keys together in R, by age or by popularity.",
    "cmeshjoin": "Skew and a disk that only reads in sequence.",
    "cachejoin": "Skew with frequent keys anywhere in R.",
    "front+inlj": "Strong skew and a disk that reads quickly from anywhere.",
    "front+x_hybridjoin": "Frequent keys anywhere, and pages with many of them.",
    "p_cachejoin": "As CACHEJOIN, with a core to spare.",
    "op_cachejoin": "As P-CACHEJOIN, with a disk that is slower than probing.",
    "ssij": "Batches of many tuples with deadlines, frequent keys together in R, a disk that gains from planned reads.",
    "front+ssij": "As SSIJ, with frequent keys scattered over R.",
    "adaptivejoin": "If in doubt: its memory moves to where the stream gains most; results keep the stream's order.",
}
"""When to take which, in a line."""


def algorithm_rows() -> list[dict[str, Any]]:
    """Return what the registry says of each join: id, title, whether it keeps to a budget."""
    from semistream.joins import algorithms, find

    joins = [find(name) for name in algorithms()]
    return [
        {
            "id": join.id,
            "title": join.title,
            "bounded": join.bounded,
        }
        for join in joins
    ]


def markdown_table() -> str:
    """Return the registry as the README has it; a test keeps the two the same."""
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
            WHEN.get(row["id"], ""),
        )
    out.print(table)
