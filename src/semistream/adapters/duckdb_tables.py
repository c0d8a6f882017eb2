"""DuckDB: R as a table that queries scan, and as a function that looks up single keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from duckdb.func import ARROW, SPECIAL

from semistream.lookups import Lookups

__all__ = ["register"]


def register(
    connection: duckdb.DuckDBPyConnection, name: str, lookups: Lookups, columns: Sequence[str] | None = None
) -> None:
    """Make R known to a connection as a table and as a function of the same name.

    ``FROM name`` scans R, page by page, in the memory of 512 pages. ``name(key)`` looks up a key, or the columns of a
    key, and returns R's other columns as a struct; NULL if R does not have the key. Use the function to enrich a
    stream, and the table for questions about all of R.

    Parameters
    ----------
    connection, name
        The connection, and the name of the table and of the function.
    lookups
        Where to look up; they must stay open as long as queries run.
    columns
        The function's columns, without the key; by default all.
    """
    relation = lookups.relation
    connection.register(name, _Scan(lookups))
    fields = [field for field in relation.value_schema if columns is None or field.name in columns]
    whole = connection.from_arrow(relation.schema.empty_table())
    types = dict(zip(whole.columns, whole.types, strict=True))

    def look_up(*keys: Any) -> pa.Array:
        asked = dict(zip(relation.key.names, keys, strict=True))
        *found, there = lookups.get(asked, [field.name for field in fields], found="\0found").columns
        return pa.StructArray.from_arrays(found, fields=fields, mask=pc.invert(there))

    parameters = [types[one] for one in relation.key.names]
    struct = duckdb.struct_type({field.name: types[field.name] for field in fields})
    connection.create_function(name, look_up, parameters, struct, type=ARROW, null_handling=SPECIAL)


class _Scan:
    """R as an Arrow stream; each scan begins a new one."""

    def __init__(self, lookups: Lookups) -> None:
        self._relation = lookups.relation

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self._relation.schema, self._relation.to_batches())
        return reader.__arrow_c_stream__(requested_schema)
