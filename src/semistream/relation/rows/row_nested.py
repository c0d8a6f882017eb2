"""Columns of nested and encoded types: each made of simpler columns, so nothing here touches bytes.

=================================  =====================================================================
type                               slots
=================================  =====================================================================
list, large list, list views,      variable bytes: the child rows of the list, one after another, in the
fixed-size list, map               row format of `rows.RowCodec` for the item (key and item for maps)
dictionary, run-end encoded        the plain value's; encoded again on the way out
extension                          its storage's
sparse and dense union             the type code, then every child's slots as in a struct
=================================  =====================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from semistream.core.compiled import frozen
from semistream.core.errors import SemistreamError
from semistream.relation.rows.row_columns import (
    VARIABLE,
    Cells,
    Column,
    Mask,
    RowLimitError,
    added,
    column_for,
    either,
    null_mask,
    numbers,
    offsets_buffer,
    offsets_of,
    validity_buffer,
)
from semistream.relation.rows.row_kernels import count_chained_rows, list_chained_rows

if TYPE_CHECKING:
    from semistream.relation.rows.row_codec import RowCodec, Rows

__all__ = ["nested_column_for"]

_VALUE = "value"


class ListColumn(Column):
    """Lists of every kind: a cell is its items, encoded as rows, end to end; a NULL has none.

    Arrow's fixed-size lists have items also where they are NULL: those come back as NULL items.
    """

    slots = (VARIABLE,)

    def __init__(self, type_: pa.DataType) -> None:
        super().__init__(type_)
        is_ = pa.types
        self._size: int | None = type_.list_size if is_.is_fixed_size_list(type_) else None
        self._view: bool = is_.is_list_view(type_) or is_.is_large_list_view(type_)
        self._large: bool = is_.is_large_list(type_) or is_.is_large_list_view(type_)
        self._map: bool = is_.is_map(type_)
        fields = [type_.key_field, type_.item_field] if self._map else [type_.value_field]
        from semistream.relation.rows.row_codec import RowCodec  # a list holds rows, and rows hold lists

        self._codec = RowCodec(pa.schema(fields))

    def split(self, array: pa.Array, hidden: Mask | None = None) -> list[Cells]:
        nulls = null_mask(array)
        first, sizes, items, outside = self._items(array, either(nulls, hidden))
        rows = self._codec.encode(items, outside)
        bounds = np.append(rows.starts, rows.data.size)
        begins = bounds[first]
        return [Cells(nulls, rows.data, begins=begins, lengths=bounds[first + sizes] - begins)]

    def spread(self, array: pa.Array, hidden: Mask | None = None) -> NDArray[np.int64] | None:
        nulls = either(null_mask(array), hidden)
        if not self._codec.variable:
            sizes = self._extents(array)[1] * self._codec.stride
            return sizes if nulls is None else np.where(nulls, 0, sizes)
        first, sizes, items, outside = self._items(array, nulls)
        bounds = np.append(0, np.cumsum(self._codec.lengths(items, outside)))
        spread: NDArray[np.int64] = bounds[first + sizes] - bounds[first]
        return spread

    def _items(
        self, array: pa.Array, nulls: Mask | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], pa.RecordBatch, Mask | None]:
        """Return where each list begins among the items, how many it has, the items, and which are in no list."""
        first, sizes = self._extents(array)
        if nulls is not None:
            sizes = np.where(nulls, 0, sizes)
        # Items outside every list (of a slice, or of a view) stay behind.
        used = sizes > 0
        low = int(first[used].min()) if used.any() else 0
        high = int((first + sizes)[used].max()) if used.any() else 0
        first = np.where(used, first - low, 0)
        items = [child.slice(low, high - low) for child in self._children(array)]
        outside = None
        if (nulls is not None or self._view) and int(sizes.sum()) != high - low:
            # those between two lists may be no values at all
            steps = np.zeros(high - low + 1, np.int64)
            np.add.at(steps, first[used], 1)
            np.add.at(steps, (first + sizes)[used], -1)
            outside = np.cumsum(steps)[:-1] == 0
        return first, sizes, pa.RecordBatch.from_arrays(items, schema=self._codec.schema), outside

    def join(self, cells: Sequence[Cells], rows: int) -> pa.Array:
        (cell,) = cells
        data, begins = frozen(cell.values), frozen(cell.begins)
        stride = 0 if self._codec.variable else self._codec.stride
        counts = np.empty(rows, dtype=np.int64)
        if stride:
            np.floor_divide(cell.lengths, stride, out=counts)
        elif (bad := count_chained_rows(data, begins, frozen(cell.lengths), counts)) >= 0:
            raise SemistreamError(
                f"the items of row {bad} of {rows} do not add up to its list; these bytes were not written "
                "with this schema, or are damaged: build the relation again"
            )
        starts = np.empty(int(counts.sum()), dtype=np.int64)
        list_chained_rows(data, begins, counts, stride, starts)
        items = self._codec.decode(cell.values, starts).columns
        if self._size and cell.nulls is not None:
            missing = np.repeat(cell.nulls, self._size)
            items = [_gather(items[0], np.cumsum(~missing) - 1, missing)]
        return self._array(cell.nulls, counts, items, rows)

    def _extents(self, array: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each list's items start among all items, and how many there are."""
        count = len(array)
        if self._size is not None:
            first = (np.arange(count, dtype=np.int64) + array.offset) * self._size
            return first, np.full(count, self._size, dtype=np.int64)
        buffers = array.buffers()
        dtype = "<i8" if self._large else "<i4"
        if self._view:
            first, sizes = (numbers(buffer, dtype, array.offset, count) for buffer in buffers[1:3])
            return first.astype(np.int64), sizes.astype(np.int64)
        offsets = numbers(buffers[1], dtype, array.offset, count + 1 if count else 0).astype(np.int64)
        return offsets[:-1], np.diff(offsets)

    def _children(self, array: pa.Array) -> list[pa.Array]:
        return [array.keys, array.items] if self._map else [array.values]

    def _array(
        self, nulls: NDArray[np.bool_] | None, counts: NDArray[np.int64], items: list[pa.Array], rows: int
    ) -> pa.Array:
        validity, null_count = validity_buffer(nulls)
        if self._map:
            items = [pa.StructArray.from_arrays(items, fields=list(self._codec.schema))]
        buffers = [validity]
        if self._size is None:
            offsets = offsets_of(counts, self._large, "items", "large_list")
            buffers.append(offsets_buffer(offsets[:-1] if self._view else offsets, self._large))
            if self._view:
                buffers.append(pa.py_buffer(counts.astype("<i8" if self._large else "<i4")))
        return pa.Array.from_buffers(self.type, rows, buffers, null_count, children=items)


