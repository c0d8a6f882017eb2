"""The compiled kernels that compress and decompress cells with a symbol table (see `symbol_table`)."""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import Int, copy_bytes, inner_kernel, kernel

__all__ = ["BUCKETS", "compress_cells", "decompress_cells", "decompressed_lengths"]

BUCKETS = 1021  # prime; a bucket has the symbols whose first two bytes have the same remainder
_LITERAL = 255  # the next byte is one of the value


@kernel
def decompressed_lengths(data: Bytes, begins: Ints, lengths: Ints, sizes: Bytes, out: Ints) -> int:
    """Return the first cell that makes no sense, or -1. ``sizes`` has 256 lengths of symbols, 0 for unused codes."""
    for i in range(begins.size):
        at = begins[i]
        end = at + lengths[i]
        total = np.int64(0)
        while at < end:
            code = data[at]
            at += 1
            if code == _LITERAL:
                at += 1
                total += 1
                if at > end:
                    return i
            else:
                if sizes[code] == 0:
                    return i
                total += sizes[code]
        out[i] = total
    return -1


@kernel
def decompress_cells(
    data: Bytes, begins: Ints, lengths: Ints, symbols: Bytes, sizes: Bytes, offsets: Ints, out: Bytes
) -> None:
    """Decompress cells that `decompressed_lengths` accepted into ``out``, of which 8 bytes more must exist than needed.

    Each symbol is copied as 8 bytes; the next symbol overwrites those that do not belong to it. So cells must be in
    ascending order of their offsets, and what follows a cell must be written after it.
    """
    for i in range(begins.size):
        at = begins[i]
        end = at + lengths[i]
        to = offsets[i]
        while at < end:
            code = np.int64(data[at])
            at += 1
            if code == _LITERAL:
                out[to] = data[at]
                at += 1
                to += 1
            else:
                copy_bytes(out, to, symbols, 8 * code, 8)
                to += np.int64(sizes[code])


@inner_kernel
def _longest(word: Int, left: Int, words: Ints, sizes: Bytes, buckets: Ints, codes: Ints, single: Ints) -> Int:
    """Return the code of the longest symbol with which ``word`` begins, of at most ``left`` bytes; 255: none."""
    if left >= 2:
        bucket = (word & 0xFFFF) % BUCKETS
        for at in range(buckets[bucket], buckets[bucket + 1]):
            code = codes[at]
            size = np.int64(sizes[code])
            mask = np.int64(-1) if size == 8 else (np.int64(1) << (8 * size)) - 1
            if size <= left and (word ^ words[code]) & mask == 0:
                return code
    return single[word & 0xFF]


@inner_kernel
def _word(data: Bytes, at: Int) -> Int:
    """Return the 8 bytes from ``at`` on as a number; zeros for those after the data."""
    word = np.int64(0)
    for byte in range(min(8, data.size - at)):
        word |= np.int64(data[at + byte]) << (8 * byte)
    return word


@kernel
def compress_cells(
    data: Bytes, begins: Ints, lengths: Ints, words: Ints, sizes: Bytes, buckets: Ints, codes: Ints, single: Ints,
    out: Bytes, targets: Ints, written: Ints,
) -> None:  # fmt: skip
    """Compress cells greedily: everywhere the longest symbol that fits. ``out`` has two bytes for each of a cell's.

    ``words`` has the symbols as numbers; for the other tables see `SymbolTable`.
    """
    for i in range(begins.size):
        at = begins[i]
        end = at + lengths[i]
        to = targets[i]
        while at < end:
            word = _word(data, at)
            code = _longest(word, end - at, words, sizes, buckets, codes, single)
            out[to] = np.uint8(code)
            to += 1
            if code == _LITERAL:
                out[to] = np.uint8(word & 0xFF)
                to += 1
                at += 1
            else:
                at += np.int64(sizes[code])
        written[i] = to - targets[i]
