"""Arrow columns from arrays, vectorised: decimals, filler bytes and filler text of exact length."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.compiled import frozen, kernel
from semistream.workloads.keys.draws import draw_word, integers, integers_at, sequence_seed

__all__ = ["MAX_BATCH_TEXT", "decimals", "filler_bytes", "filler_text"]

MAX_BATCH_TEXT = 2**31 - 1
"""Maximum bytes of text per batch: Arrow's string columns have 32-bit offsets."""

_TEXT_BYTES = 1 << 16
_WORDS = (
    "a all also and any as at been best but by can clean day each easy fast few fine firm for from "
    "gently good hand has in is it keeps kept last light long made more most never new not of old on "
    "one only or out over plain quick rest safe same since soft some still such than that the then this "
    "time to two used very was warm well when which while will with without work year "
)


def decimals(unscaled: NDArray[np.int64], precision: int, scale: int) -> pa.Array:
    """Return a decimal128 column of ``unscaled`` / 10^scale.

    >>> decimals(np.array([199, -5]), precision=12, scale=2).to_pylist()
    [Decimal('1.99'), Decimal('-0.05')]
    """
    words = np.empty((unscaled.size, 2), dtype=np.int64)
    words[:, 0] = unscaled
    words[:, 1] = unscaled >> 63  # the upper half repeats the sign
    return pa.Array.from_buffers(pa.decimal128(precision, scale), unscaled.size, [None, pa.py_buffer(words)])


@kernel
def _fill_words(seed: np.uint64, rows: NDArray[np.int64], out: NDArray[np.uint64]) -> None:
    width = out.shape[1]
    for i in range(out.shape[0]):
        for j in range(width):
            out[i, j] = draw_word(seed, rows[i] * width + j)


def filler_bytes(seed: int, rows: NDArray[np.int64], width: int) -> pa.Array:
    """Return a fixed-size binary column of ``width`` random bytes. The bytes depend only on the row's number.

    >>> filler_bytes(1, np.arange(3), width=20).type
    FixedSizeBinaryType(fixed_size_binary[20])
    """
    words = np.empty((rows.size, -(-width // 8)), dtype=np.uint64)
    _fill_words(sequence_seed(seed, "filler bytes"), frozen(rows), words)
    data = np.ascontiguousarray(words.view(np.uint8)[:, :width])
    return pa.Array.from_buffers(pa.binary(width), rows.size, [None, pa.py_buffer(data)])


@cache
def _sample_text(length: int) -> NDArray[np.uint8]:
    """Return text from which ``length`` bytes can be cut at any of the first `_TEXT_BYTES` positions."""
    words = _WORDS.split()
    order = integers(sequence_seed(0, "sample text"), 0, _TEXT_BYTES // 2, below=len(words))
    text = np.frombuffer(" ".join(words[word] for word in order)[:_TEXT_BYTES].encode("ascii"), dtype=np.uint8)
    return frozen(np.resize(text, _TEXT_BYTES + length))


@kernel
def _copy_slices(
    text: NDArray[np.uint8], begins: NDArray[np.int64], offsets: NDArray[np.int32], out: NDArray[np.uint8]
) -> None:
    for i in range(begins.size):
        length = offsets[i + 1] - offsets[i]
        out[offsets[i] : offsets[i + 1]] = text[begins[i] : begins[i] + length]


def filler_text(seed: int, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> pa.Array:
    """Return a string column of plain words cut to exactly ``lengths`` bytes. A text depends only on its row number.

    >>> filler_text(1, np.arange(2), np.array([12, 0])).to_pylist()
    ['ost well sin', '']
    """
    total = int(lengths.sum())
    if total > MAX_BATCH_TEXT:
        raise ValueError(f"{total} bytes of text in one batch exceed {MAX_BATCH_TEXT}; request fewer rows per batch")
    offsets = np.zeros(rows.size + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    # Rounded up to a power of two, so that few different samples are generated.
    text = _sample_text(1 << int(lengths.max(initial=1)).bit_length())
    begins = integers_at(sequence_seed(seed, "filler text"), rows, below=_TEXT_BYTES)
    data = np.empty(total, dtype=np.uint8)
    _copy_slices(text, frozen(begins), frozen(offsets), data)
    return pa.StringArray.from_buffers(rows.size, pa.py_buffer(offsets), pa.py_buffer(data))
