"""Reads the keys that a caller gives, in any form, as a batch of key columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.errors import KeyColumnError, KeyTypeError
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.rows.fitting import one_batch

__all__ = ["key_batch"]


def key_batch(keys: Any, key: KeyCodec) -> pa.RecordBatch:
    """Return keys as a batch of R's key columns, in the types in which they were given.

    Parameters
    ----------
    keys
        Of one column: a list, a NumPy or Arrow array, a Series. Of several columns: a list of tuples. Of either: a
        table or a mapping that has the key columns; other columns are ignored.
    key
        R's key.

    Examples
    --------
    >>> one = KeyCodec.for_schema(pa.schema({"id": pa.int32()}), "id")
    >>> key_batch([3, None], one).to_pydict()
    {'id': [3, None]}
    >>> two = KeyCodec.for_schema(pa.schema({"shop": pa.string(), "day": pa.int64()}), ["shop", "day"])
    >>> key_batch([("a", 1), ("b", 2)], two).to_pydict()
    {'shop': ['a', 'b'], 'day': [1, 2]}
    >>> key_batch(7, one)
    Traceback (most recent call last):
    semistream.core.errors.KeyTypeError: keys is 7, a single value; look up a list of keys, such as [7]
    """
    batch = _batch(keys, key)
    key.check_stream(batch.schema, key.names, "batch of keys")
    return batch.select(list(key.names))


def _batch(keys: Any, key: KeyCodec) -> pa.RecordBatch:
    if isinstance(keys, pa.RecordBatch):
        return keys
    if isinstance(keys, Mapping):
        missing = [name for name in key.names if name not in keys]
        if missing:
            raise KeyColumnError(f"keys has no column {missing[0]!r}; it has {', '.join(map(str, keys)) or 'none'}")
        return _of_columns([keys[name] for name in key.names], key)
    if isinstance(keys, pa.Array | pa.ChunkedArray | np.ndarray):
        return _of_columns([keys], key)
    if hasattr(keys, "__arrow_c_stream__") or hasattr(keys, "__arrow_c_array__"):
        found = _imported(keys)
        return found if isinstance(found, pa.RecordBatch) else _of_columns([found], key)
    if hasattr(keys, "to_numpy") and not hasattr(keys, "columns"):  # a Series of a pandas without Arrow's interface
        # Arrow reads the types of pandas, which hold pandas.NA. Floats of NumPy stay floats.
        return _of_columns([keys.to_numpy() if isinstance(keys.dtype, np.dtype) else keys], key)
    if not isinstance(keys, Sequence) or _is_single(keys):
        raise KeyTypeError(f"keys is {keys!r}, a single value; look up a list of keys, such as [{keys!r}]")
    if len(key.names) == 1:
        return _of_columns([keys], key)
    wrong = next((one for one in keys if not isinstance(one, tuple) or len(one) != len(key.names)), None)
    if wrong is not None:
        raise KeyColumnError(
            f"{wrong!r} is not a key of the columns {list(key.names)}; give tuples of {len(key.names)} values, or a "
            "table with these columns"
        )
    return _of_columns([[one[place] for one in keys] for place in range(len(key.names))], key)


def _imported(keys: Any) -> pa.RecordBatch | pa.Array | pa.ChunkedArray:
    """Read what exports itself through Arrow's interface: a table, or one column."""
    if hasattr(keys, "__arrow_c_stream__"):
        try:
            return one_batch(pa.table(keys))
        except (TypeError, ValueError, pa.ArrowInvalid, pa.ArrowTypeError):
            return pa.chunked_array(keys)
    return pa.array(keys)


def _of_columns(columns: Sequence[Any], key: KeyCodec) -> pa.RecordBatch:
    if len(columns) != len(key.names):
        raise KeyColumnError(
            f"keys is one column, but the relation's key has {len(key.names)}: {list(key.names)}; give tuples of "
            f"{len(key.names)} values, or a table with these columns"
        )
    for name, column in zip(key.names, columns, strict=True):
        if _is_single(column):
            raise KeyTypeError(
                f"the key column {name!r} is {column!r}, a single value; look up a list of keys, such as [{column!r}]"
            )
    arrays = [_array(column, kind) for column, kind in zip(columns, key.types, strict=True)]
    counts = {len(array) for array in arrays}
    if len(counts) > 1:
        raise KeyColumnError(f"the key columns {list(key.names)} have {sorted(counts)} values; give each key once")
    return pa.RecordBatch.from_arrays(arrays, names=list(key.names))


def _is_single(values: Any) -> bool:
    if isinstance(values, str | bytes | bytearray):  # which have a length, too
        return True
    return not any(hasattr(values, one) for one in ("__iter__", "__arrow_c_stream__", "__arrow_c_array__"))


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, pa.ChunkedArray):
        return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    first = kind  # the type to try
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise KeyTypeError(f"keys is an array of {values.ndim} dimensions; give one of 1 dimension, as of ravel()")
        if values.dtype.kind not in "OU":
            first, values = None, values.astype(values.dtype.newbyteorder("="), copy=False)
    elif hasattr(values, "__arrow_c_stream__") or hasattr(values, "__arrow_c_array__"):
        return _array(pa.chunked_array(values) if hasattr(values, "__arrow_c_stream__") else pa.array(values), kind)
    try:
        return pa.array(values, first)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        # Not all are values of R's type. Their own type says whether they can be compared with it.
        try:
            return pa.array(values)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            if pa.types.is_integer(kind) and all(one is None or type(one) is int for one in values):
                return _integers(values, kind)
            raise KeyTypeError(f"keys are not values of one type: {error}; the relation's key is {kind}") from error


def _integers(values: Iterable[int | None], kind: pa.DataType) -> pa.Array:
    """Return integers; those that R's type cannot hold become NULL, because R has neither."""
    least = 0 if pa.types.is_unsigned_integer(kind) else -(1 << kind.bit_width - 1)
    return pa.array(
        [one if one is not None and 0 <= one - least < 1 << kind.bit_width else None for one in values], kind
    )
