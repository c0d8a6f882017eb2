"""Escaped values at the ends of rows: ``u16 number of the column | u32 length | bytes``, in the order of columns."""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import frozen
from semistream.relation.rows.packed.packed_kernels import ENTRY
from semistream.relation.rows.packed.packed_values import Escapes
from semistream.relation.rows.row_kernels import copy_cells

__all__ = ["RowTails"]


class RowTails:
    """The escaped values of a batch, column after column."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, Escapes, Ints]] = []

    def add(self, number: int, escapes: Escapes, lengths: Ints) -> None:
        """Append the escaped values of a column to their rows, and add their bytes to ``lengths``."""
        if escapes.rows.size:
            self._parts.append((number, escapes, lengths[escapes.rows]))
            lengths[escapes.rows] += ENTRY + escapes.lengths

    def write(self, data: Bytes, starts: Ints) -> None:
        """Write all values into the rows, which begin at ``starts``."""
        for number, escapes, places in self._parts:
            count = escapes.rows.size
            heads = np.empty((count, ENTRY), np.uint8)
            heads[:, :2] = np.full(count, number, "<u2").view(np.uint8).reshape(-1, 2)
            heads[:, 2:] = escapes.lengths.astype("<u4").view(np.uint8).reshape(-1, 4)
            to = starts[escapes.rows] + places
            begins, sizes = frozen(np.arange(count) * ENTRY), frozen(np.full(count, ENTRY))
            copy_cells(frozen(heads.reshape(-1)), begins, sizes, data, frozen(to))
            begins, sizes = frozen(escapes.begins), frozen(escapes.lengths)
            copy_cells(frozen(escapes.values), begins, sizes, data, frozen(to + ENTRY))
