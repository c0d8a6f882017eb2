"""The rows of one key, as ``semistream history RELATION KEY`` shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from semistream.cli.console import out, print_json
from semistream.core.value_texts import value_texts

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

__all__ = ["show_key"]


def show_key(path: Path, key: list[str], *, as_json: bool) -> None:
    """Print all rows of a key, given as texts, one for each key column; in a history, in the order of time."""
    from semistream.relation.relation import Relation

    with Relation.open(path) as relation:
        rows = _rows_of(relation, key)
        if as_json:
            texts = {field.name: value_texts(rows.column(field.name)) for field in rows.schema}
            print_json([dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)])
            return
        times = relation.stored.time_columns
    table = Table(title=escape(f"{path}: {', '.join(key)}"), title_justify="left")
    names = [*times, *(name for name in rows.schema.names if name not in times)]
    for name in names:
        table.add_column(escape(name))
    texts_of = [value_texts(rows.column(name)) for name in names]
    for row in zip(*texts_of, strict=True):
        table.add_row(*("–" if text is None else escape(text) for text in row))
    out.print(table if rows.num_rows else f"The relation has no row of {escape(', '.join(key))}.")


def _rows_of(relation: Any, key: list[str]) -> pa.RecordBatch:
    import pyarrow as pa

    names, kinds = relation.key.names, relation.key.types
    if len(key) != len(names):
        raise ValueError(f"the key has {len(names)} columns, {', '.join(names)}, but {len(key)} values are given")
    try:
        columns = [pa.array([text]).cast(kind) for text, kind in zip(key, kinds, strict=True)]
    except pa.ArrowException as error:
        listed = ", ".join(f"{name} ({kind})" for name, kind in zip(names, kinds, strict=True))
        raise ValueError(f"{', '.join(key)} cannot be a key of {listed}: {error}") from None
    found = relation.lookup(pa.record_batch(columns, names=list(names)), many=True)
    values = {name: found.column(name).flatten() for name in found.schema.names}
    rows = len(next(iter(values.values()))) if values else 0
    keys = {name: column.take(pa.array([0] * rows, pa.int64())) for name, column in zip(names, columns, strict=True)}
    return pa.record_batch({field.name: {**keys, **values}[field.name] for field in relation.schema})
