"""Puts the columns of R next to those of a table: what an adapter does with each batch."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from semistream.core.arguments import listed
from semistream.joins.interface.output import output_schema
from semistream.lookups.lookups import Lookups

__all__ = ["with_rows"]


def with_rows(
    table: pa.Table,
    lookups: Lookups,
    on: str | Sequence[str],
    columns: Sequence[str] | None = None,
    *,
    suffix: str = "_right",
) -> pa.Table:
    """Return a table with the columns of R, in the table's order; NULLs where R does not have the key.

    Parameters
    ----------
    table
        Rows to enrich.
    lookups
        Where to look up.
    on
        The table's key columns, in the order of R's key.
    columns
        R's columns, without the key; by default all.
    suffix
        Added to the names of R's columns that the table also has.

    Examples
    --------
    >>> import tempfile
    >>> from semistream import Relation
    >>> products = pa.table({"id": [1, 2], "name": ["apple", "fig"]})
    >>> sales = pa.table({"product": [2, 9], "pieces": [5, 6]})
    >>> with tempfile.TemporaryDirectory() as folder, Relation.build(products, f"{folder}/r", key="id") as relation:
    ...     with_rows(sales, relation.lookups("1MB"), on="product").to_pydict()
    {'product': [2, 9], 'pieces': [5, 6], 'name': ['fig', None]}
    """
    key = lookups.relation.key
    key.check_stream(table.schema, on, "table")
    rows = lookups.get(dict(zip(key.names, (table[name] for name in listed(on)), strict=True)), columns)
    schema = output_schema(table.schema, rows.schema, suffix)
    return pa.Table.from_arrays([*table.columns, *(pa.chunked_array([one]) for one in rows.columns)], schema=schema)
