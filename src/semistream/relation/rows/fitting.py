"""Batches and columns made to fit a schema, whatever its types are.

Arrow's own ``cast`` makes no dictionaries of numbers and no runs, and stumbles over slices of unions though nothing is
to be changed; there are no empty arrays of unions, and NULLs of structs with runs in them are invalid.
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
    """A batch with other columns than those before it."""


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch as one of ``schema``: columns in its order, cast where they have another type.

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
                f"a batch has columns {batch.schema.names} instead of {schema.names}; give all batches the same ones"
            )
        columns = [batch.column(name) for name in schema.names]
    columns = [as_type(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array cast to another type, an encoded one included.

    >>> as_type(pa.array([7, 7, 8]), pa.run_end_encoded(pa.int32(), pa.int64())).run_ends.to_pylist()
    [2, 3]
    """
    if array.type == kind:
        return array
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _through_rows(as_type(array, kind.value_type), kind)
    if array.type.num_fields and _plain(array.type) == _plain(kind):
        # Arrow's cast makes invalid arrays of nested ones with runs in them, and of slices of lists of lists of nulls.
        return _through_rows(array, kind)
    if pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    return array.cast(kind)


def _through_rows(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array in another encoding: an encoded value has the bytes of a plain one."""
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
    """Return a table as one batch, also if it has no rows; Arrow makes several where one would not do.

    >>> one_batch(pa.table({"id": pa.chunked_array([[1], [2, 3]])})).num_rows
    3
    """
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise RowLimitError(
            f"{table.num_rows:,} rows have more than 2 GiB in one column, which is what Arrow holds of it at once; "
            "take fewer rows at a time, or a type such as large_string"
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
