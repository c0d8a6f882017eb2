"""Selects rows of a batch, whatever its columns are.

Arrow's ``take`` and ``filter`` are fast, but do not support string views (which Polars returns), run-end encoded
columns, and columns that contain these. Such columns go through the row codec, which supports all types.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.relation.rows.row_codec import RowCodec

__all__ = ["keep_rows", "take_rows"]


def take_rows(batch: pa.RecordBatch, positions: NDArray[np.int64]) -> pa.RecordBatch:
    """Return the rows at ``positions``, in that order, repeats allowed.

    >>> batch = pa.record_batch({"name": pa.array(["fig", "pear"], pa.string_view())})
    >>> take_rows(batch, np.array([1, 0, 1])).to_pydict()
    {'name': ['pear', 'fig', 'pear']}
    """
    indices = pa.array(positions)
    try:
        return batch.take(indices)
    except pa.ArrowNotImplementedError:
        columns = [
            _taken(field, column, positions, indices) for field, column in zip(batch.schema, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def keep_rows(batch: pa.RecordBatch, wanted: NDArray[np.bool_]) -> pa.RecordBatch:
    """Return the rows where ``wanted`` is true.

    >>> batch = pa.record_batch({"name": pa.array(["fig", "pear"], pa.string_view())})
    >>> keep_rows(batch, np.array([False, True])).to_pydict()
    {'name': ['pear']}
    """
    try:
        return batch.filter(pa.array(wanted))
    except pa.ArrowNotImplementedError:
        return take_rows(batch, np.flatnonzero(wanted))


def _taken(field: pa.Field, column: pa.Array, positions: NDArray[np.int64], indices: pa.Array) -> pa.Array:
    try:
        return column.take(indices)
    except pa.ArrowNotImplementedError:
        alone = pa.RecordBatch.from_arrays([column], schema=pa.schema([field]))
        codec = RowCodec(alone.schema)
        rows = codec.encode(alone)
        return codec.decode(rows.data, rows.starts[positions]).column(0)
