"""The packings that a column could have, and what each would save, estimated from a sample of its values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.arrays import Ints
from semistream.relation.rows.packed.packed_kernels import ENTRY
from semistream.relation.rows.packed.packed_values import NumberValues, as_large_binary
from semistream.relation.rows.packed.packing import (
    BYTES,
    CONSTANT,
    DICTIONARY,
    OFFSET,
    SYMBOLS,
    ColumnPacking,
    family,
)
from semistream.relation.rows.packed.symbol_table import TEXT_GROWTH, SymbolTable
from semistream.relation.rows.row_cells import Cells, null_mask
from semistream.relation.rows.row_columns import BytesColumn

__all__ = ["Choice", "choices"]

_TRAINED_BYTES = 96 << 10  # about the bytes of text that a symbol table is trained on
_END = 4  # bytes of the field of an unpacked variable cell
_FEWER = 0.85  # maximum bytes of compressed cells, relative to plain ones: decompressing costs time
_LONGEST = 256  # maximum bytes of a value in a dictionary: `RowCodec.decoded_bytes` assumes the longest in every row
_SMALL = 1.5  # bytes per value: symbols are not tried if another packing needs no more


class Choice(NamedTuple):
    """A packing of one column."""

    packing: ColumnPacking
    saved: float
    """Mean bytes that it saves in each row."""

    def growth(self, type_: pa.DataType) -> int:
        """Return the most bytes by which it can make a row longer: those of an escaped value, or of other text."""
        width = self.packing.width
        if self.packing.family != "bytes":
            plain = NumberValues(type_.value_type if pa.types.is_dictionary(type_) else type_).bytes
            return width + ENTRY + max(8, plain) - plain
        return width + (TEXT_GROWTH if self.packing.kind == SYMBOLS else ENTRY) - _END


def choices(number: int, sample: pa.Array, distinct: pa.Array | None, more: bool) -> tuple[Choice, ...]:
    """Return packings of a column of strings or numbers.

    Parameters
    ----------
    number
        The number of the column.
    sample
        Some of its values, at least one.
    distinct
        The distinct values that were collected, of type large_binary. None if they are too many or not strings.
    more
        Whether R will get more rows, some of them with values that are not known yet.
    """
    if family(sample.type) == "bytes":
        return tuple(_of_bytes(number, as_large_binary(sample), distinct, more))
    if pa.types.is_dictionary(sample.type):
        sample = sample.dictionary.take(sample.indices)
    return tuple(_of_numbers(number, sample))


def _of_numbers(number: int, sample: pa.Array) -> list[Choice]:
    values = NumberValues(sample.type)
    numbers, wide = values.read(sample)
    there = np.ones(len(sample), np.bool_)
    for without in (null_mask(sample), wide):
        if without is not None:
            there &= ~without
    known = np.sort(numbers[there])
    rows, escaped = len(sample), float(ENTRY + 8)
    nulls = sample.null_count
    others = rows - nulls
    kind = family(sample.type)
    found = [Choice(ColumnPacking(number, CONSTANT, kind, 0), values.bytes - escaped * others / rows)]
    if not known.size:
        return found
    distinct, counts = np.unique(known, return_counts=True)
    most = int(counts.argmax())
    if counts[most] > nulls:  # NULLs in a constant column cost no bytes, but time
        table = int(distinct[most]).to_bytes(8, "little", signed=True)
        saved = values.bytes - escaped * (others - int(counts[most])) / rows
        found.append(Choice(ColumnPacking(number, CONSTANT, kind, 0, table=table, lengths=b""), saved))
    divisor = _common_divisor(distinct)
    for step in sorted({1, divisor}):
        for width in range(1, min(7, values.bytes)):
            base, inside = _window(known, ((1 << 8 * width) - 2) * step)
            saved = values.bytes - width - escaped * (others - inside) / rows
            found.append(Choice(ColumnPacking(number, OFFSET, kind, width, base, step), saved))
    return found


def _common_divisor(distinct: Ints) -> int:
    """Return the greatest common divisor of the distances between ascending values; 1 if there is only one value."""
    distances = (distinct - distinct[0]).view(np.uint64)[1:]
    divisor = int(np.gcd.reduce(distances)) if distances.size else 1
    return divisor if divisor < 1 << 63 else 1


def _window(known: Ints, span: int) -> tuple[int, int]:
    """Return the base from which a range of ``span`` covers the most of the ascending values, and their number."""
    least, most = int(known[0]), int(known[-1])
    if most - least <= span:
        return least, known.size
    highest = np.iinfo(np.int64).max
    ends = known.astype(object) + span if most > highest - span else known + span
    until = np.searchsorted(known, np.minimum(ends, highest).astype(np.int64), side="right")
    inside = until - np.arange(known.size)
    best = int(inside.argmax())
    return int(known[best]), int(inside[best])


def _of_bytes(number: int, sample: pa.Array, distinct: pa.Array | None, more: bool) -> list[Choice]:
    (cells,) = BytesColumn(pa.large_binary()).split(sample)
    rows = len(sample)
    plain = _END + float(cells.lengths.mean())
    others = int(cells.lengths.sum()) + ENTRY * (rows - sample.null_count)
    found = [Choice(ColumnPacking(number, CONSTANT, "bytes", 0), plain - others / rows)]
    if sample.null_count < rows:
        counted = sample.drop_null().value_counts()
        values, counts = counted.field(0), counted.field(1).to_numpy()
        most = int(counts.argmax())
        if counts[most] > sample.null_count:
            value = values[most].as_py()
            saved = plain - (others - int(counts[most]) * (len(value) + ENTRY)) / rows
            found.append(Choice(ColumnPacking(number, CONSTANT, "bytes", 0, table=value, lengths=b""), saved))
    if distinct is not None and len(distinct):
        found += _dictionaries(number, sample, distinct, plain, more)
    found += _short(number, BYTES, cells.lengths, cells.lengths, plain)
    if plain - max(one.saved for one in found) <= _SMALL:
        return found
    part = _part(cells)
    table = SymbolTable.trained(part)
    lengths = table.compressed(cells)[2]
    if int(lengths.sum()) <= _FEWER * int(cells.lengths.sum()):
        for one in _short(number, SYMBOLS, lengths, cells.lengths, plain):
            packing = ColumnPacking(
                number, SYMBOLS, "bytes", one.packing.width, table=table.table, lengths=table.lengths
            )
            found.append(Choice(packing, one.saved))
    return found


def _dictionaries(number: int, sample: pa.Array, distinct: pa.Array, plain: float, more: bool) -> list[Choice]:
    """Return dictionaries of the most frequent values; with codes of one byte the others are escaped."""
    places = pc.index_in(sample, value_set=distinct).drop_null().to_numpy().astype(np.int64)
    counts = np.bincount(places, minlength=len(distinct))
    long = pa.array(pc.binary_length(distinct).to_numpy() > _LONGEST)
    keys = [("long", "ascending"), ("count", "descending"), ("value", "ascending")]
    order = pc.sort_indices(pa.table({"long": long, "count": counts, "value": distinct}), sort_keys=keys)
    values, counts = distinct.take(order), counts[order.to_numpy()]
    sizes = pc.binary_length(values).to_numpy()
    unseen = float((sizes[counts == 1] + ENTRY).sum()) / len(sample) if more else 0.0
    usable, found = int((sizes <= _LONGEST).sum()), []
    for width in (1, 2) if usable > 254 else (1,):
        kept = min(usable, (1 << 8 * width) - 2)
        # Good-Turing estimate: new values are as frequent in later rows as values that occur once are in the sample.
        escaped = unseen + float((counts[kept:] * (sizes[kept:] + ENTRY)).sum()) / len(sample)
        table = b"".join(values.slice(0, kept).to_pylist())
        lengths = sizes[:kept].astype("<u4").tobytes()
        packing = ColumnPacking(number, DICTIONARY, "bytes", width, table=table, lengths=lengths)
        found.append(Choice(packing, plain - width - escaped))
    return found


def _short(number: int, kind: str, lengths: Ints, plain_lengths: Ints, plain: float) -> list[Choice]:
    """Return packings whose cells have lengths of one or two bytes."""
    found = []
    for width in (1, 2):
        long = lengths >= (1 << 8 * width) - 1
        total = int(lengths[~long].sum()) + int((plain_lengths[long] + ENTRY).sum())
        found.append(Choice(ColumnPacking(number, kind, "bytes", width), plain - width - total / lengths.size))
    return found


def _part(cells: Cells) -> Cells:
    """Return evenly spaced cells, with about `_TRAINED_BYTES` bytes together."""
    step = max(1, -(-int(cells.lengths.sum()) // _TRAINED_BYTES))
    return Cells(None, cells.values, cells.begins[::step], cells.lengths[::step])
