"""Where packed rows have their fields, cells and escapes.

The field of a variable cell is its length: 1 or 2 bytes if its column is packed, otherwise 4. The cells begin
at the end of the head, in order, and are followed by the escaped values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import frozen
from semistream.relation.rows.packed.packed_kernels import cell_bounds, find_escapes, mark_rows, read_codes
from semistream.relation.rows.packed.packed_values import Escapes, damaged
from semistream.relation.rows.packed.packing import ColumnPacking
from semistream.relation.rows.row_cells import VARIABLE

__all__ = ["PackedLayout", "PackedRows", "Place"]


_NONE: Ints = np.zeros(0, np.int64)


class Place(NamedTuple):
    """Where rows store a slot."""

    at: int
    null_byte: int
    null_bit: int
    cell: int
    """Number of the variable cell among those of a row; -1 if the slot is none."""


class PackedRows(NamedTuple):
    """Rows to read, and where their cells and escapes begin."""

    data: Bytes
    starts: Ints
    """-1 where there is no row."""
    stride: int
    places: Ints
    """The fields with the lengths of the variable cells."""
    widths: Ints

    def bounds(self, cell: int) -> tuple[Ints, Ints, int]:
        """Return where a variable cell begins, its length (-1: escaped), and how many are escaped."""
        begins, lengths = np.empty(self.starts.size, np.int64), np.empty(self.starts.size, np.int64)
        places, widths = self.places[: cell + 1], self.widths[: cell + 1]
        escapes, bad = cell_bounds(self.data, self.starts, places, widths, self.stride, begins, lengths)
        if bad >= 0:
            raise self._damaged(bad)
        return begins, lengths, escapes

    def codes(self, place: Place, width: int) -> tuple[Ints, int]:
        """Return the fields of a slot (-1: escaped), and how many are escaped."""
        codes = np.empty(self.starts.size, np.int64)
        escapes, bad = read_codes(self.data, self.starts, place.at, width, self.stride, codes)
        if bad >= 0:
            raise self._damaged(bad)
        return codes, escapes

    def marked(self, place: Place) -> Ints:
        """Return the rows in which the null bit of a slot is set."""
        marks = np.empty(self.starts.size, np.uint8)
        count, bad = mark_rows(self.data, self.starts, place.null_byte, place.null_bit, self.stride, marks)
        if bad >= 0:
            raise self._damaged(bad)
        return np.flatnonzero(marks) if count else _NONE

    def escapes(self, rows: Ints, packing: ColumnPacking, optional: bool = False) -> Escapes:
        """Return the escaped values of a column in some rows; raise if a row has none, unless ``optional``."""
        begins, lengths = np.empty(rows.size, np.int64), np.empty(rows.size, np.int64)
        bad = find_escapes(
            self.data, self.starts, frozen(rows), self.places, self.widths, self.stride, packing.number, begins, lengths
        )
        if bad < 0 and not optional and lengths.size and lengths.min() < 0:
            bad = int(rows[int(lengths.argmin())])
        if bad >= 0:
            raise self._damaged(bad)
        return Escapes(rows, self.data, begins, lengths)

    def _damaged(self, row: int) -> Exception:
        return damaged(row, self.starts.size, self.data.size)


class PackedLayout:
    """Where packed rows of one codec have their slots.

    Parameters
    ----------
    widths, lengths
        For each slot: its width, and the bytes of its field if it is variable.
    places, null_bits
        For each slot: its field, and its null mark as byte and bit.
    stride
        Length of the head.
    """

    def __init__(
        self, widths: Sequence[int], lengths: Sequence[int], places: Sequence[int],
        null_bits: Sequence[tuple[int, int]], stride: int,
    ) -> None:  # fmt: skip
        cells = [slot for slot, width in enumerate(widths) if width == VARIABLE]
        self._stride = stride
        self._fields = frozen(np.array([places[slot] for slot in cells], np.int64))
        self._lengths = frozen(np.array([lengths[slot] for slot in cells], np.int64))
        self.places = [
            Place(at, byte, bit, cells.index(slot) if slot in cells else -1)
            for slot, (at, (byte, bit)) in enumerate(zip(places, null_bits, strict=True))
        ]

    def rows(self, data: Bytes, starts: Ints) -> PackedRows:
        """Return rows as their columns read them."""
        return PackedRows(data, starts, self._stride, self._fields, self._lengths)
