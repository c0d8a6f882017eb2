"""The most frequent stream keys that R does not have, as a bounded number of texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.value_texts import short, value_texts

__all__ = ["MissingKeys"]

_KEPT = 256  # default number of keys to keep
_PENDING_ROWS, _PENDING_BYTES = 4096, 1 << 15
"""Maximum rows and bytes of keys that are collected before they are counted: few tuples leave a join at a time."""
_ENTRY = 256
"""Maximum bytes of a counted key: its text, its count and the dictionary entry."""


class MissingKeys:
    """Counts keys without a match, and keeps the ``kept`` most frequent.

    A count may be too low: a key is dropped when others are more frequent, and its count starts again at zero. A count
    is too high only if several keys have the same text, as long keys with a common beginning do.

    >>> missing = MissingKeys(kept=2)
    >>> missing.add(pa.record_batch({"id": [7, 7, 8, None, 9, 9, 9]}), ["id"])
    >>> missing.add_counts({"7": 1})
    >>> missing.most(), len(missing)
    ({'7': 3, '9': 3}, 2)
    """

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._counts: dict[str, int] = {}
        self._pending: list[list[pa.Array]] = []
        self._pending_rows = self._pending_bytes = 0

    @property
    def most_bytes(self) -> int:
        """Maximum bytes held between two calls: twice the number of kept keys, and the collected keys."""
        return 2 * self._kept * _ENTRY + 2 * _PENDING_BYTES

    def __len__(self) -> int:
        self._count_pending()
        return len(self._counts)

    def add(self, batch: pa.RecordBatch, on: Sequence[str]) -> None:
        """Count the keys of rows; keys with a NULL are ignored."""
        keys = [_plain(batch.column(name)) for name in on]
        if any(column.null_count for column in keys):
            whole = np.logical_and.reduce([column.is_valid().to_numpy(zero_copy_only=False) for column in keys])
            keys = [column.filter(pa.array(whole)) for column in keys]
        rows = len(keys[0])
        if rows == 0:
            return
        size = sum(column.nbytes for column in keys)
        if rows < _PENDING_ROWS and size < _PENDING_BYTES:  # copy: a slice would keep its whole batch in memory
            every = pa.array(np.arange(rows))
            keys = [column.take(every) for column in keys]
        self._pending.append(keys)
        self._pending_rows += rows
        self._pending_bytes += size
        if self._pending_rows >= _PENDING_ROWS or self._pending_bytes >= _PENDING_BYTES:
            self._count_pending()

    def _count_pending(self) -> None:
        if not self._pending:
            return
        names = [f"{number}" for number in range(len(self._pending[0]))]
        keys = pa.table([pa.chunked_array(list(parts)) for parts in zip(*self._pending, strict=True)], names=names)
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        found = keys.group_by(names, use_threads=False).aggregate([([], "count_all")])
        counts = found.column("count_all").to_numpy()
        if counts.size > self._kept:  # make texts only for the most frequent
            top = np.argpartition(counts, counts.size - self._kept)[-self._kept :]
            found, counts = found.take(pa.array(top)), counts[top]
        columns = [[short(str(text)) for text in value_texts(found.column(name))] for name in names]
        self._merge(zip(map(", ".join, zip(*columns, strict=True)), counts.tolist(), strict=True))

    def add_counts(self, counts: Mapping[str, int]) -> None:
        """Add counts from elsewhere."""
        self._merge(counts.items())

    def most(self, count: int = _KEPT) -> dict[str, int]:
        """Return the most frequent keys as text, most frequent first, and at least how often each was missing."""
        self._count_pending()
        return dict(sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))[:count])

    def _merge(self, counts: Iterable[tuple[str, int]]) -> None:
        for key, count in counts:
            self._counts[key] = self._counts.get(key, 0) + count
        if len(self._counts) > self._kept:
            self._counts = self.most(self._kept)


def _plain(column: pa.Array) -> pa.Array:
    """Return a column in a type that Arrow can filter and group."""
    if pa.types.is_dictionary(column.type):
        return _plain(column.dictionary_decode())
    if pa.types.is_run_end_encoded(column.type):
        return _plain(pc.run_end_decode(column))
    if pa.types.is_string_view(column.type):
        return column.cast(pa.string())
    return column.cast(pa.binary()) if pa.types.is_binary_view(column.type) else column
