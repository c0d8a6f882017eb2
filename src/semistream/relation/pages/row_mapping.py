"""How rows of one schema become rows of another, slot by slot and without decoding them.

A row of the target starts as a copy of a template, which has the defaults of columns that the source lacks. Then every
other slot is copied from the source, or converted if the column was widened. The result has the same bytes as if the
values were encoded with the target's codec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bytes, Ints
from semistream.core.errors import SemistreamError
from semistream.relation.rows.fitting import as_type, null_array
from semistream.relation.rows.row_cells import VARIABLE
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.rows.widening import conversion

__all__ = ["BEFORE", "BIT", "BYTE", "DETAIL", "HEAD", "KIND", "PLACE", "STRIDE", "WIDTH", "RowMapping", "map_rows"]

PLACE, WIDTH, BYTE, BIT, BEFORE, KIND, DETAIL = range(7)
"""Columns of `RowMapping.slots`, for each slot: place and width of its field (width -1: variable), byte and bit of its
null mark, the field with the end of the previous variable cell (-1: none), and the conversion."""
STRIDE, HEAD = 0, 1
"""Columns of `RowMapping.heads`: length of a fixed row, or 0; and length of the head."""


class RowMapping(NamedTuple):
    """Mappings of several source layouts to one target."""

    heads: Ints
    """For each source, and last for the target: see `STRIDE`."""
    slots: Ints
    """For each source, and last for the target, and each slot of the target: see `PLACE`. A place of -1 in a source
    means that the slot keeps the template's value."""
    templates: Bytes
    """The template of each source, padded to the same length."""
    growth: Ints
    """For each source: maximum bytes by which a row becomes longer."""
    names: tuple[str, ...]
    """The target's column of each slot, for messages."""


def map_rows(
    sources: Sequence[tuple[RowCodec, Sequence[int]]], target: RowCodec, defaults: Sequence[Mapping[int, pa.Scalar]]
) -> RowMapping:
    """Return the mapping of rows of several sources to rows of ``target``.

    Parameters
    ----------
    sources
        For each source: its codec, and for each column of the target the position of the source's column, or -1.
    target
        The codec of the target.
    defaults
        For each source: values of the target's columns, by position, that the source lacks. Others become NULL.
    """
    spread = [at for at, column in enumerate(target._columns) for _ in column.slots]
    into = _slots(target, range(len(target.schema)), target)
    all_slots = [_slots(codec, places, target) for codec, places in sources]
    rows = [_template(target, places, given) for (_, places), given in zip(sources, defaults, strict=True)]
    templates = np.zeros((len(rows), max((row.size for row in rows), default=0)), np.uint8)
    for number, row in enumerate(rows):
        templates[number, : row.size] = row
    codecs = [codec for codec, _ in sources]
    return RowMapping(
        np.array([[0 if codec.variable else codec.stride, codec.stride] for codec in [*codecs, target]], np.int64),
        np.array([*all_slots, into], np.int64).reshape(len(sources) + 1, len(spread), 7),
        templates,
        np.array([max(0, row.size - codec.stride) for row, codec in zip(rows, codecs, strict=True)], np.int64),
        tuple(target.schema.names[at] for at in spread),
    )


def _slots(codec: RowCodec, places: Sequence[int], target: RowCodec) -> list[list[int]]:
    """Return one row of `RowMapping.slots` for each slot of ``target``."""
    bounds = np.cumsum([0, *(len(column.slots) for column in codec._columns)])
    found = []
    for at, place in enumerate(places):
        wanted = target._columns[at]
        if place < 0:
            found += [[-1, 0, 0, 0, -1, 0, 0]] * len(wanted.slots)
            continue
        how = conversion(codec._columns[place].type, wanted.type)
        if how is None or len(codec._columns[place].slots) != len(wanted.slots):
            raise SemistreamError(
                f"column {target.schema.names[at]!r} of type {codec._columns[place].type} cannot be shown as "
                f"{wanted.type}"
            )
        for slot in range(int(bounds[place]), int(bounds[place + 1])):
            byte, bit = codec._null_bits[slot]
            earlier = [other for other in range(slot) if codec._widths[other] == VARIABLE]
            before = codec._places[earlier[-1]] if earlier else -1
            found.append([codec._places[slot], codec._widths[slot], byte, bit, before, how.kind, how.detail])
    return found


def _template(target: RowCodec, places: Sequence[int], given: Mapping[int, pa.Scalar]) -> Bytes:
    """Return a row with the defaults, in which columns that the source has are empty and not NULL."""
    columns = [
        as_type(pa.repeat(given[at], 1), field.type) if at in given else null_array(1, field.type)
        for at, field in enumerate(target.schema)
    ]
    if not columns:
        return np.zeros(target.stride, np.uint8)
    row = np.array(target.encode(pa.RecordBatch.from_arrays(columns, schema=target.schema)).data)
    slot = 0
    for column, place in zip(target._columns, places, strict=True):
        for number in range(slot, slot + len(column.slots)):
            byte, bit = target._null_bits[number]
            if place >= 0:
                row[byte] &= ~np.uint8(bit)
        slot += len(column.slots)
    return row
