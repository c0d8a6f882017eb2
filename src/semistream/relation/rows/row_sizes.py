"""Counts the bytes of a batch's rows, whatever buffers they share.

A slice of a batch shares its parent's buffers. For most columns Arrow's ``nbytes`` counts only the slice. For
dictionaries and views it counts everything: one row of a dictionary with a million names would be as large as all
names. Where memory for rows is limited, as in a stream buffer, a row must count as the bytes of its own values.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa

__all__ = ["BatchBytes", "batch_bytes"]

_VIEW_BYTES = 16  # bytes of a string view in Arrow
_INLINE_BYTES = 12  # longest string, in bytes, that a view holds itself


def batch_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch's rows.

    >>> names = pa.array(["name " * 100] * 1000, pa.string_view())
    >>> batch = pa.record_batch({"name": names})
    >>> batch.slice(0, 2).nbytes > 100_000, batch_bytes(batch.slice(0, 2))
    (True, 1032)
    """
    if not any(_shares(kind) for kind in batch.schema.types):
        return int(batch.nbytes)
    return sum(_bytes(column) for column in batch.columns)


class BatchBytes:
    """`batch_bytes` for batches of one schema.

    If all columns have a fixed width, no buffer is inspected. A call into Arrow releases the GIL, and another thread
    may then hold it for milliseconds.

    >>> schema = pa.schema({"id": pa.int64(), "amount": pa.int32()})
    >>> BatchBytes(schema)(pa.record_batch({"id": [1, 2], "amount": [3, 4]}, schema=schema))
    25
    """

    def __init__(self, schema: pa.Schema) -> None:
        bits = [_bits(kind) for kind in schema.types]
        # One more bit per value: it may be NULL.
        self._row_bits = None if None in bits else sum(width + 1 for width in bits if width is not None)

    def __call__(self, batch: pa.RecordBatch) -> int:
        """Return the bytes of a batch's rows."""
        if self._row_bits is None:
            return batch_bytes(batch)
        return int(batch.num_rows * self._row_bits + 7) // 8


def _bits(kind: pa.DataType) -> int | None:
    """Return the width of a type in bits, or None if it is not fixed."""
    if pa.types.is_dictionary(kind) or kind.num_fields or isinstance(kind, pa.BaseExtensionType):
        return None
    try:
        return int(kind.bit_width)
    except ValueError:
        return None


@lru_cache(maxsize=1024)
def _shares(kind: pa.DataType) -> bool:
    """Return whether ``nbytes`` of a slice counts more than the slice."""
    if isinstance(kind, pa.BaseExtensionType):
        return _shares(kind.storage_type)
    if pa.types.is_dictionary(kind) or _is_view(kind) or _is_list_view(kind):
        return True
    return any(_shares(kind.field(child).type) for child in range(kind.num_fields))


def _bytes(array: pa.Array) -> int:
    kind = array.type
    if not _shares(kind):
        return int(array.nbytes)
    if isinstance(array, pa.ExtensionArray):
        return _bytes(array.storage)
    if isinstance(array, pa.DictionaryArray):
        return int(array.indices.nbytes) + _share(array.dictionary, len(array))
    if _is_view(kind):
        if len(array) == 0:
            return 0  # its buffers may be anything
        lengths = np.frombuffer(array.buffers()[1], np.int32, 4 * len(array), _VIEW_BYTES * array.offset)[::4]
        return _VIEW_BYTES * len(array) + int(lengths[lengths > _INLINE_BYTES].sum())
    if _is_list_view(kind):
        width = 16 if pa.types.is_large_list_view(kind) else 8
        return width * len(array) + _share(array.values, int(np.asarray(array.sizes).sum()))
    if isinstance(array, pa.StructArray):
        return sum(_bytes(array.field(at)) for at in range(kind.num_fields))
    if isinstance(array, pa.MapArray):
        entries = array.offsets[len(array)].as_py() - array.offsets[0].as_py()
        return 4 * len(array) + _share(array.keys, entries) + _share(array.items, entries)
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return 8 * len(array) + _bytes(_listed(array))
    return int(array.nbytes)


def _listed(array: pa.Array) -> pa.Array:
    """Return the values of lists.

    Arrow's ``flatten`` omits values under NULLs, and does not support all types.
    """
    if isinstance(array, pa.FixedSizeListArray):
        return array.values.slice(array.offset * array.type.list_size, len(array) * array.type.list_size)
    begin, end = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
    return array.values.slice(begin, end - begin)


def _share(values: pa.Array, rows: int) -> int:
    """Return the bytes of ``rows`` values of average size."""
    return _bytes(values) * rows // max(1, len(values))


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _is_list_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))
