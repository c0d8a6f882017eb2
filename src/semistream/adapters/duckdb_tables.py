"""DuckDB: R as a table that queries scan, and as a function that looks up single keys."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from duckdb.func import ARROW, SPECIAL

from semistream.joins.interface.conditions import pick_columns
from semistream.lookups import Lookups
from semistream.relation.relation import Relation

__all__ = ["register"]


def register(
    connection: duckdb.DuckDBPyConnection, name: str, lookups: Lookups, columns: Sequence[str] | None = None
) -> None:
    """Make R known to a connection as a table and as a function of the same name.

    ``FROM name`` scans R in the memory of 512 pages. ``name(key, …)`` returns the row of a key as a struct, or NULL.

    Parameters
    ----------
    connection, name
        The connection, and the name of the table and of the function.
    lookups, columns
        Where to look up, open as long as queries run; and the function's columns, by default all but the key.
    """
    relation = lookups.relation
    fields = list(relation.value_schema) if columns is None else pick_columns(list(relation.value_schema), columns)
    connection.register(name, _Scan(relation))
    whole = connection.from_arrow(relation.schema.empty_table())
    types = dict(zip(whole.columns, whole.types, strict=True))

    def look_up(*keys: Any) -> pa.Array:
        asked = dict(zip(relation.key.names, keys, strict=True))
        *found, there = lookups.get(asked, [field.name for field in fields], found="\0found").columns
        return pa.StructArray.from_arrays(found, fields=fields, mask=pc.invert(there))

    names, only = relation.key.names, inspect.Parameter.POSITIONAL_ONLY
    each = [inspect.Parameter(f"key{place}", only) for place in range(len(names))]  # DuckDB counts the parameters
    vars(look_up)["__signature__"] = inspect.Signature(each)
    struct = duckdb.struct_type({field.name: types[field.name] for field in fields})
    connection.create_function(name, look_up, [types[one] for one in names], struct, type=ARROW, null_handling=SPECIAL)


@dataclass
class _Scan:
    relation: Relation

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:  # each scan begins a new stream
        reader = pa.RecordBatchReader.from_batches(self.relation.schema, self.relation.to_batches())
        return reader.__arrow_c_stream__(requested_schema)
