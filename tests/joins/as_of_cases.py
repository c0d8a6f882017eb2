"""Random histories and facts for joins as of a time, and DuckDB's answers to them."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

UNITS = ["s", "ms", "us", "ns"]


def history(
    random: np.random.Generator,
    keys: int,
    versions: int,
    kind: pa.DataType,
    *,
    ends: bool = True,
    texts: bool = True,
    gap: int = 50,
) -> pa.Table:
    """Return rows of ``keys`` keys with up to ``versions`` versions each, some with gaps and open ends, shuffled."""
    counts = random.integers(1, versions + 1, keys)
    key = np.repeat(np.arange(keys) * 3, counts)
    steps = random.integers(1, gap, key.size) * 2
    begins = np.concatenate([np.cumsum(part) for part in np.split(steps, np.cumsum(counts)[:-1])])
    last = np.append(key[1:] != key[:-1], True)
    until = np.append(begins[1:], 0)
    until = np.where(random.random(key.size) < 0.3, begins + 1, until)  # a gap
    until = np.where(last, begins + random.integers(1, gap + 10, key.size), until)
    is_open = random.random(key.size) < np.where(last, 0.6, 0.1)
    columns: dict[str, Any] = {"id": key, "since": times(begins, kind), "until": times(until, kind, is_open)}
    columns["price"] = pa.array(np.arange(key.size))
    if texts:
        columns["name"] = pa.array([None if i % 7 == 3 else f"v{i}" * (i % 5) for i in range(key.size)])
    table = pa.table(columns)
    table = table if ends else table.drop_columns(["until"])
    return table.take(pa.array(random.permutation(table.num_rows)))


def times(values: Any, kind: pa.DataType, null: Any = None) -> pa.Array:
    """Return numbers as times of a type; dates and timestamps count from 1970."""
    array = pa.array(np.asarray(values), pa.int64(), mask=null)
    if pa.types.is_date64(kind):
        return pa.array(np.asarray(values) * 86_400_000, pa.int64(), mask=null).cast(kind)
    return array.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else array.cast(kind)


def facts(random: np.random.Generator, rows: int, keys: int, most: int, kind: pa.DataType) -> pa.RecordBatch:
    """Return facts, some with a NULL key or time, with an unknown key, or before all versions."""
    ids = pa.array(random.integers(-3, keys * 3 + 3, rows), mask=random.random(rows) < 0.03)
    when = times(random.integers(0, most, rows), kind, random.random(rows) < 0.03)
    return pa.record_batch({"fact": pa.array(np.arange(rows)), "product": ids, "at": when})


def answers(table: pa.Table, batch: pa.RecordBatch, on: dict[str, str], *, how: str = "left") -> pa.Table:
    """Return DuckDB's answers: `ASOF LEFT JOIN`, without rows that have ended."""
    facts, rows = pa.Table.from_batches([batch]), table
    values = [name for name in table.schema.names if name not in on.values()]
    equal = " AND ".join(f's."{ours}" = r."{theirs}"' for ours, theirs in on.items())
    ended = 's."at" < r."until" OR r."until" IS NULL' if "until" in values else "true"
    shown = ", ".join(f'CASE WHEN {ended} THEN r."{name}" END AS "{name}"' for name in values)
    query = f'SELECT s.*, {shown} FROM facts s ASOF LEFT JOIN rows r ON {equal} AND s."at" >= r."since"'
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("facts", facts)
    connection.register("rows", rows)
    found = connection.execute(f"SELECT * FROM ({query}) ORDER BY fact").to_arrow_table()
    return found if how == "left" else found.filter(found["since"].is_valid())


def as_lists(table: pa.Table) -> dict[str, list[Any]]:
    """Return the values of a table in the order of its facts, with times as numbers of nanoseconds."""
    table = table.sort_by("fact")
    plain = {}
    for name in table.schema.names:
        column = table[name]
        if pa.types.is_timestamp(column.type):
            unit = 10 ** (9 - 3 * UNITS.index(column.type.unit))
            plain[name] = [None if tick is None else tick * unit for tick in column.cast(pa.int64()).to_pylist()]
        elif pa.types.is_date(column.type):
            plain[name] = column.cast(pa.date32()).to_pylist()
        else:
            plain[name] = column.to_pylist()
    return plain