class WrappedColumn(Column):
    """A type that stands for another: stored as the other, wrapped again on the way out."""

    def __init__(self, type_: pa.DataType, inner: pa.DataType) -> None:
        super().__init__(type_)
        self._inner = column_for(inner)
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
    """An extension type, stored as its storage."""

    def _unwrap(self, array: pa.Array, hidden: Mask | None) -> pa.Array:
        return array.storage

    def _wrap(self, array: pa.Array) -> pa.Array:
        return pa.ExtensionArray.from_storage(self.type, array)


class PointingColumn(WrappedColumn):
    """A type whose rows point to values that are held once."""

    def split(self, array: pa.Array, hidden: Mask | None = None) -> list[Cells]:
        values, positions, missing = self._pointed(array, hidden)
        return self._inner.split(_gather(values, positions, missing))

    def spread(self, array: pa.Array, hidden: Mask | None = None) -> NDArray[np.int64] | None:
        if VARIABLE not in self.slots:
            return None
        values, positions, missing = self._pointed(array, hidden)
        if len(values) > 2 * len(array):  # of a million names, those of a few rows
            wanted, positions = np.unique(np.where(missing, 0, positions) if missing is not None else positions,
                                          return_inverse=True)  # fmt: skip
            values = _gather(values, wanted, None)
        spread = self._inner.spread(values)
        if spread is None or len(values) == 0:
            return None if spread is None else np.zeros(len(array), np.int64)
        return spread[positions] if missing is None else np.where(missing, 0, spread[np.where(missing, 0, positions)])

    def _pointed(self, array: pa.Array, hidden: Mask | None) -> tuple[pa.Array, NDArray[np.int64], Mask | None]:
        """Return the values, where each row's is among them, and which rows have none."""
        values, positions, missing = self._pointers(array)
        missing = either(missing, hidden)
        pointing = positions if missing is None else positions[~missing]
        if pointing.size and (pointing.max() >= len(values) or pointing.min() < 0):
            raise SemistreamError(
                f"a column of type {self.type} points past the {len(values)} values it has; the batch is damaged: "
                "pyarrow's validate(full=True) tells more"
            )
        return values, positions, missing

    def _pointers(self, array: pa.Array) -> tuple[pa.Array, NDArray[np.int64], Mask | None]:
        raise NotImplementedError


