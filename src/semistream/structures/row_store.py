"""Rows in numbered slots of flat arrays; each row can be put, read and freed individually, in any order.

Fixed-width rows are stored at ``slot * stride``. Variable-length rows are stored in contiguous blocks (`row_blocks`).
Both are read in place.

The caller may supply the arrays (memory-mapped files); then processes can share the store.
"""

from __future__ import annotations

import math

import numpy as np

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.core.errors import SemistreamError
from semistream.relation.rows.row_codec import RowCodec, Rows
from semistream.structures import row_blocks as blocks
from semistream.structures.array_source import Arrays, in_memory
from semistream.structures.elastic import ElasticArrays
from semistream.structures.row_blocks import HEAD, KINDS, SPARE, WORD, RowTable

__all__ = ["RowStore"]

_SLOT_BYTES = 4
"""Bytes per slot in addition to its block: the position of the block."""
_ROUNDING = (WORD - 1) / 2
"""Mean unused bytes per block, because blocks are whole words."""
_MOST_WORDS, _LONGEST = (1 << 31) - 1, (1 << 31) - 1
"""Maximum words of a store, and maximum bytes of a row in it: both are stored in 31 bits."""
_FEW = 1 << 14
"""Bytes from which a store distinguishes kinds of holes; a smaller one has a single kind, to save memory."""


def _fixed(data: Bytes) -> RowTable:
    none, nothing = np.empty(0, np.int32), np.empty(0, np.int64)
    return RowTable(data, nothing, none, none, nothing)


def _block_bytes(row_bytes: float) -> float:
    """Return the bytes of a block for a row of ``row_bytes``, rounded so that similar means give the same result.

    The rounding keeps the size of a store in files stable. The result is enough for rows that all have the expected
    length, and for rows whose lengths vary around it.
    """
    step = 1 << max(0, int(max(row_bytes, WORD)).bit_length() - 6)
    row = math.ceil(max(row_bytes, WORD) / step) * step
    return max(row + HEAD + _ROUNDING, math.ceil((row + HEAD) / WORD) * WORD)


