"""``semistream head`` and ``semistream query``: show rows of a relation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from semistream.cli.console import out
from semistream.cli.path_arguments import RelationPath
from semistream.core.errors import MissingExtraError, SemistreamError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["head", "query"]

_HELD = 1 << 30
"""Bytes; a smaller relation is held in memory while it is queried."""
_BATCH_ROWS = 1 << 16
_Version = Annotated[int | None, typer.Option(help="Which version; the newest by default.")]


class QueryError(SemistreamError, ValueError):
    """DuckDB cannot run the query."""


def head(
    path: RelationPath,
    rows: Annotated[int, typer.Option("-n", "--rows", help="How many rows.", min=1)] = 10,
    version: _Version = None,
) -> None:
    """Show the first rows of a relation, in the order of its pages."""
    from semistream.relation.relation import Relation

    with Relation.open(path, version=version) as relation:
        out.print(_shown(_first(relation.to_batches(), relation.schema, rows)))
        out.print(f"{min(rows, relation.row_count):,} of {relation.row_count:,} rows")


def query(
    path: RelationPath,
    sql: Annotated[
        str, typer.Argument(help="SQL query; the relation is called [bold]r[/bold].", show_default=False)
    ] = "SELECT * FROM r LIMIT 10",
    version: _Version = None,
    rows: Annotated[int, typer.Option(help="Maximum number of rows shown.", min=1)] = 100,
) -> None:
    """Query a relation by SQL with DuckDB. All pages are read.

    For example: semistream query products "SELECT category, count(*) FROM r GROUP BY ALL"
    """
    try:
        import duckdb
    except ImportError:
        raise MissingExtraError("duckdb", "query") from None
    import pyarrow as pa

    from semistream.relation.relation import Relation

    with Relation.open(path, version=version) as relation, duckdb.connect() as engine:
        rows_of_r = pa.RecordBatchReader.from_batches(relation.schema, relation.to_batches())
        # a reader can be consumed only once, and a query may use r twice
        engine.register("r", rows_of_r.read_all() if relation.nbytes < _HELD else rows_of_r)
        try:
            answer: Any = engine.sql(sql)
            if answer is None:  # a statement without a result, such as SET
                return
            reader = answer.to_arrow_reader(min(rows, _BATCH_ROWS))
            found = _first(reader, reader.schema, rows + 1)
        except duckdb.Error as error:
            raise QueryError(f"{str(error).splitlines()[0]}; the relation is called r: {', '.join(relation.schema.names)}") from None  # fmt: skip  # noqa: E501
        out.print(_shown(found[:rows]))
        if found.num_rows > rows:
            out.print(f"the first {rows:,} rows; --rows shows more")


def _first(batches: object, schema: pa.Schema, rows: int) -> pa.Table:
    import pyarrow as pa

    taken: list[pa.RecordBatch] = []
    for batch in batches:  # type: ignore[attr-defined]
        taken.append(batch[: rows - sum(part.num_rows for part in taken)])
        if sum(part.num_rows for part in taken) >= rows:
            break
    return pa.Table.from_batches(taken, schema)


def _shown(found: pa.Table) -> Table:
    import pyarrow as pa

    from semistream.core.value_texts import value_texts

    table = Table(show_edge=False, pad_edge=False)
    for part in found.schema:
        number = pa.types.is_integer(part.type) or pa.types.is_floating(part.type) or pa.types.is_decimal(part.type)
        table.add_column(escape(part.name), justify="right" if number else "left", overflow="fold")
    for row in zip(*(value_texts(column) for column in found.columns), strict=True):
        table.add_row(*("[dim]NULL[/dim]" if text is None else escape(text) for text in row))
    return table
