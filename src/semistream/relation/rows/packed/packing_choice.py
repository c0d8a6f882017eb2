"""Chooses how columns are packed, from the data of a build."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from semistream.relation.rows.packed.packing import Packing

__all__ = ["PackingChoice"]


class PackingChoice:
    """Statistics of the columns of all batches of a build.

    Parameters
    ----------
    schema
        The stored columns.
    never
        Names of columns that are not packed.
    """

    def __init__(self, schema: pa.Schema, never: Collection[str] = ()) -> None:
        self._schema, self._never = schema, frozenset(never)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the values of a batch of ``schema``."""

    def choose(self, numbers: Sequence[int]) -> Packing | None:
        """Return the packing of columns with these numbers; None if it would save too little."""
        return None
