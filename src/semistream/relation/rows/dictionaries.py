"""Prepares dictionary columns so that batches can be combined.

A combined dictionary may have more values than its index type can number, so indices become int32. Arrow does not
unify dictionaries with NULLs among their values, so those NULLs are removed.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from semistream.relation.rows.fitting import fit
from semistream.relation.rows.row_codec import RowCodec

__all__ = ["bytes_with_words", "bytes_without_words", "roomy", "roomy_schema", "without_null_words"]


def bytes_without_words(array: pa.Array) -> int:
    """Return the bytes of an array without its dictionary, which many batches may share."""
    return int(array.indices.nbytes if pa.types.is_dictionary(array.type) else array.nbytes)


def bytes_with_words(array: pa.Array) -> int:
    """Return the bytes of an array, counting the mean size of a dictionary value for each value."""
    if not pa.types.is_dictionary(array.type):
        return int(array.nbytes)
    return int(array.indices.nbytes + len(array) * array.dictionary.nbytes // max(1, len(array.dictionary)))


def roomy_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema in which all dictionaries, nested ones too, have int32 indices.

    Rows have the same bytes. Dictionaries of floats become plain floats: Arrow treats -0.0 as 0.0 when it combines two
    dictionaries.

    >>> roomy_schema(pa.schema({"name": pa.list_(pa.dictionary(pa.int8(), pa.string()))})).field("name").type
    ListType(list<item: dictionary<values=string, indices=int32, ordered=0>>)
    """
    return pa.schema([_roomy_field(field) for field in schema], schema.metadata)


def roomy(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch converted to `roomy_schema`, without NULLs in its dictionaries."""
    return without_null_words(fit(batch, schema))


def without_null_words(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose dictionaries contain no NULL; values that pointed to one become NULL. The rest is unchanged.

    >>> words = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["a", None]))
    >>> words = without_null_words(pa.record_batch({"word": words}))["word"]
    >>> words.to_pylist(), words.dictionary.to_pylist()
    (['a', None, 'a'], ['a'])
    """
    wrong = [at for at, column in enumerate(batch.columns) if _has_null_words(column)]
    for at in wrong:
        # A row holds the value itself. Dictionaries are built again when rows are decoded.
        alone = batch.select([at])
        codec = RowCodec(alone.schema)
        rows = codec.encode(alone)
        batch = batch.set_column(at, batch.schema.field(at), codec.decode(rows.data, rows.starts).column(0))
    return batch


def _has_null_words(array: Any) -> bool:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _has_null_words(array.storage)
    if pa.types.is_dictionary(kind):
        return array.dictionary.null_count > 0 or _has_null_words(array.dictionary)
    if pa.types.is_struct(kind) or pa.types.is_union(kind):
        return any(_has_null_words(array.field(child)) for child in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _has_null_words(array.keys) or _has_null_words(array.items)
    return (pa.types.is_nested(kind) or pa.types.is_run_end_encoded(kind)) and _has_null_words(array.values)


def _roomy_field(field: pa.Field) -> pa.Field:
    return field.with_type(_roomy_type(field.type))


def _roomy_type(kind: pa.DataType) -> pa.DataType:
    is_ = pa.types
    if is_.is_dictionary(kind):
        if is_.is_floating(kind.value_type):
            return kind.value_type
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
