"""Finds what a commit changed, key by key, from the rows that it removed and added.

A commit that rewrites a file to change one row of it removes and adds all rows of the file. Both sides are sorted by
key, within a memory budget, and the rows of each key are compared:

::

    removed   1 apple   2 fig             4 plum
    added     1 apple   2 date   3 pear
              same      upsert   upsert   delete
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.arrays import Bools, Ints
from semistream.core.value_texts import short, value_texts
from semistream.relation.followed.source_table import ChangedBatch, FollowError
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.pages.sorter import KeySorter
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.rows.selection import keep_rows, take_rows

__all__ = ["ChangedKeys", "Difference", "not_unique"]

_ADDED = "__semistream_added"


class ChangedKeys(NamedTuple):
    """Keys that a commit changed, ascending by key64, and their rows after it."""

    upsert_keys: Ints
    upserts: pa.RecordBatch
    delete_keys: Ints
    deletes: pa.RecordBatch
    """Key columns only."""

    def between(self, low: int, high: int | None) -> ChangedKeys:
        """Return the changes of the keys from ``low`` to below ``high``, or to the last key."""
        upserts, deletes = (_span(keys, low, high) for keys in (self.upsert_keys, self.delete_keys))
        return ChangedKeys(
            self.upsert_keys[upserts],
            self.upserts.slice(upserts.start, upserts.stop - upserts.start),
            self.delete_keys[deletes],
            self.deletes.slice(deletes.start, deletes.stop - deletes.start),
        )


def _span(keys: Ints, low: int, high: int | None) -> slice:
    end = keys.size if high is None else int(np.searchsorted(keys, high))
    return slice(int(np.searchsorted(keys, low)), end)


def not_unique(key: Sequence[str], such_as: str = "") -> FollowError:
    """Return the error for a key that has several rows in the source."""
    return FollowError(
        f"{' and '.join(key)} must be unique in a table that a relation follows, but some of its values have several "
        f"rows{such_as}; nothing was committed: remove duplicate rows from the table and rebuild the relation, or add "
        "a column to the key"
    )


class Difference:
    """Takes the rows that a commit removed and added, and returns the keys that it changed.

    Parameters
    ----------
    schema, key
        R's columns and key.
    spill
        Directory for sorted runs; created if the rows do not fit into memory.
    memory
        Bytes for sorting.
    """

    def __init__(self, schema: pa.Schema, key: KeyCodec, spill: Path, memory: int) -> None:
        self._key = key
        self._schema = schema
        self._rows = RowCodec(schema)
        longest = max(map(len, schema.names))
        self._side = pa.field(_ADDED.ljust(longest + 1, "_"), pa.bool_())  # no column of R has this name
        self._sorter = KeySorter(schema.append(self._side), spill, memory)
        self.null_keys = 0
        """Number of added rows with a NULL key, minus the number of removed ones. R does not contain such rows."""
        self.more_rows = 0
        """Number of rows by which R grows, if each key has at most one row before and after."""

    def add(self, changed: ChangedBatch) -> None:
        """Add rows of either side. This may spill."""
        keys, valid = self._key.encode(changed.rows)
        rows = changed.rows
        if not valid.all():
            nulls = int(np.count_nonzero(~valid))
            self.null_keys += nulls if changed.added else -nulls
            keys, rows = keys[valid], keep_rows(rows, valid)
        self.more_rows += rows.num_rows if changed.added else -rows.num_rows
        added = pa.array(np.full(rows.num_rows, changed.added))
        self._sorter.add(keys, rows.append_column(self._side, added))

    def changed(self) -> Iterator[ChangedKeys]:
        """Yield the changed keys in key order, in parts that fit into memory."""
        held: tuple[Ints, pa.RecordBatch] | None = None
        for keys, rows in self._sorter.sorted():
            if held is not None:
                keys = np.concatenate([held[0], keys])
                rows = pa.Table.from_batches([held[1], rows]).combine_chunks().to_batches()[0]
            # The rows of the last key may continue in the next part.
            end = int(np.searchsorted(keys, keys[-1])) if keys.size else 0
            held = keys[end:], rows.slice(end)
            if end:
                yield self._compared(keys[:end], rows.slice(0, end))
        if held is not None and held[0].size:
            yield self._compared(*held)

    def close(self) -> None:
        """Remove what was spilled."""
        self._sorter.close()

    def _compared(self, keys: Ints, rows: pa.RecordBatch) -> ChangedKeys:
        added: Bools = rows.column(rows.num_columns - 1).to_numpy(zero_copy_only=False)
        rows = rows.select(self._schema.names)
        new, old = np.flatnonzero(added), np.flatnonzero(~added)
        for side in (new, old):
            again = np.flatnonzero(keys[side][1:] == keys[side][:-1])
            if again.size:
                raise not_unique(self._key.names, self._such_as(rows, int(side[again[0]])))
        _, in_new, in_old = np.intersect1d(keys[new], keys[old], assume_unique=True, return_indices=True)
        changed = np.ones(new.size, bool)
        changed[in_new] = ~self._equal(rows, new[in_new], old[in_old])
        gone = np.ones(old.size, bool)
        gone[in_old] = False
        upserts, deletes = new[changed], old[gone]
        return ChangedKeys(
            keys[upserts],
            take_rows(rows, upserts),
            keys[deletes],
            take_rows(rows.select(list(self._key.names)), deletes),
        )

    def _equal(self, rows: pa.RecordBatch, these: Ints, those: Ints) -> Bools:
        """Return which rows are equal: the same values have the same bytes."""
        if not these.size:
            return np.zeros(0, bool)
        left, right = (self._as_bytes(take_rows(rows, at)) for at in (these, those))
        return np.asarray(pc.equal(left, right).to_numpy(zero_copy_only=False), bool)

    def _as_bytes(self, rows: pa.RecordBatch) -> pa.Array:
        encoded = self._rows.encode(rows)
        offsets = pa.py_buffer(np.append(encoded.starts, encoded.data.size))
        return pa.Array.from_buffers(
            pa.large_binary(), rows.num_rows, [None, offsets, pa.py_buffer(encoded.data)], 0
        )  # fmt: skip

    def _such_as(self, rows: pa.RecordBatch, at: int) -> str:
        texts = [value_texts(rows.column(name).slice(at, 1))[0] for name in self._key.names]
        return f", such as {', '.join(short(str(text)) for text in texts)}"
