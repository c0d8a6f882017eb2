"""Dictionaries with room: while batches are put together, theirs may become larger than their type can number."""

from __future__ import annotations

import pyarrow as pa

from semistream.relation.rows.fitting import fit

__all__ = ["roomy", "roomy_schema"]


def roomy_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose dictionaries are numbered by int32, nested ones too. A row of it has the same bytes.

    >>> roomy_schema(pa.schema({"name": pa.list_(pa.dictionary(pa.int8(), pa.string()))})).field("name").type
    ListType(list<item: dictionary<values=string, indices=int32, ordered=0>>)
    """
    return pa.schema([_roomy_field(field) for field in schema], schema.metadata)


def roomy(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch as one of `roomy_schema`."""
    return fit(batch, schema)


def _roomy_field(field: pa.Field) -> pa.Field:
    return field.with_type(_roomy_type(field.type))


def _roomy_type(kind: pa.DataType) -> pa.DataType:
    is_ = pa.types
    if is_.is_dictionary(kind):
        narrow = kind.index_type.bit_width < 32
        return pa.dictionary(pa.int32(), kind.value_type, kind.ordered) if narrow else kind
    if is_.is_struct(kind):
        return pa.struct([_roomy_field(kind.field(child)) for child in range(kind.num_fields)])
    if is_.is_map(kind):
        return pa.map_(_roomy_field(kind.key_field), _roomy_field(kind.item_field), kind.keys_sorted)
    if is_.is_fixed_size_list(kind):
        return pa.list_(_roomy_field(kind.value_field), kind.list_size)
    if is_.is_list(kind):
        return pa.list_(_roomy_field(kind.value_field))
    if is_.is_large_list(kind):
        return pa.large_list(_roomy_field(kind.value_field))
    return kind
