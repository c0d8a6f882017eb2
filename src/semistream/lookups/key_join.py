"""ADAPTIVEJOIN of a stream that consists only of keys: the cache behind `semistream.lookups.lookups.Lookups`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bools
from semistream.joins.adaptive.adaptivejoin import AdaptiveJoin
from semistream.joins.interface.conditions import pick_columns
from semistream.joins.interface.output import output_schema
from semistream.relation.relation import Relation
from semistream.relation.rows.fitting import null_array, one_batch
from semistream.relation.rows.row_gather import RowGather
from semistream.structures.hot.known_rows import known_rows

__all__ = ["Answer", "KeyJoin"]

_POSITION, _FOUND = "\0position", "\0found"


@dataclass(frozen=True)
class Answer:
    """Rows of R for keys, ordered by key: several rows for a key that has several, one of NULLs if it has none."""

    columns: list[pa.Array]
    found: Bools
    """Whether each row is a row of R."""
    positions: np.ndarray[tuple[int], np.dtype[np.int64]] | None
    """Position of each row's key among the given keys; None if there is one row for each key."""


@dataclass(frozen=True)
class _Chosen:
    """How a choice of R's columns is decoded."""

    fields: list[pa.Field]
    gather: RowGather
    decoder: RowGather | None
    output: pa.Schema
    blank_bytes: int


class KeyJoin(AdaptiveJoin):
    """Joins batches of keys with R; each call chooses columns of R.

    It follows R through its owner, and does not subscribe to updates itself.

    Parameters
    ----------
    relation
        R.
    memory
        The budget, as for any join.
    """

    id = "lookup"
    title = "look-ups of keys through an arena of rows"
    listed = False

    def __init__(self, relation: Relation, memory: int | float | str) -> None:
        super().__init__(relation, on=relation.key.names, memory=memory)
        self.tell_found(_FOUND)
        self._chosen: dict[str | tuple[str, ...] | None, _Chosen] = {}
        types = zip(relation.key.names, relation.key.widest_types, strict=True)
        self._take_memory(pa.schema([*types, (_POSITION, pa.int64())]), None, None)

    def known(self, keys: pa.RecordBatch, columns: Sequence[str] | None) -> Answer | None:
        """Answer from the arena; None if a key must be read from R, or if there are too many keys at once."""
        chosen = self._choose(columns)
        count = keys.num_rows
        if count > self.pairs_at_once or not self.relation.unique:
            return None
        rows = known_rows(self._arena, *self.relation.key.encode(keys))
        if rows is None:
            return None
        if not self.relation.key.exact and (rows >= 0).any():
            self._part_strangers(keys, rows.copy(), rows)
        found = rows >= 0
        tally = self.tally
        tally.rows_in += count
        tally.probes += count
        tally.cache_hits += count
        tally.rows_done += count
        tally.rows_out += count
        tally.unmatched += count - int(np.count_nonzero(found))
        return Answer(chosen.gather(*self._arena.locate(rows)), found, None)

    def answer(self, keys: pa.RecordBatch, columns: Sequence[str] | None) -> Answer:
        """Answer with reads of R. The keys must have the types of `KeyCodec.widen`."""
        chosen = self._choose(columns)
        self.condition.fields, self._gather, self._decoder = chosen.fields, chosen.gather, chosen.decoder
        self.output_schema, self._blank_bytes = chosen.output, chosen.blank_bytes
        stream = [*keys.columns, pa.array(np.arange(keys.num_rows))]
        pieces = list(self.process([pa.RecordBatch.from_arrays(stream, schema=self.schema)]))
        # Batches of tuples without a match have other metadata.
        plain = [piece.replace_schema_metadata(None) for piece in pieces]
        whole = plain[0] if len(plain) == 1 else one_batch(pa.Table.from_batches(plain, chosen.output))
        found = whole.column(whole.num_columns - 1).to_numpy(zero_copy_only=False)
        positions = None if whole.num_rows == keys.num_rows else whole.column(len(stream) - 1).to_numpy()
        return Answer(whole.columns[len(stream) : -1], found, positions)

    def move(self) -> bool:
        """Follow R to another version, whose changed keys have been forgotten; return False if memory is lacking."""
        size = self._update_bytes_now()  # the index of an updated R is larger
        lacking = size - self._updates_part.bytes - self.budget.free
        if lacking > 0 and self._memory.lend(lacking) is None:
            return False
        self._updates_part.resize(size)
        self._arena.unique = self.relation.unique
        return True

    def _choose(self, columns: Sequence[str] | None) -> _Chosen:
        names = columns if columns is None or isinstance(columns, str) else tuple(columns)  # text is refused below
        if names not in self._chosen:
            fields = list(self.relation.value_schema)
            self.condition.fields = fields = fields if columns is None else pick_columns(fields, columns)
            assert self.schema is not None
            self._chosen[names] = _Chosen(
                fields,
                RowGather(self.relation.codec, [field.name for field in fields]),
                None if columns is None else self._decoder_of_some(),
                self._with_found(output_schema(self.schema, fields, self.suffix)),
                sum(null_array(1, field.type).nbytes for field in fields),
            )
        return self._chosen[names]
