"""Takes values by position, or numbers distinct values, for every type, even if Arrow has no kernel for it.

Values of such types are encoded as rows of one column: rows can be copied, and rows of equal bytes are equal values.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from semistream.relation.rows.row_cells import CodecFor, Mask, RowFormat, Rows, null_mask

__all__ = ["distinct_values", "gather"]

_VALUE = "value"


def gather(array: pa.Array, positions: NDArray[np.int64], missing: Mask | None, codec_for: CodecFor) -> pa.Array:
    """Take values by position, NULL where ``missing``; unlike Arrow's ``take``, for every type."""
    try:
        return array.take(pa.array(positions, mask=missing))
    except pa.ArrowNotImplementedError:
        codec, rows = _as_rows(array, codec_for)
        null = codec.encode(codec.nulls(1))  # Arrow's own NULLs are invalid if the type contains runs
        starts = np.append(rows.starts, rows.data.size)
        positions = positions if missing is None else np.where(missing, len(array), positions)
        return codec.decode(np.concatenate([rows.data, null.data]), starts[positions]).column(0)


def _as_rows(array: pa.Array, codec_for: CodecFor) -> tuple[RowFormat, Rows]:
    """Encode one array as rows of one column."""
    codec = codec_for(pa.schema([(_VALUE, array.type)]))
    return codec, codec.encode(pa.record_batch([array], schema=codec.schema))


def distinct_values(array: pa.Array, codec_for: CodecFor) -> tuple[pa.Array, pa.Array]:
    """Number the distinct values of any type in order of appearance; NULLs stay NULL."""
    try:
        # Arrow returns a dictionary unchanged, but a dictionary of dictionaries must be numbered too.
        if not pa.types.is_dictionary(array.type):
            encoded = pc.dictionary_encode(array)
            return encoded.indices, encoded.dictionary
    except pa.ArrowNotImplementedError:
        pass
    # Rows of equal bytes are equal values, and Arrow can number byte strings.
    _, rows = _as_rows(array, codec_for)
    offsets = pa.py_buffer(np.append(rows.starts, rows.data.size))
    buffers = [None, offsets, pa.py_buffer(rows.data)]
    blobs = pa.Array.from_buffers(pa.large_binary(), len(array), buffers, 0)
    codes = pc.dictionary_encode(blobs).indices.to_numpy()
    _, first = np.unique(codes, return_index=True)
    return pa.array(codes, mask=null_mask(array)), gather(array, first, None, codec_for)
