"""Columns of types that represent another type.

They are stored as plain values, and encoded again when decoded.

=================================  =====================================================================
type                               slots
=================================  =====================================================================
dictionary, run-end encoded        those of the plain value
extension                          those of its storage type
=================================  =====================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.errors import SemistreamError
from semistream.relation.rows.any_type import distinct_values, gather
from semistream.relation.rows.row_cells import (
    VARIABLE,
    Cells,
    CodecFor,
    Column,
    Mask,
    RowLimitError,
    either,
    null_mask,
    numbers,
)

__all__ = ["DictionaryColumn", "ExtensionColumn", "RunEndColumn"]


class WrappedColumn(Column):
    """A type that represents another type: stored as the other type, and wrapped again when decoded."""

    def __init__(self, type_: pa.DataType, inner: Column) -> None:
        super().__init__(type_)
        self._inner = inner
        self.slots = self._inner.slots

    def split(self, array: pa.Array, hidden: Mask | None = None) -> list[Cells]:
        return self._inner.split(self._unwrap(array, hidden), hidden)

    def spread(self, array: pa.Array, hidden: Mask | None = None) -> NDArray[np.int64] | None:
        return self._inner.spread(array.storage, hidden)

    def join(self, cells: Sequence[Cells], rows: int) -> pa.Array:
        return self._wrap(self._inner.join(cells, rows))

    def _unwrap(self, array: pa.Array, hidden: Mask | None) -> pa.Array:
        raise NotImplementedError

    def _wrap(self, array: pa.Array) -> pa.Array:
        raise NotImplementedError


class ExtensionColumn(WrappedColumn):
    """An extension type, stored as its storage type."""

    def _unwrap(self, array: pa.Array, hidden: Mask | None) -> pa.Array:
        return array.storage

    def _wrap(self, array: pa.Array) -> pa.Array:
        return pa.ExtensionArray.from_storage(self.type, array)


class PointingColumn(WrappedColumn):
    """A type whose rows point to values that are stored once."""

    def __init__(self, type_: pa.DataType, inner: Column, codec_for: CodecFor) -> None:
        super().__init__(type_, inner)
        self._codec_for = codec_for

    def split(self, array: pa.Array, hidden: Mask | None = None) -> list[Cells]:
        values, positions, missing = self._pointed(array, hidden)
        return self._inner.split(gather(values, positions, missing, self._codec_for))

    def spread(self, array: pa.Array, hidden: Mask | None = None) -> NDArray[np.int64] | None:
        if VARIABLE not in self.slots:
            return None
        values, positions, missing = self._pointed(array, hidden)
        if len(values) > 2 * len(array):  # a few rows of a dictionary with a million names
            wanted, positions = np.unique(np.where(missing, 0, positions) if missing is not None else positions,
                                          return_inverse=True)  # fmt: skip
            values = gather(values, wanted, None, self._codec_for)
        spread = self._inner.spread(values)
        if spread is None or len(values) == 0:
            return None if spread is None else np.zeros(len(array), np.int64)
        return spread[positions] if missing is None else np.where(missing, 0, spread[np.where(missing, 0, positions)])

    def _pointed(self, array: pa.Array, hidden: Mask | None) -> tuple[pa.Array, NDArray[np.int64], Mask | None]:
        """Return the values, the position of each row's value among them, and which rows have no value."""
        values, positions, missing = self._pointers(array)
        missing = either(missing, hidden)
        pointing = positions if missing is None else positions[~missing]
        if pointing.size and (pointing.max() >= len(values) or pointing.min() < 0):
            raise SemistreamError(
                f"a column of type {self.type} points past the {len(values)} values it has; the batch is damaged: "
                "check it with pyarrow's validate(full=True)"
            )
        return values, positions, missing

    def _pointers(self, array: pa.Array) -> tuple[pa.Array, NDArray[np.int64], Mask | None]:
        raise NotImplementedError


class DictionaryColumn(PointingColumn):
    """A dictionary type.

    The decoded dictionary holds the values that occur, in order of appearance.
    """

    @property
    def inner(self) -> Column:
        """The column of the values."""
        return self._inner

    def unwrapped(self, array: pa.Array) -> pa.Array:
        """Return the values of an array, row by row."""
        values, positions, missing = self._pointed(array, None)
        return gather(values, positions, missing, self._codec_for)

    def wrapped(self, array: pa.Array) -> pa.Array:
        """Return an array of values as this type."""
        return self._wrap(array)

    def _pointers(self, array: pa.Array) -> tuple[pa.Array, NDArray[np.int64], Mask | None]:
        return array.dictionary, *_positions(array.indices)

    def _wrap(self, array: pa.Array) -> pa.Array:
        indices, distinct = distinct_values(array, self._codec_for)
        limit = np.iinfo(self.type.index_type.to_pandas_dtype()).max
        if len(distinct) - 1 > limit:
            raise RowLimitError(
                f"{len(array)} rows hold {len(distinct)} different values; a dictionary indexed by "
                f"{self.type.index_type} holds {limit + 1}. Request smaller output batches, or build the "
                "relation with the index type int32"
            )
        return pa.DictionaryArray.from_arrays(indices.cast(self.type.index_type), distinct, ordered=self.type.ordered)


class RunEndColumn(PointingColumn):
    """A run-end encoded type.

    Runs are computed again when decoding, because rows can be decoded in any order.
    """

    def _pointers(self, array: pa.Array) -> tuple[pa.Array, NDArray[np.int64], Mask | None]:
        rows = np.arange(array.offset, array.offset + len(array))
        runs = np.searchsorted(array.run_ends.to_numpy(), rows, side="right")
        return array.values, runs.astype(np.int64), None

    def _wrap(self, array: pa.Array) -> pa.Array:
        limit = np.iinfo(self.type.run_end_type.to_pandas_dtype()).max
        if len(array) > limit:
            raise RowLimitError(
                f"{len(array)} rows in a batch; run ends of type {self.type.run_end_type} count to {limit}. "
                "Request smaller output batches, or build the relation with the run end type int32"
            )
        codes, _ = distinct_values(array, self._codec_for)
        codes = codes.fill_null(-1).to_numpy()
        last = np.append(codes[1:] != codes[:-1], True)[: len(array)]
        ends = np.flatnonzero(last)
        run_ends = pa.array(ends + 1, self.type.run_end_type)
        values = gather(array, ends, None, self._codec_for)
        return pa.RunEndEncodedArray.from_buffers(self.type, len(array), [None], 0, children=[run_ends, values])


def _positions(indices: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    dtype: np.dtype[Any] = np.dtype(indices.type.to_pandas_dtype())
    values = numbers(indices.buffers()[1], dtype, indices.offset, len(indices))
    return values.astype(np.int64), null_mask(indices)