class DictionaryColumn(PointingColumn):
    """A dictionary type; the dictionary made on the way out holds the values that occur, as they appear."""

    def _pointers(self, array: pa.Array) -> tuple[pa.Array, NDArray[np.int64], Mask | None]:
        return array.dictionary, *_positions(array.indices)

    def _wrap(self, array: pa.Array) -> pa.Array:
        indices, distinct = _distinct(array)
        limit = np.iinfo(self.type.index_type.to_pandas_dtype()).max
        if len(distinct) - 1 > limit:
            raise RowLimitError(
                f"{len(array)} rows hold {len(distinct)} different values; a dictionary indexed by "
                f"{self.type.index_type} holds {limit + 1}. Ask for smaller output batches, or build the "
                "relation with the index type int32"
            )
        return pa.DictionaryArray.from_arrays(indices.cast(self.type.index_type), distinct, ordered=self.type.ordered)


class RunEndColumn(PointingColumn):
    """A run-end encoded type; runs are found anew on the way out, since rows come back in any order."""

    def _pointers(self, array: pa.Array) -> tuple[pa.Array, NDArray[np.int64], Mask | None]:
        rows = np.arange(array.offset, array.offset + len(array))
        runs = np.searchsorted(array.run_ends.to_numpy(), rows, side="right")
        return array.values, runs.astype(np.int64), None

    def _wrap(self, array: pa.Array) -> pa.Array:
        limit = np.iinfo(self.type.run_end_type.to_pandas_dtype()).max
        if len(array) > limit:
            raise RowLimitError(
                f"{len(array)} rows in a batch; run ends of type {self.type.run_end_type} count to {limit}. "
                "Ask for smaller output batches, or build the relation with the run end type int32"
            )
        codes, _ = _distinct(array)
        codes = codes.fill_null(-1).to_numpy()
        last = np.append(codes[1:] != codes[:-1], True)[: len(array)]
        ends = np.flatnonzero(last)
        run_ends = pa.array(ends + 1, self.type.run_end_type)
        values = _gather(array, ends, None)
        return pa.RunEndEncodedArray.from_buffers(self.type, len(array), [None], 0, children=[run_ends, values])


class UnionColumn(Column):
    """A union: the type code and every child, of which only the one that the code names means anything."""

    def __init__(self, type_: pa.DataType) -> None:
        super().__init__(type_)
        self._dense: bool = type_.mode == "dense"
        self._codes: list[int] = list(type_.type_codes)
        self._children = [column_for(type_.field(i).type) for i in range(type_.num_fields)]
        self.slots = (1, *(width for child in self._children for width in child.slots))

    def split(self, array: pa.Array, hidden: Mask | None = None) -> list[Cells]:
        codes = numbers(array.buffers()[1], "<i1", array.offset, len(array))
        cells = [Cells(None, codes)]
        for child, values, others in self._parts(array, codes, hidden):
            cells.extend(cell.hidden(others) for cell in child.split(values, others))
        return cells

    def spread(self, array: pa.Array, hidden: Mask | None = None) -> NDArray[np.int64] | None:
        codes = numbers(array.buffers()[1], "<i1", array.offset, len(array))
        spreads = [child.spread(values, others) for child, values, others in self._parts(array, codes, hidden)]
        return added([spread for spread in spreads if spread is not None])

    def _parts(
        self, array: pa.Array, codes: NDArray[np.int8], hidden: Mask | None
    ) -> Iterator[tuple[Column, pa.Array, Mask]]:
        """Yield each child, its values row by row, and which rows are another child's."""
        for i, (code, child) in enumerate(zip(self._codes, self._children, strict=True)):
            values = array.field(i)
            others = codes != code
            if hidden is not None:
                others |= hidden
            if self._dense:
                offsets = numbers(array.buffers()[2], "<i4", array.offset, len(array)).astype(np.int64)
                values = _gather(values, offsets, others)
            yield child, values, others

    def join(self, cells: Sequence[Cells], rows: int) -> pa.Array:
        codes = cells[0].values.view(np.int8)
        if cells[0].nulls is not None:
            # Hidden by a NULL parent; a union must still name one of its children.
            codes = np.where(cells[0].nulls, np.int8(self._codes[0]), codes)
        children = []
        offsets = np.zeros(rows, dtype=np.int32)
        taken = 1
        for code, child in zip(self._codes, self._children, strict=True):
            values = child.join(cells[taken : taken + len(child.slots)], rows)
            taken += len(child.slots)
            if self._dense:
                mine = np.flatnonzero(codes == code)
                offsets[mine] = np.arange(mine.size)
                values = _gather(values, mine, None)
            children.append(values)
        buffers = [None, pa.py_buffer(codes)] + ([pa.py_buffer(offsets)] if self._dense else [])
        return pa.Array.from_buffers(self.type, rows, buffers, 0, children=children)


