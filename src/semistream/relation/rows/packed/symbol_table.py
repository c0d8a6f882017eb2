"""Symbol tables: text compressed with up to 255 symbols of 1 to 8 bytes, each a code of one byte.

This is the idea of FSST (Boncz, Neumann, Leis: "FSST: Fast Random Access String Compression", VLDB 2020): a table
that does not change while text is compressed, so each string can be decompressed alone. Code 255 stands for no symbol:
the byte after it is a byte of the string itself.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from semistream.core.arrays import Bytes, Ints, Pairs, Slots
from semistream.core.compiled import frozen
from semistream.relation.rows.packed.symbol_kernels import BUCKETS, SPREAD, compress_cells, count_symbols
from semistream.relation.rows.row_cells import Cells

__all__ = ["TEXT_GROWTH", "SymbolTable"]

TEXT_GROWTH = 8
"""Bytes by which a compressed cell may be longer than its text; other text is escaped."""

_WORD = 8
_MOST = 255  # maximum symbols; code 255 marks a byte without a symbol
_CANDIDATES = 1024  # maximum candidates for the next round's symbols: sorting all pairs would take most of a round
_PATIENCE = 4  # training ends after this many rounds with little gain; repetitive text needs 20 rounds, other text 6


class SymbolTable:
    """Symbols by code.

    Parameters
    ----------
    table
        The symbols, 8 bytes each, padded with zeros.
    lengths
        The length of each symbol.

    Example
    -------
    >>> text = np.frombuffer(b"Coffee Grinder" * 2, np.uint8)
    >>> cells = Cells(None, text, np.array([0, 14]), np.array([14, 14]))
    >>> SymbolTable.trained(cells).compressed(cells)[2].tolist()
    [2, 2]
    """

    def __init__(self, table: bytes, lengths: bytes) -> None:
        self._count = len(lengths)
        symbols = np.zeros(256 * _WORD, np.uint8)
        symbols[: self._count * _WORD] = np.frombuffer(table, np.uint8)
        sizes = np.zeros(256, np.uint8)
        sizes[: self._count] = np.frombuffer(lengths, np.uint8)
        self.symbols: Bytes = frozen(symbols)
        self.sizes: Bytes = frozen(sizes)

    @classmethod
    def trained(cls, sample: Cells) -> SymbolTable:
        """Return a table for text that is like a sample.

        Each round compresses the sample with the table of the previous round. The candidates for the next table are the
        symbols that occur, and the concatenations of two adjacent symbols. Those that would save most bytes get codes.
        """
        made = best = cls(b"", b"")
        least, worse = -1, 0
        while worse < _PATIENCE:
            compressed, begins, lengths = made.compressed(sample)
            size = int(lengths.sum())
            worse += 1
            if least < 0 or size < least:
                best, worse = made, 0 if size < 0.995 * least or least < 0 else worse
                least = size
            pairs = np.zeros(512 * 512, np.int64)
            count_symbols(frozen(compressed), frozen(begins), frozen(lengths), made.symbols, made.sizes, pairs)
            made = _next(made, pairs)
        return best

    @property
    def table(self) -> bytes:
        """The symbols, 8 bytes each."""
        return self.symbols[: self._count * _WORD].tobytes()

    @property
    def lengths(self) -> bytes:
        """The length of each symbol."""
        return self.sizes[: self._count].tobytes()

    def compressed(self, cells: Cells) -> tuple[Bytes, Ints, Ints]:
        """Return compressed bytes, and where each cell begins in them and its length."""
        out = np.empty(2 * int(cells.lengths.sum()), np.uint8)
        begins, lengths = np.empty(cells.lengths.size, np.int64), np.empty(cells.lengths.size, np.int64)
        compress_cells(
            frozen(cells.values), frozen(cells.begins), frozen(cells.lengths), *self._finder, out, begins, lengths
        )
        return out, begins, lengths

    @cached_property
    def _finder(self) -> tuple[Pairs, Slots, Ints, Ints, Pairs]:
        """Return the tables in which `compress_cells` finds symbols; a code has the symbol's length from bit 8 on.

        Table 1: for each of the 65536 pairs of bytes, the code of the pair, or else of its first byte, or else 255.
        Then the codes of single bytes. Longer symbols are in buckets by a hash of their first 3 bytes, the longest
        first. Table 2: where each bucket begins. Tables 3 to 5: these symbols as numbers, their masks and their codes.
        """
        words = self.symbols.view(np.int64)[: self._count]
        sizes = self.sizes[: self._count].astype(np.int64)
        codes = (np.arange(self._count) | sizes << 8).astype(np.uint16)
        single = np.full(256, 255 | 1 << 8, np.uint16)
        single[words[sizes == 1]] = codes[sizes == 1]
        short = np.tile(single, 257)
        short[words[sizes == 2]] = codes[sizes == 2]
        long = np.flatnonzero(sizes > 2)
        bucket = ((words[long] & 0xFFFFFF) * SPREAD >> 20) & (BUCKETS - 1)
        order = np.lexsort((long, -sizes[long], bucket))
        ends = np.cumsum(np.bincount(bucket, minlength=BUCKETS))
        long = long[order]
        masks = np.full(long.size, -1, np.int64)
        masks[sizes[long] < _WORD] = (1 << 8 * sizes[long][sizes[long] < _WORD]) - 1
        starts = np.append(0, ends).astype(np.int32)
        return frozen(short), frozen(starts), frozen(words[long]), frozen(masks), frozen(codes[long])


def _next(made: SymbolTable, pairs: Ints) -> SymbolTable:
    """Return a table of the symbols that would save most, given counts of symbols and pairs (see `count_symbols`)."""
    words, sizes = np.zeros(512, np.uint64), np.ones(512, np.int64)
    words[:256], sizes[:256] = made.symbols.view(np.uint64), made.sizes
    words[256:] = np.arange(256)
    alone = pairs[511 * 512 :]
    single = np.flatnonzero(alone)
    both = np.flatnonzero(pairs[: 511 * 512] > 1)
    first, second = both // 512, both % 512
    shift = 8 * np.minimum(sizes[first], _WORD - 1).astype(np.uint64)
    joined = np.where(sizes[first] < _WORD, words[first] | words[second] << shift, words[first])
    lengths = np.append(sizes[single], np.minimum(sizes[first] + sizes[second], _WORD))
    values = np.append(words[single], joined)
    # A byte without a symbol takes two bytes.
    saved = np.append(
        alone[single] * np.where(sizes[single] == 1, _WORD, sizes[single]), pairs[both] * lengths[single.size :]
    )
    if saved.size > _CANDIDATES:
        some = np.argpartition(saved, -_CANDIDATES)[-_CANDIDATES:]
        values, lengths, saved = values[some], lengths[some], saved[some]
    order = np.lexsort((values, lengths))
    values, lengths, saved = values[order], lengths[order], saved[order]
    new = np.append(True, (np.diff(lengths) != 0) | (values[1:] != values[:-1]))[: values.size]
    total = np.add.reduceat(saved, np.flatnonzero(new)) if values.size else saved
    values, lengths = values[new], lengths[new]
    kept = np.sort(np.argsort(-total, kind="stable")[:_MOST])
    return SymbolTable(values[kept].astype("<u8").tobytes(), lengths[kept].astype(np.uint8).tobytes())
