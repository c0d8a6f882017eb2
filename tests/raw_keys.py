"""Codecs of one key column, and columns made of the numbers that they hold."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from semistream.relation.keys.key_codec import KeyCodec


def codec(type_: pa.DataType) -> KeyCodec:
    return KeyCodec.for_schema(pa.schema([("key", type_)]), "key")


def encode(codec_: KeyCodec, array: pa.Array) -> tuple[list[int], list[bool]]:
    keys, valid = codec_.encode(pa.record_batch([array], ["it"]), on=["it"])
    assert keys.dtype == np.int64
    assert valid.dtype == np.bool_
    return keys.tolist(), valid.tolist()


def from_raw(values: list[int], type_: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(type_):
        return pa.array([bool(value) for value in values], type_)
    signed = not pa.types.is_unsigned_integer(type_)
    data = b"".join(value.to_bytes(type_.bit_width // 8, "little", signed=signed) for value in values)
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(data)])
