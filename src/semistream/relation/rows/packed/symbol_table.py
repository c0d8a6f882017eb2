"""Symbol tables: text compressed with up to 255 symbols of 1 to 8 bytes, each a code of one byte.

This is the idea of FSST (Boncz, Neumann, Leis: "FSST: Fast Random Access String Compression", VLDB 2020): a table
that does not change while text is compressed, so each string can be decompressed alone. Code 255 stands for no symbol:
the byte after it is one of the string.
"""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import frozen
from semistream.relation.rows.packed.symbol_kernels import BUCKETS, compress_cells
from semistream.relation.rows.row_cells import Cells

__all__ = ["SymbolTable"]

_WORD = 8


class SymbolTable:
    """Symbols by code.

    Parameters
    ----------
    table
        The symbols, 8 bytes each, filled up with zeros.
    lengths
        The length of each symbol.
    """

    def __init__(self, table: bytes, lengths: bytes) -> None:
        count = len(lengths)
        symbols = np.zeros(256 * _WORD, np.uint8)
        symbols[: count * _WORD] = np.frombuffer(table, np.uint8)
        sizes = np.zeros(256, np.uint8)
        sizes[:count] = np.frombuffer(lengths, np.uint8)
        self.symbols: Bytes = frozen(symbols)
        self.sizes: Bytes = frozen(sizes)
        self._words: Ints = frozen(symbols.view(np.int64))
        self._buckets, self._codes, self._single = _finder(symbols, sizes, count)

    def compressed(self, cells: Cells) -> tuple[Bytes, Ints, Ints]:
        """Return compressed bytes, and where each cell begins in them and its length."""
        targets = 2 * (np.cumsum(cells.lengths) - cells.lengths)
        out = np.empty(2 * int(cells.lengths.sum()), np.uint8)
        written = np.empty(cells.lengths.size, np.int64)
        begins, lengths = frozen(cells.begins), frozen(cells.lengths)
        compress_cells(
            frozen(cells.values), begins, lengths, self._words, self.sizes, self._buckets, self._codes, self._single,
            out, frozen(targets), written,
        )  # fmt: skip
        return out, targets, written


def _finder(symbols: Bytes, sizes: Bytes, count: int) -> tuple[Ints, Ints, Ints]:
    """Return for each bucket where its codes begin, the codes of all buckets, and the codes of single bytes.

    A bucket has the symbols of two bytes and more whose first two bytes are alike, or collide; the longest come first.
    """
    pairs = symbols.reshape(-1, _WORD)[:count].astype(np.int64)
    lengths = sizes[:count].astype(np.int64)
    bucket = (pairs[:, 0] | pairs[:, 1] << 8) % BUCKETS
    bucket[lengths < 2] = BUCKETS
    order = np.lexsort((np.arange(count), -lengths, bucket))
    counts = np.bincount(bucket, minlength=BUCKETS + 1)
    single = np.full(256, 255, np.int64)
    alone = np.flatnonzero(lengths == 1)
    single[pairs[alone, 0]] = alone
    return frozen(np.append(0, np.cumsum(counts))), frozen(order.astype(np.int64)), frozen(single)