class RowStore:
    """Room for up to ``slots`` rows of one codec; variable-length rows are limited to 16 GiB in total.

    All memory is allocated up front. A row is put, moved or freed in constant time and at most one copy.
    Variable-length rows are compacted occasionally.

    Parameters
    ----------
    codec
        How the rows are encoded.
    slots
        Maximum number of rows.
    row_bytes
        Expected bytes of a variable-length row: the store has room for ``slots`` rows of that size, or slightly fewer
        if it is small. Ignored for fixed-width rows.
    arrays
        Where the arrays live. A store that was left in mapped files keeps its contents.
    """

    def __init__(self, codec: RowCodec, slots: int, row_bytes: float = 0.0, arrays: Arrays = in_memory) -> None:
        self.codec = codec
        self.slots = slots
        self.variable = codec.variable
        self.width: int = codec.stride
        """Bytes of a fixed-width row."""
        self._row_bytes = row_bytes
        if not self.variable:
            self._t = _fixed(arrays("rows", slots * self.width, np.uint8))
            return
        words = arrays("blocks", self.words_for(slots), np.int64)
        self._t = RowTable(
            data=words.view(np.uint8),
            words=words,
            first=arrays("block_of", slots, np.int32),
            holes=arrays("holes", self._kinds(slots), np.int32),
            state=arrays("block_state", blocks.STATE_WORDS, np.int64),
        )
        if not self._t.state[blocks.READY]:
            self._t.first[:] = -1
            self._t.holes[:] = -1
            self._t.state[blocks.READY] = 1

    @classmethod
    def bytes_per_slot(cls, codec: RowCodec, row_bytes: float = 0.0) -> int:
        """Return the bytes of one slot."""
        if not codec.variable:
            return codec.stride
        return math.ceil(SPARE / (SPARE - 1) * _block_bytes(row_bytes)) + _SLOT_BYTES

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        beside = self._t.first.nbytes + self._t.holes.nbytes + self._t.state.nbytes
        return self._t.data.nbytes + beside

    @property
    def table(self) -> RowTable:
        """The arrays, for kernels; `resize` replaces them."""
        return self._t

    @property
    def free_words(self) -> int:
        """Words available for more variable-length rows; 0 for fixed-width rows."""
        words = self._t.words.size
        return int(words - words // SPARE - self._t.state[blocks.USED]) if self.variable else 0

    @property
    def largest_row(self) -> int:
        """Bytes of the longest row that fits into an empty store."""
        if not self.variable:
            return self.width
        return min((self.free_words + int(self._t.state[blocks.USED])) * WORD - HEAD, _LONGEST)

    def fitting(self, lengths: Ints) -> int:
        """Return how many of the rows, counted from the first, fit into the free words."""
        if not self.variable:
            return int(lengths.size)
        needed = np.cumsum(np.maximum(2, (lengths + (HEAD + WORD - 1)) // WORD) + (lengths > _LONGEST) * _MOST_WORDS)
        return int(np.searchsorted(needed, self.free_words, side="right"))

    def put(self, slots: Slots, rows: Rows) -> None:
        """Store ``rows[i]`` in ``slots[i]``; the slots are free and the rows fit.

        Rows in other slots may move.
        """
        if slots.size != len(rows) or self.fitting(rows.lengths) < len(rows):
            raise SemistreamError(
                f"{len(rows)} rows of {int(rows.lengths.sum()):,} B do not fit into {slots.size} slots of a row store "
                f"that takes rows up to {self.largest_row:,} B; this is a fault of semistream, please report it"
            )
        blocks.put_rows(self._t, self.width, slots, rows.data, rows.starts, rows.lengths)

    def free(self, slots: Slots) -> None:
        """Free slots."""
        if self.variable:
            blocks.free_blocks(self._t, slots)

    def sizes(self, slots: Slots) -> Ints | int:
        """Return the most bytes of each slot's row when decoded, one number if rows are fixed.

        Slot -1 has no row.
        """
        if not self.variable:
            return self.codec.decoded_bytes(self.width)
        if not self.codec.packings:
            return blocks.lengths_of(self._t, slots, self.codec.blank_bytes)
        return np.where(slots < 0, 0, self.codec.decoded_bytes(self.lengths(slots)))

    def lengths(self, slots: Slots) -> Ints:
        """Return the bytes of each slot's row as it is stored; slot -1 has no row."""
        return blocks.lengths_of(self._t, slots, 0) if self.variable else np.full(slots.size, self.width)

    def locate(self, slots: Slots) -> tuple[Bytes, Ints]:
        """Return a buffer and the start of each slot's row in it, ready for `RowCodec.decode`.

        Nothing is copied. The result is valid until the next row is put or freed.
        """
        if self.variable:
            return self._t.data, self._t.first[slots].astype(np.int64) * WORD + HEAD
        return self._t.data, slots.astype(np.int64) * self.width

    def copied(self, slots: Slots) -> tuple[Bytes, Ints]:
        """Return the same as `locate`, but copies, which remain valid."""
        if self.variable:
            return blocks.gather_rows(self._t, slots)
        rows = self._t.data.reshape(-1, self.width)[slots].reshape(-1)
        return rows, np.arange(slots.size, dtype=np.int64) * self.width

    @property
    def moves(self) -> int:
        """Number of compactions."""
        return int(self._t.state[blocks.READY]) - 1 if self.variable else 0

    def fits_into(self, slots: int) -> bool:
        """Return whether the current rows fit into a store of ``slots`` slots."""
        words = self.words_for(slots)
        return not self.variable or int(self._t.state[blocks.USED]) <= words - words // SPARE

    def words_for(self, slots: int) -> int:
        """Return the words of a store of ``slots`` slots; 0 for fixed-width rows."""
        if not self.variable:
            return 0
        rows = self._bytes_for(slots)
        # More slots must never give fewer words, although the lists of all kinds of holes need memory.
        words = (rows - 4 * KINDS if rows >= _FEW else min(rows - 4, _FEW - 4 * KINDS)) // WORD
        return min(max(2, words), _MOST_WORDS)

    def _kinds(self, slots: int) -> int:
        return KINDS if self._bytes_for(slots) >= _FEW else 1

    def _bytes_for(self, slots: int) -> int:
        return slots * (self.bytes_per_slot(self.codec, self._row_bytes) - _SLOT_BYTES)

    def move(self, sources: Slots, targets: Slots) -> None:
        """Move rows from slots in use to free ones."""
        if not self.variable:
            rows = self._t.data.reshape(-1, self.width)
            rows[targets] = rows[sources]
            return
        blocks.rename_blocks(self._t, sources, targets)

    def resize(self, slots: int, arrays: ElasticArrays) -> None:
        """Change the number of slots.

        Slots in use must be below the new number, and words in use must fit.
        """
        if not self.variable:
            del self._t
            self._t = _fixed(arrays.resize("rows", slots * self.width))
            self.slots = slots
            return
        words, kinds, before = self.words_for(slots), self._kinds(slots), self._t.holes.size
        if words < self._t.state[blocks.TAIL] or kinds != before:
            blocks.close_holes(self._t)
        state = self._t.state
        del self._t
        resized = arrays.resize("blocks", words)
        self._t = RowTable(
            data=resized.view(np.uint8),
            words=resized,
            first=arrays.resize("block_of", slots),
            holes=arrays.resize("holes", kinds),
            state=state,
        )
        self._t.first[self.slots :] = -1
        if kinds != before:
            self._t.holes[:] = -1
        self.slots = slots

    def check(self, used: Slots) -> None:
        """Assert that exactly the slots ``used`` hold rows and every word is in one block, in a hole or free."""
        if self.variable:
            blocks.check_blocks(self._t, used)
