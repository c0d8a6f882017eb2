"""Rows in numbered slots of flat arrays, put, read and freed one by one in any order.

Fixed-width rows lie at ``slot * stride``. Rows that vary in length lie in blocks (`row_blocks`), each in one piece, so
that either are read where they lie.

The arrays may be given from outside (memory-mapped files), which makes the store shareable between processes.
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
"""Beside a block: where it is."""
_ROUNDING = (WORD - 1) / 2
"""Bytes of a block that no row has, on average."""
_MOST_WORDS, _LONGEST = (1 << 31) - 1, (1 << 31) - 1
"""Words of a store, and bytes of a row in it, at most: both are counted in 31 bits."""
_FEW = 1 << 14
"""Bytes of a store that is not so small that all holes are of one kind."""


def _fixed(data: Bytes) -> RowTable:
    none, nothing = np.empty(0, np.int32), np.empty(0, np.int64)
    return RowTable(data, nothing, none, none, nothing)


def _block_bytes(row_bytes: float) -> float:
    """Return what a row takes, the same for means that differ by little: sizes of stores in files go by it.

    It is enough for rows that are all as long as expected, and for such that vary about it.
    """
    step = 1 << max(0, int(max(row_bytes, WORD)).bit_length() - 6)
    row = math.ceil(max(row_bytes, WORD) / step) * step
    return max(row + HEAD + _ROUNDING, math.ceil((row + HEAD) / WORD) * WORD)


class RowStore:
    """Room for up to ``slots`` rows of one codec, and up to 16 GiB of such that vary in length.

    All memory is taken at once. A row is put, moved or freed in constant time and one copy; if rows vary, all of them
    are moved together now and then.

    Parameters
    ----------
    codec
        How the rows are encoded.
    slots
        Rows at most.
    row_bytes
        Expected bytes of a variable row: the store has room for ``slots`` rows of that size, or some
        fewer if it is small. Ignored for fixed rows.
    arrays
        Where the arrays live; a store that was left in mapped files is taken up as it was.
    """

    def __init__(self, codec: RowCodec, slots: int, row_bytes: float = 0.0, arrays: Arrays = in_memory) -> None:
        self.codec = codec
        self.slots = slots
        self.variable = codec.variable
        self.width: int = codec.stride
        """Bytes of a row if rows are fixed."""
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
        """Return what one slot costs in memory."""
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
        """The arrays, for kernels; others after a `resize`."""
        return self._t

    @property
    def free_words(self) -> int:
        """Words for more rows; none if rows are fixed."""
        words = self._t.words.size
        return int(words - words // SPARE - self._t.state[blocks.USED]) if self.variable else 0

    @property
    def largest_row(self) -> int:
        """The longest row that an empty store can take."""
        if not self.variable:
            return self.width
        return min((self.free_words + int(self._t.state[blocks.USED])) * WORD - HEAD, _LONGEST)

    def fitting(self, lengths: Ints) -> int:
        """Return how many of the rows, from the first on, fit into what is free."""
        if not self.variable:
            return int(lengths.size)
        needed = np.cumsum(np.maximum(2, (lengths + (HEAD + WORD - 1)) // WORD) + (lengths > _LONGEST) * _MOST_WORDS)
        return int(np.searchsorted(needed, self.free_words, side="right"))

    def put(self, slots: Slots, rows: Rows) -> None:
        """Store ``rows[i]`` in ``slots[i]``; the slots are free and the rows fit. Rows in other slots may move."""
        if slots.size != len(rows) or self.fitting(rows.lengths) < len(rows):
            raise SemistreamError(
                f"{len(rows)} rows of {int(rows.lengths.sum()):,} B do not fit into {slots.size} slots of a row store "
                f"that takes rows up to {self.largest_row:,} B; this is a fault of semistream, please report it"
            )
        blocks.put_rows(self._t, self.width, slots, rows.data, rows.starts, rows.lengths)

    def free(self, slots: Slots) -> None:
        """Give slots back."""
        if self.variable:
            blocks.free_blocks(self._t, slots)

    def sizes(self, slots: Slots) -> Ints | int:
        """Return the bytes of the rows in slots, of which -1 has none; one number if all take the same."""
        if not self.variable:
            return self.width + self.codec.blank_bytes
        return blocks.lengths_of(self._t, slots, self.codec.blank_bytes)

    def locate(self, slots: Slots) -> tuple[Bytes, Ints]:
        """Return bytes and the start of each slot's row in them, ready for `RowCodec.decode`.

        Rows are where they lie, until the next row is put or freed, and nothing is copied.
        """
        if self.variable:
            return self._t.data, self._t.first[slots].astype(np.int64) * WORD + HEAD
        return self._t.data, slots.astype(np.int64) * self.width

    def copied(self, slots: Slots) -> tuple[Bytes, Ints]:
        """Return what `locate` does, of copies that stay."""
        if self.variable:
            return blocks.gather_rows(self._t, slots)
        rows = self._t.data.reshape(-1, self.width)[slots].reshape(-1)
        return rows, np.arange(slots.size, dtype=np.int64) * self.width

    @property
    def moves(self) -> int:
        """How often all rows were moved together."""
        return int(self._t.state[blocks.READY]) - 1 if self.variable else 0

    def fits_into(self, slots: int) -> bool:
        """Say whether a store of so many slots has the words that the rows take."""
        words = self.words_for(slots)
        return not self.variable or int(self._t.state[blocks.USED]) <= words - words // SPARE

    def words_for(self, slots: int) -> int:
        """Return the words of a store of so many slots; none if rows are fixed."""
        if not self.variable:
            return 0
        rows = self._bytes_for(slots)
        # more slots must not be fewer words, though holes of all kinds take some
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
        """Have another number of slots, all in use being below it; words in use must fit, too."""
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
        """Assert that exactly ``used`` hold rows and every word is in one block, in a hole or free."""
        if self.variable:
            blocks.check_blocks(self._t, used)
