"""The rows and keys of an update in key order, with rows cast to R's columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bools, Ints
from semistream.core.errors import RelationBuildError
from semistream.relation.changes.updatable import Updatable
from semistream.relation.keys.decimals import rescaled
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.keys.valid_times import ValidTimes
from semistream.relation.rows.arrow_input import as_reader
from semistream.relation.rows.dictionaries import roomy, roomy_schema
from semistream.relation.rows.fitting import as_type, no_rows, one_batch
from semistream.relation.rows.selection import keep_rows, take_rows

__all__ = ["ChangedRows", "among", "as_in_r", "by_key", "changed_rows", "check_same_keys", "given_rows"]


class ChangedRows(NamedTuple):
    """Keys that change, and the new rows of some of them; all ascending by key64."""

    keys: Ints
    row_keys: Ints
    rows: pa.RecordBatch
    gone_keys: Ints
    gone: pa.RecordBatch
    """Keys to delete: their columns, in the types in which they were given."""
    null_keys: int = 0
    """Rows left out because their key is NULL."""

    def of_shard(self, relation: Updatable, number: int) -> ChangedRows:
        """Return the changes of one of the open shards."""
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
    """Return the rows to upsert and the keys to delete, both as sorted copies in memory."""
    codec = relation.key
    if isinstance(deletes, pa.Array | pa.ChunkedArray):
        deletes = pa.table([deletes], names=list(codec.names)[:1])
    given = given_rows(upserts, relation, relation.schema.names, others="refused")
    row_keys, rows = by_key(codec, as_in_r(given, relation.schema))
    if relation.times is not None:
        row_keys, rows = _by_time(relation.times, row_keys, rows)
    null_keys = given.num_rows - rows.num_rows
    gone_keys, gone = by_key(codec, given_rows(deletes, relation, codec.names))
    again = np.flatnonzero(row_keys[1:] == row_keys[:-1])
    if again.size and not codec.exact:
        check_same_keys(relation, take_rows(rows, again + 1), take_rows(rows, again))
    return ChangedRows(np.union1d(row_keys, gone_keys), row_keys, rows, gone_keys, gone, null_keys)


def by_key(codec: KeyCodec, batch: pa.RecordBatch) -> tuple[Ints, pa.RecordBatch]:
    """Return rows in key64 order.

    Rows with a NULL key are left out, because a NULL key matches nothing.
    """
    keys, valid = codec.encode(batch)
    order = np.flatnonzero(valid)[np.argsort(keys[valid], kind="stable")]
    return keys[order], take_rows(batch, order)


def _by_time(times: ValidTimes, keys: Ints, rows: pa.RecordBatch) -> tuple[Ints, pa.RecordBatch]:
    """Return the rows of a history by key and time; raise if versions of a key do not follow each other."""
    order = np.lexsort((times.begins(rows), keys))
    keys, rows = keys[order], take_rows(rows, order)
    times.check(keys, times.begins(rows), times.lasts(rows), rows)
    return keys, rows


def given_rows(
    data: Any, relation: Updatable, names: Sequence[str], others: Literal["left out", "refused"] = "left out"
) -> pa.RecordBatch:
    """Return rows as one batch of the columns ``names``, in their given types.

    Key types must be comparable to R's.
    """
    schema = pa.schema([relation.schema.field(name) for name in names])
    if data is None:
        return no_rows(schema)
    table = as_reader(data).read_all()
    missing = [name for name in names if name not in table.schema.names]
    if missing:
        raise RelationBuildError(
            f"the update lacks R's column {missing[0]!r}; it has {table.schema.names}, and needs {list(names)}: rows "
            "are replaced as a whole"
        )
    unknown = [name for name in table.schema.names if name not in names]
    if unknown and others == "refused":
        raise RelationBuildError(
            f"the update has a column {unknown[0]!r}, and R has {list(names)}; leave it out, or add it to R: give "
            "evolve=True, or use Relation.evolve or semistream evolve"
        )
    for name, kind in zip(relation.key.names, relation.key.types, strict=True):
        if (at := table.schema.get_field_index(name)) < 0:
            continue  # there are several, which is reported below
        theirs = table.schema.field(at).type
        if pa.types.is_decimal(kind) and pa.types.is_decimal(theirs) and theirs.scale != kind.scale:
            table = table.set_column(
                at, name, _rescaled(table.column(at), kind, passed_over=names == relation.key.names)
            )
    relation.key.check_stream(table.schema, relation.key.names, "update")
    table = table.select(list(names))
    if max((column.num_chunks for column in table.columns), default=0) > 1:
        wide = roomy_schema(table.schema)
        table = pa.Table.from_batches([roomy(batch, wide) for batch in table.to_batches()], wide)
    return one_batch(table)


def _rescaled(column: pa.ChunkedArray, kind: pa.DataType, *, passed_over: bool) -> pa.ChunkedArray:
    """Return decimals in R's scale, which decimals from Python rarely have.

    Decimals that do not fit become NULL if ``passed_over``; otherwise they raise an error.
    """
    kept = pa.chunked_array([rescaled(chunk, kind.scale) for chunk in column.chunks], pa.decimal256(76, kind.scale))
    if kept.null_count > column.null_count and not passed_over:
        raise RelationBuildError(
            f"the update has keys of {column.type} with more digits than R's, {kind}; round them, or build R again"
        )
    return kept


def as_in_r(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows in R's types, except for dictionaries, which may have more values here than R's can number."""
    schema, columns = roomy_schema(schema), []
    for column, given, field in zip(batch.columns, batch.schema, schema, strict=True):
        try:
            columns.append(as_type(column, field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise RelationBuildError(
                f"column {field.name!r} of the update is {given.type}, and not all of its values fit R's type "
                f"{field.type}: {error}; cast it first"
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema) if columns else batch


def check_same_keys(relation: Updatable, these: pa.RecordBatch, those: pa.RecordBatch) -> None:
    """Raise unless rows with the same key64 have the same key."""
    names = list(relation.key.names)
    if not relation.key.verify(these, names, those.select(names)).all():
        raise RelationBuildError(
            f"two different keys of {names} have the same 64-bit hash, a one-in-billions event; R cannot hold both: "
            "add a column to the key, or map the key to integers"
        )


def among(keys: Ints, ordered: Ints) -> tuple[Bools, Ints]:
    """Return which keys are among ``ordered``, and their positions there."""
    at = np.searchsorted(ordered, keys)
    known = at < ordered.size
    known[known] = ordered[at[known]] == keys[known]
    return known, at
