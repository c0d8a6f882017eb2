"""The distinct values of a column of strings, as long as they are few enough for a dictionary."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from semistream.relation.rows.packed.packed_values import as_large_binary

__all__ = ["MOST_BYTES", "MOST_VALUES", "DistinctValues"]

MOST_VALUES = (1 << 16) - 2  # codes of 2 bytes, without those for NULL and for escapes
MOST_BYTES = 64 << 10
_FIRST = 4096  # rows that are examined first: if they have too many values, the other rows are skipped


class DistinctValues:
    """Distinct values of type large_binary.

    >>> seen = DistinctValues()
    >>> seen.add(pa.array(["red", "green", None, "red"]))
    >>> seen.values.to_pylist()
    [b'red', b'green']
    """

    def __init__(self) -> None:
        self.values: pa.Array | None = pa.array([], pa.large_binary())
        """The values; None if there are too many."""

    def add(self, array: pa.Array) -> None:
        """Add the values of an array of strings, binary values, or dictionaries of these."""
        self._add(array.slice(0, _FIRST))
        if self.values is not None and len(array) > _FIRST:
            self._add(array.slice(_FIRST))

    def _add(self, array: pa.Array) -> None:
        if self.values is None:
            return
        if pa.types.is_dictionary(array.type):
            array = as_large_binary(array.dictionary).take(array.indices.unique())
        found = as_large_binary(array).unique().drop_null()
        new = found.filter(pc.invert(pc.is_in(found, value_set=self.values))) if len(self.values) else found
        if len(new):
            values = pa.concat_arrays([self.values, new])
            size = pc.sum(pc.binary_length(values)).as_py()
            self.values = None if len(values) > MOST_VALUES or size > MOST_BYTES else values
