"""The compiled kernels that compress and decompress cells with a symbol table (see `symbol_table`)."""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Bytes, Ints, Pairs, Slots
from semistream.core.compiled import Int, copy_bytes, inner_kernel, kernel

__all__ = ["BUCKETS", "SPREAD", "compress_cells", "count_symbols", "decompress_cells", "decompressed_lengths"]

BUCKETS = 2048  # hash buckets for symbols of 3 or more bytes, by their first 3 bytes
SPREAD = 0x9E3779B1  # multiplier of the hash: odd, about 2**32 divided by the golden ratio
_LITERAL = 255  # code of a byte without a symbol: the next byte is a byte of the value itself


@kernel
def decompressed_lengths(data: Bytes, begins: Ints, lengths: Ints, sizes: Bytes, out: Ints) -> int:
    """Write the decompressed length of each cell; return the first invalid cell, or -1.

    ``sizes`` holds the lengths of 256 symbols, 0 for unused codes.
    """
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
    """Decompress cells that `decompressed_lengths` accepted into ``out``, which must be 8 bytes longer than the cells.

    Each symbol is copied as 8 bytes; the next symbol overwrites those that do not belong to it. So cells must be in
    ascending order of their offsets, and bytes that follow a cell must be written after it.
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
def _load(data: Bytes, at: Int, buffer: Bytes) -> None:
    """Copy 8 bytes from ``at`` to ``buffer``, with zeros after the end of the data."""
    if at + 8 <= data.size:
        copy_bytes(buffer, 0, data, at, 8)
    else:
        for byte in range(8):
            buffer[byte] = data[at + byte] if at + byte < data.size else 0


@kernel
def compress_cells(
    data: Bytes, begins: Ints, lengths: Ints, short: Pairs, buckets: Slots, words: Ints, masks: Ints, codes: Pairs,
    out: Bytes, targets: Ints, written: Ints,
) -> None:  # fmt: skip
    """Compress cells greedily, always with the longest symbol that matches; write them one after another to ``out``.

    ``out`` needs two bytes per byte of the cells. For the tables see `SymbolTable`. ``short`` and ``codes`` hold the
    code of a symbol, and its length from bit 8 on: ``short`` for symbols of up to 2 bytes, by the next 2 bytes of the
    text; ``codes`` for longer symbols.
    """
    buffer = np.empty(8, np.uint8)
    word = buffer.view(np.int64)
    to = np.int64(0)
    for i in range(begins.size):
        at = begins[i]
        end = at + lengths[i]
        targets[i] = to
        while at < end:
            _load(data, at, buffer)
            left, text = end - at, word[0]
            # At the last byte of a cell, only symbols of one byte are possible.
            found = np.int64(short[text & 0xFFFF if left > 1 else 65536 + (text & 0xFF)])
            bucket = ((text & 0xFFFFFF) * SPREAD >> 20) & (BUCKETS - 1)
            for place in range(buckets[bucket], buckets[bucket + 1]):
                if (text ^ words[place]) & masks[place] == 0 and np.int64(codes[place]) >> 8 <= left:
                    found = np.int64(codes[place])
                    break
            out[to] = np.uint8(found & 0xFF)
            to += 1
            if found & 0xFF == _LITERAL:
                out[to] = np.uint8(text & 0xFF)
                to += 1
            at += found >> 8
        written[i] = to - targets[i]


@kernel
def count_symbols(compressed: Bytes, begins: Ints, lengths: Ints, symbols: Bytes, sizes: Bytes, pairs: Ints) -> None:
    """Count in ``pairs[512 * first + second]`` which symbols follow each other in compressed cells.

    Bytes without a symbol have numbers from 256. The second symbol of a pair is also counted as its first byte alone,
    so that symbols can grow by one byte. ``pairs[511 * 512 + symbol]`` counts each symbol alone.
    """
    for i in range(begins.size):
        at = begins[i]
        end = at + lengths[i]
        last = np.int64(-1)
        while at < end:
            code = np.int64(compressed[at])
            at += 1
            if code == _LITERAL:
                code = 256 + np.int64(compressed[at])
                at += 1
            elif sizes[code] > 1 and last >= 0:
                pairs[512 * last + 256 + np.int64(symbols[8 * code])] += 1
            pairs[512 * 511 + code] += 1
            if last >= 0:
                pairs[512 * last + code] += 1
            last = code
