"""Converts batches and columns to a schema, whatever its types are.

Arrow's ``cast`` cannot produce dictionaries of numbers or runs, and fails on slices of unions even if nothing changes.
Arrow has no empty arrays of unions, and its NULLs of structs that contain runs are invalid.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.errors import SemistreamError
from semistream.relation.rows.row_cells import RowLimitError
from semistream.relation.rows.row_codec import RowCodec

__all__ = ["ColumnsError", "as_type", "fit", "no_rows", "null_array", "one_batch"]


class ColumnsError(SemistreamError, ValueError):
    """A batch has different columns from the batches before it."""


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch converted to ``schema``: its columns are reordered, and cast if their type differs.

    >>> batch = pa.record_batch({"b": [1], "a": ["x"]})
    >>> fit(batch, pa.schema({"a": pa.string(), "b": pa.dictionary(pa.int8(), pa.int32())})).to_pydict()
    {'a': ['x'], 'b': [1]}
    """
    if batch.schema.equals(schema) or not schema.names:
        return batch
    columns = batch.columns
    if batch.schema.names != schema.names:
        if sorted(batch.schema.names) != sorted(schema.names) or len(set(schema.names)) < len(schema.names):
            raise ColumnsError(
                f"a batch has columns {batch.schema.names} instead of {schema.names}; give all batches the same columns"
            )
        columns = [batch.column(name) for name in schema.names]
    columns = [as_type(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array cast to another type, including dictionary and run-end encoded types.

    >>> as_type(pa.array([7, 7, 8]), pa.run_end_encoded(pa.int32(), pa.int64())).run_ends.to_pylist()
    [2, 3]
    """
    if array.type == kind:
        return array
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _through_rows(as_type(array, kind.value_type), kind)
    if array.type.num_fields and _plain(array.type) == _plain(kind):
        # Arrow's cast returns invalid arrays for nested types with runs, and for slices of lists of lists of nulls.
        return _through_rows(array, kind)
    return _decoded(array).cast(kind)


def _decoded(array: pa.Array) -> pa.Array:
    """Return the values of runs, and of a dictionary, which Arrow casts to some types only."""
    try:
        if pa.types.is_run_end_encoded(array.type):
            return _decoded(pc.run_end_decode(array))
        return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    except pa.ArrowNotImplementedError:  # views, of which Polars makes the dictionaries of its categories
        return _through_rows(array, array.type.value_type)


def _through_rows(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array in another encoding, through rows: an encoded value has the same row bytes as a plain value."""
    rows = RowCodec(pa.schema({"": array.type})).encode(pa.record_batch({"": array}))
    return RowCodec(pa.schema({"": kind})).decode(rows.data, rows.starts).column(0)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type without dictionaries and runs."""
    is_ = pa.types
    if is_.is_dictionary(kind) or is_.is_run_end_encoded(kind):
        return _plain(kind.value_type)
    if is_.is_struct(kind):
        return pa.struct([(part.name, _plain(part.type)) for part in kind])
    if is_.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if is_.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type), kind.list_size)
    if is_.is_list(kind) or is_.is_large_list(kind):
        return (pa.list_ if is_.is_list(kind) else pa.large_list)(_plain(kind.value_type))
    return kind


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows.

    >>> no_rows(pa.schema({"it": pa.sparse_union([pa.field("number", pa.int64())])})).num_rows
    0
    """
    return RowCodec(schema).decode(np.empty(0, np.uint8), np.empty(0, np.int64))


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one batch, even if it has no rows.

    Raise if Arrow needs several batches for it.

    >>> one_batch(pa.table({"id": pa.chunked_array([[1], [2, 3]])})).num_rows
    3
    """
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise RowLimitError(
            f"{table.num_rows:,} rows have more than 2 GiB in one column, the most that an Arrow array of its type "
            "holds; take fewer rows at a time, or use a type such as large_string"
        )
    return batches[0] if batches else no_rows(table.schema)


def null_array(rows: int, kind: pa.DataType) -> pa.Array:
    """Return an array of NULLs.

    >>> null_array(2, pa.struct({"runs": pa.run_end_encoded(pa.int32(), pa.string())})).to_pylist()
    [None, None]
    """
    return RowCodec(pa.schema({"": kind})).nulls(rows).column(0) if _has_runs(kind) else pa.nulls(rows, kind)


@lru_cache(maxsize=1024)
def _has_runs(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_runs(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _has_runs(kind.value_type)
    return bool(pa.types.is_run_end_encoded(kind)) or any(
        _has_runs(kind.field(child).type) for child in range(kind.num_fields)
    )