def _positions(indices: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    dtype: np.dtype[Any] = np.dtype(indices.type.to_pandas_dtype())
    values = numbers(indices.buffers()[1], dtype, indices.offset, len(indices))
    return values.astype(np.int64), null_mask(indices)


def _gather(array: pa.Array, positions: NDArray[np.int64], missing: NDArray[np.bool_] | None) -> pa.Array:
    """Take values by position, NULL where ``missing``; unlike Arrow's own ``take``, of every type."""
    try:
        return array.take(pa.array(positions, mask=missing))
    except pa.ArrowNotImplementedError:
        codec, rows = _as_rows(array)
        _, null = _as_rows(pa.nulls(1, array.type))
        starts = np.append(rows.starts, rows.data.size)
        positions = positions if missing is None else np.where(missing, len(array), positions)
        return codec.decode(np.concatenate([rows.data, null.data]), starts[positions]).column(0)


def _as_rows(array: pa.Array) -> tuple[RowCodec, Rows]:
    """Encode one array as rows of one column."""
    from semistream.relation.rows.row_codec import RowCodec  # its columns may be nested: see the end of `row_columns`

    codec = RowCodec(pa.schema([(_VALUE, array.type)]))
    return codec, codec.encode(pa.record_batch([array], schema=codec.schema))


def _distinct(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Number the distinct values in order of appearance, NULLs left NULL; of every type."""
    try:
        # Arrow leaves a dictionary as it is, though a dictionary of dictionaries has to be numbered too.
        if not pa.types.is_dictionary(array.type):
            encoded = pc.dictionary_encode(array)
            return encoded.indices, encoded.dictionary
    except pa.ArrowNotImplementedError:
        pass
    # Rows of equal bytes are equal values, and byte strings Arrow can number.
    _, rows = _as_rows(array)
    offsets = pa.py_buffer(np.append(rows.starts, rows.data.size))
    buffers = [None, offsets, pa.py_buffer(rows.data)]
    blobs = pa.Array.from_buffers(pa.large_binary(), len(array), buffers, 0)
    codes = pc.dictionary_encode(blobs).indices.to_numpy()
    _, first = np.unique(codes, return_index=True)
    return pa.array(codes, mask=null_mask(array)), _gather(array, first, None)


def nested_column_for(type_: pa.DataType) -> Column | None:
    """Choose the column class for a nested or encoded type; None for a plain one."""
    is_ = pa.types
    if isinstance(type_, pa.BaseExtensionType):
        return ExtensionColumn(type_, type_.storage_type)
    if is_.is_dictionary(type_):
        return DictionaryColumn(type_, type_.value_type)
    if is_.is_run_end_encoded(type_):
        return RunEndColumn(type_, type_.value_type)
    if is_.is_union(type_):
        return UnionColumn(type_)
    if is_.is_nested(type_):
        return ListColumn(type_)
    return None
