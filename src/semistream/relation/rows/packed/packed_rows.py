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
from semistream.relation.rows.packed.packed_kernels import (
    cell_bounds,
    collect_rows,
    find_escapes,
    mark_rows,
    read_fields,
    row_ends,
)
from semistream.relation.rows.packed.packed_values import Escapes, damaged
from semistream.relation.rows.packed.packing import ColumnPacking
from semistream.relation.rows.row_cells import VARIABLE

__all__ = ["PackedLayout", "PackedRows", "Place"]


_LONG = 1024  # mean bytes of a row: above this, copying whole rows costs more than the cache misses that it saves
_NONE: Ints = np.zeros(0, np.int64)


class Place(NamedTuple):
    """Where rows store a slot."""

    at: int
    null_byte: int
    null_bit: int
    cell: int
    """Position among the variable cells of a row; -1 if the slot is not variable."""


class PackedRows:
    """Rows to read, and where their cells and escapes begin.

    Parameters
    ----------
    layout
        Where the rows have their slots.
    data, starts
        Bytes, and where rows begin in them; -1 where there is no row.
    """

    def __init__(self, layout: PackedLayout, data: Bytes, starts: Ints) -> None:
        self.data, self.starts = data, starts
        self._layout = layout
        self._codes: dict[int, tuple[Ints, int]] = {}
        self._cells: tuple[Ints, Ints, Ints] | None = None

    def place(self, slot: int) -> Place:
        """Return where the rows store a slot."""
        return self._layout.places[slot]

    def read_at_once(self, fields: Sequence[tuple[int, int]]) -> None:
        """Read several fields, each given as place and width, in one pass: this is faster than one pass per field."""
        at, sizes = (np.array([field[part] for field in fields], np.int64) for part in range(2))
        codes, escapes = np.empty((at.size, self.starts.size), np.int64), np.zeros(at.size, np.int64)
        bad = read_fields(self.data, self.starts, frozen(at), frozen(sizes), self._layout.stride, codes, escapes)
        if bad >= 0:
            raise self._damaged(bad)
        self._codes |= {place: (codes[i], int(escapes[i])) for i, (place, _) in enumerate(fields)}

    def bounds(self, cell: int) -> tuple[Ints, Ints, int]:
        """Return where a variable cell begins in each row, its length (-1: escaped), and how many are escaped."""
        if self._cells is None:
            self._cells = self._read_cells()
        begins, lengths, escapes = self._cells
        return begins[cell], lengths[cell], int(escapes[cell])

    def codes(self, place: Place, width: int) -> tuple[Ints, int]:
        """Return a slot's fields (-1: escaped), which the caller may modify, and how many are escaped."""
        if place.at not in self._codes:
            self.read_at_once([(place.at, width)])
        return self._codes.pop(place.at)

    def _read_cells(self) -> tuple[Ints, Ints, Ints]:
        fields, widths, stride = self._layout.cell_fields, self._layout.cell_widths, self._layout.stride
        begins, lengths = np.empty((2, fields.size, self.starts.size), np.int64)
        escapes = np.zeros(fields.size, np.int64)
        bad = cell_bounds(self.data, self.starts, fields, widths, stride, begins, lengths, escapes)
        if bad >= 0:
            raise self._damaged(bad)
        return begins, lengths, escapes

    def marked(self, place: Place) -> Ints:
        """Return the rows in which the null bit of a slot is set."""
        marks = np.empty(self.starts.size, np.uint8)
        stride = self._layout.stride
        count, bad = mark_rows(self.data, self.starts, place.null_byte, place.null_bit, stride, marks)
        if bad >= 0:
            raise self._damaged(bad)
        return np.flatnonzero(marks) if count else _NONE

    def escapes(self, rows: Ints, packing: ColumnPacking, optional: bool = False) -> Escapes:
        """Return the escaped values of a column in some rows; raise if a row has none, unless ``optional``."""
        begins, lengths = np.empty(rows.size, np.int64), np.empty(rows.size, np.int64)
        layout = self._layout
        bad = find_escapes(
            self.data, self.starts, frozen(rows), layout.cell_fields, layout.cell_widths, layout.stride, packing.number,
            begins, lengths,
        )  # fmt: skip
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
        self.stride, self._widths = stride, tuple(widths)
        self.cell_fields = frozen(np.array([places[slot] for slot in cells], np.int64))
        self.cell_widths = frozen(np.array([lengths[slot] for slot in cells], np.int64))
        self.places = [
            Place(at, byte, bit, cells.index(slot) if slot in cells else -1)
            for slot, (at, (byte, bit)) in enumerate(zip(places, null_bits, strict=True))
        ]

    def rows(self, data: Bytes, starts: Ints, slots: Sequence[int]) -> PackedRows:
        """Return the rows that start at ``starts``; the fields of these slots of packed columns are read at once."""
        rows = PackedRows(self, data, starts)
        rows.read_at_once([(self.places[slot].at, self._widths[slot]) for slot in slots if self._widths[slot] > 0])
        return rows

    def together(self, data: Bytes, starts: Ints) -> tuple[Bytes, Ints]:
        """Copy rows next to each other, which makes them faster to read; long rows are not copied.

        Returns the bytes, and where the rows begin in them.
        """
        ends, places = np.empty(starts.size, np.int64), np.empty(starts.size, np.int64)
        bad = row_ends(data, starts, self.stride, ends)
        if bad >= 0:
            raise damaged(bad, starts.size, data.size)
        total = int(ends[-1]) if ends.size else 0
        if total > _LONG * starts.size:
            return data, starts
        out = np.empty(total, np.uint8)
        collect_rows(data, starts, frozen(ends), out, places)
        return frozen(out), frozen(places)
