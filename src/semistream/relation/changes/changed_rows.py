"""The rows and keys of an update, as R has them: cast to its columns, in the order of their keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bools, Ints
from semistream.core.errors import RelationBuildError
from semistream.relation.changes.updatable import Updatable
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.rows.arrow_input import as_reader
from semistream.relation.rows.dictionaries import without_null_words
from semistream.relation.rows.fitting import fit, no_rows
from semistream.relation.rows.selection import keep_rows, take_rows

__all__ = ["ChangedRows", "among", "changed_rows", "check_same_keys"]


class ChangedRows(NamedTuple):
    """Keys that change, and the rows that some of them have from now on; all ascending by key64."""

    keys: Ints
    row_keys: Ints
    rows: pa.RecordBatch
    gone_keys: Ints
    gone: pa.RecordBatch
    """Keys to be deleted, and their columns."""

    def of_shard(self, relation: Updatable, number: int) -> ChangedRows:
        """Return what concerns one of the open shards."""
        if len(relation.indexes) == 1:
            return self
        keys, rows, gone = (relation.home(keys) == number for keys in (self.keys, self.row_keys, self.gone_keys))
        return ChangedRows(
            self.keys[keys],
            self.row_keys[rows],
            keep_rows(self.rows, rows),
            self.gone_keys[gone],
            keep_rows(self.gone, gone),
        )


def changed_rows(relation: Updatable, upserts: Any, deletes: Any) -> ChangedRows:
    """Return the rows to put in and the keys to take out; sorts both, and holds a copy of each in memory."""
    codec = relation.key
    if isinstance(deletes, pa.Array | pa.ChunkedArray):
        deletes = pa.table([deletes], names=list(codec.names)[:1])
    row_keys, rows = _by_key(codec, _one_batch(upserts, relation, relation.schema.names))
    gone_keys, gone = _by_key(codec, _one_batch(deletes, relation, codec.names))
    again = np.flatnonzero(row_keys[1:] == row_keys[:-1])
    if again.size and not codec.exact:
        check_same_keys(relation, take_rows(rows, again + 1), take_rows(rows, again))
    return ChangedRows(np.union1d(row_keys, gone_keys), row_keys, rows, gone_keys, gone)


def _by_key(codec: KeyCodec, batch: pa.RecordBatch) -> tuple[Ints, pa.RecordBatch]:
    """Return rows in the order of their key64; a NULL key matches nothing, so such rows are no part of R."""
    keys, valid = codec.encode(batch)
    order = np.flatnonzero(valid)[np.argsort(keys[valid], kind="stable")]
    return keys[order], take_rows(batch, order)


def _one_batch(data: Any, relation: Updatable, names: Any) -> pa.RecordBatch:
    """Return rows as one batch of R's columns ``names``."""
    schema = pa.schema([relation.schema.field(name) for name in names])
    if data is None:
        return no_rows(schema)
    table = as_reader(data).read_all()
    missing = [name for name in names if name not in table.schema.names]
    if missing:
        raise RelationBuildError(
            f"the update lacks R's column {missing[0]!r}; it has {table.schema.names}, and needs {list(names)}"
        )
    table = table.select(list(names))
    if max((column.num_chunks for column in table.columns), default=0) > 1:
        table = pa.Table.from_batches(map(without_null_words, table.to_batches()), table.schema)
    batches = table.combine_chunks().to_batches()
    return fit(batches[0], schema) if batches else no_rows(schema)


def check_same_keys(relation: Updatable, these: pa.RecordBatch, those: pa.RecordBatch) -> None:
    """Raise unless rows of one 64-bit key have one key."""
    names = list(relation.key.names)
    if not relation.key.verify(these, names, those.select(names)).all():
        raise RelationBuildError(
            f"two different keys of {names} have the same 64-bit hash, a one-in-billions event; R cannot hold both: "
            "add a column to the key, or map the key to integers"
        )


def among(keys: Ints, ordered: Ints) -> tuple[Bools, Ints]:
    """Return which keys are among ``ordered``, and where."""
    at = np.searchsorted(ordered, keys)
    known = at < ordered.size
    known[known] = ordered[at[known]] == keys[known]
    return known, at
