"""What is right: R as a dictionary, and all rows that there ever were, to be compared with what a join gave.

Which rows belong together comes from canonical keys and row numbers alone. That a result's other columns are those of
the rows it names is compared by Arrow where it compares exactly, value by value as text elsewhere; whatever Arrow finds
to differ is looked at as text, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from differential.random_arrow import plain_values

__all__ = ["Key", "Reference", "Truth", "judge"]

Key = tuple[Any, ...]
Numbers = NDArray[np.int64]


class Reference:
    """Rows that there ever were, by their numbers, which ascend."""

    def __init__(self, batches: list[pa.RecordBatch], number: str) -> None:
        self.names = [name for name in batches[0].schema.names if number == "position" or not name.startswith("k")]
        self._numbers = np.concatenate([batch[number].to_numpy(zero_copy_only=False) for batch in batches])
        self._columns = {name: [batch[name] for batch in batches] for name in self.names}
        self._texts: dict[str, list[str]] = {}

    def compare(self, found: pa.Table, numbers: Numbers, who: str) -> None:
        """Assert that rows found are those of their numbers; -1 stands for a row of NULLs."""
        places = np.searchsorted(self._numbers, numbers)
        inside = np.minimum(places, max(0, self._numbers.size - 1))
        known = (self._numbers[inside] == numbers) if self._numbers.size else np.zeros(numbers.size, bool)
        strange = np.flatnonzero(~known & (numbers != -1))
        assert strange.size == 0, f"{who}: there is no row {numbers[strange[0]]}"
        at = pa.array(np.where(known, places, 0), pa.int64(), mask=~known)
        for name in self.names:
            if not _same(self._columns[name], at, found[name]):
                self._compare_texts(name, places, numbers, found[name], who)

    def _compare_texts(self, name: str, places: Numbers, numbers: Numbers, found: pa.ChunkedArray, who: str) -> None:
        if name not in self._texts:
            self._texts[name] = plain_values(pa.chunked_array(self._columns[name]))
        texts = self._texts[name]
        wanted = ["None" if number == -1 else texts[at] for at, number in zip(places, numbers, strict=True)]
        has = plain_values(found)
        if has != wanted:
            at = next(at for at, (one, other) in enumerate(zip(has, wanted, strict=True)) if one != other)
            raise AssertionError(f"{who}: {name} of row {numbers[at]} is {has[at]:.200}, not {wanted[at]:.200}")


def _same(reference: list[pa.Array], places: pa.Array, found: pa.ChunkedArray) -> bool:
    """Say whether Arrow finds values equal, bit by bit; if it cannot tell, they are not."""
    if not _comparable(reference[0].type):
        return False
    try:
        wanted = pa.chunked_array([_bits(chunk) for chunk in reference]).take(places)
        return bool(wanted.equals(pa.chunked_array([_bits(chunk) for chunk in found.chunks], wanted.type)))
    except pa.ArrowException:
        return False


def _bits(array: pa.Array) -> pa.Array:
    if pa.types.is_floating(array.type):
        return array.view({16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[array.type.bit_width])
    return array


@cache
def _comparable(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or _exact(kind)


def _exact(kind: pa.DataType) -> bool:
    """Say whether two values of a type are the same if Arrow calls them equal."""
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_floating(kind) or pa.types.is_dictionary(kind):
        return False
    if pa.types.is_union(kind) or pa.types.is_run_end_encoded(kind):
        return False
    return all(_exact(kind.field(at).type) for at in range(kind.num_fields))


class Truth:
    """R as a dictionary from keys to numbers of rows."""

    def __init__(self, sides: Iterable[Any]) -> None:
        self.rows: dict[Key, list[int]] = defaultdict(list)
        self.updates: tuple[int, ...] = ()
        """Which updates it has."""
        for side in sides:
            self._add(side)

    def _add(self, side: Any) -> None:
        for number, keys in zip(side.batch["row"].to_pylist(), side.keys, strict=True):
            if keys is not None:
                self.rows[keys].append(number)

    def update(self, which: int, side: Any, gone: tuple[Key, ...]) -> None:
        for keys in (*gone, *side.keys):
            if keys is not None:
                self.rows.pop(keys, None)
        self._add(side)
        self.updates += (which,)

    @property
    def numbers(self) -> list[int]:
        return sorted(row for rows in self.rows.values() for row in rows)

    def pairs(self, side: Any, how: str) -> tuple[Numbers, Numbers]:
        """Return positions of the stream and numbers of R that belong together, in order; -1 is no row."""
        first = side.batch["position"][0].as_py() if side.batch.num_rows else 0
        positions: list[int] = []
        numbers: list[int] = []
        alone = [-1] if how == "left" else []
        get = self.rows.get
        for position, keys in enumerate(side.keys, first):
            rows = (get(keys) if keys is not None else None) or alone
            numbers += rows
            positions += [position] * len(rows)
        return _sorted(np.array(positions, np.int64), np.array(numbers, np.int64))


def _sorted(positions: Numbers, numbers: Numbers) -> tuple[Numbers, Numbers]:
    order = np.lexsort((numbers, positions))
    return positions[order], numbers[order]


def judge(
    found: list[pa.RecordBatch], should: tuple[Numbers, Numbers], stream: Reference, master: Reference, who: str
) -> None:
    """Assert that a join gave these pairs, and the rows themselves."""
    if found:
        table = pa.Table.from_batches(found)
        positions = _ints(table["position"])
        numbers = _ints(table["row"])
        stream.compare(table, positions, who)
        master.compare(table, numbers, who)
    else:
        positions = numbers = np.empty(0, np.int64)
    has = _sorted(positions, numbers)
    if np.array_equal(has[0], should[0]) and np.array_equal(has[1], should[1]):
        return
    is_there = Counter(zip(*(part.tolist() for part in has), strict=True))
    is_right = Counter(zip(*(part.tolist() for part in should), strict=True))
    missing, extra = is_right - is_there, is_there - is_right
    assert not missing, f"{who} lacks {missing.total()} of {is_right.total()} rows: {list(missing)[:5]}"
    raise AssertionError(f"{who} has {extra.total()} rows too many: {list(extra)[:5]}")


def _ints(column: pa.ChunkedArray) -> Numbers:
    return column.combine_chunks().fill_null(-1).to_numpy(zero_copy_only=False)
