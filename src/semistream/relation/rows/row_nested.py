"""Columns of nested types.

They consist of simpler columns or of rows, so nothing here handles bytes.

=================================  =====================================================================
type                               slots
=================================  =====================================================================
struct                             a null bit, then its children's slots
list, large list, list views,      variable bytes: the child rows of the list, one after another, in the
fixed-size list, map               row format of `row_codec` for the item (key and item for maps)
sparse and dense union             the type code, then every child's slots as in a struct
=================================  =====================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.compiled import frozen
from semistream.core.errors import SemistreamError
from semistream.relation.rows.any_type import gather
from semistream.relation.rows.row_cells import (
    VARIABLE,
    Cells,
    CodecFor,
    Column,
    Mask,
    added,
    either,
    null_mask,
    numbers,
    offsets_buffer,
    offsets_of,
    validity_buffer,
)
from semistream.relation.rows.row_kernels import count_chained_rows, list_chained_rows

__all__ = ["ListColumn", "StructColumn", "UnionColumn"]


class StructColumn(Column):
    """A struct, flattened: its own null bit, then its children as if they were columns of the row."""

    def __init__(self, type_: pa.StructType, children: Sequence[Column]) -> None:
        super().__init__(type_)
        self._children = children
        self.slots = (0, *(width for child in self._children for width in child.slots))

    def split(self, array: pa.Array, hidden: Mask | None = None) -> list[Cells]:
        nulls = null_mask(array)
        cells = [Cells(nulls, np.zeros(0, dtype=np.uint8))]
        below = either(nulls, hidden)
        for i, child in enumerate(self._children):
            cells.extend(cell.hidden(nulls) for cell in child.split(array.field(i), below))
        return cells

    def spread(self, array: pa.Array, hidden: Mask | None = None) -> NDArray[np.int64] | None:
        below = either(null_mask(array), hidden)
        spreads = [child.spread(array.field(i), below) for i, child in enumerate(self._children)]
        return added([spread for spread in spreads if spread is not None])

    def join(self, cells: Sequence[Cells], rows: int) -> pa.Array:
        validity, nulls = validity_buffer(cells[0].nulls)
        children = []
        taken = 1
        for child in self._children:
            children.append(child.join(cells[taken : taken + len(child.slots)], rows))
            taken += len(child.slots)
        return pa.Array.from_buffers(self.type, rows, [validity], nulls, children=children)


class ListColumn(Column):
    """Lists of every kind.

    A cell is the sequence of its items, encoded as rows; a NULL list has no items. Arrow's fixed-size lists have items
    even if they are NULL. Those are decoded as NULL items.
    """

    slots = (VARIABLE,)

    def __init__(self, type_: pa.DataType, codec_for: CodecFor) -> None:
        super().__init__(type_)
        is_ = pa.types
        self._size: int | None = type_.list_size if is_.is_fixed_size_list(type_) else None
        self._view: bool = is_.is_list_view(type_) or is_.is_large_list_view(type_)
        self._large: bool = is_.is_large_list(type_) or is_.is_large_list_view(type_)
        self._map: bool = is_.is_map(type_)
        fields = [type_.key_field, type_.item_field] if self._map else [type_.value_field]
        self._codec_for = codec_for
        self._codec = codec_for(pa.schema(fields))

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
        """Return where each list begins among the items, its length, the items, and which items are in no list."""
        first, sizes = self._extents(array)
        if nulls is not None:
            sizes = np.where(nulls, 0, sizes)
        # Items outside every list (of a slice, or of a view) are left out.
        used = sizes > 0
        low = int(first[used].min()) if used.any() else 0
        high = int((first + sizes)[used].max()) if used.any() else 0
        first = np.where(used, first - low, 0)
        items = [child.slice(low, high - low) for child in self._children(array)]
        outside = None
        if (nulls is not None or self._view) and int(sizes.sum()) != high - low:
            # Items between two lists may be invalid values.
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
            items = [gather(items[0], np.cumsum(~missing) - 1, missing, self._codec_for)]
        return self._array(cell.nulls, counts, items, rows)

    def _extents(self, array: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where each list's items start among all items, and the number of items."""
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


class UnionColumn(Column):
    """A union: the type code and every child, of which only the one that the code selects has a meaning."""

    def __init__(self, type_: pa.DataType, children: Sequence[Column], codec_for: CodecFor) -> None:
        super().__init__(type_)
        self._codec_for = codec_for
        self._dense: bool = type_.mode == "dense"
        self._codes: list[int] = list(type_.type_codes)
        self._children = children
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
        """Yield each child, its values row by row, and which rows belong to another child."""
        for i, (code, child) in enumerate(zip(self._codes, self._children, strict=True)):
            values = array.field(i)
            others = codes != code
            if hidden is not None:
                others |= hidden
            if self._dense:
                offsets = numbers(array.buffers()[2], "<i4", array.offset, len(array)).astype(np.int64)
                values = gather(values, offsets, others, self._codec_for)
            yield child, values, others

    def join(self, cells: Sequence[Cells], rows: int) -> pa.Array:
        codes = cells[0].values.view(np.int8)
        if cells[0].nulls is not None:
            # Hidden by a NULL parent, but the code of a union must still select one of its children.
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
                values = gather(values, mine, None, self._codec_for)
            children.append(values)
        buffers = [None, pa.py_buffer(codes)] + ([pa.py_buffer(offsets)] if self._dense else [])
        return pa.Array.from_buffers(self.type, rows, buffers, 0, children=children)
