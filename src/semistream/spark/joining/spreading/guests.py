"""Guests: rows of hot keys in a task that does not have their shard.

This module answers them; the join answers others. A task looks up a guest's row of R once, in the shard that has it.
The join gets the guest with a NULL key, so it passes the guest on without a match. Results are in the order of the
stream, and the guest's answer is filled in there. Guests without a row in R are left to the join, which finds no match.
A key is spread only if its row of R fits into the part of a task's memory for guests
(`semistream.spark.joining.star.stage`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from semistream.core.arrays import Bytes, Ints
from semistream.joins import Join
from semistream.joins.interface.leaving import portions
from semistream.relation.relation import Relation
from semistream.relation.rows.selection import take_rows
from semistream.relation.versions.pins import Pin
from semistream.spark.joining.join_task import JoinTask
from semistream.spark.relations.types import fit

__all__ = ["Guests"]

_MOST = 255


class Guests:
    """The guests of one task.

    Parameters
    ----------
    task
        The task. ``guests`` bytes of its memory are for the rows of guests and for remembering which rows are guests.
    relation
        The shard of the task, at the version that it reads.
    """

    def __init__(self, task: JoinTask, relation: Relation) -> None:
        self._task, self._own = task, relation
        self._on: tuple[str, ...] = task.settings["on"]
        self._known: dict[int, int] = {}  # place of a row by key64, counted from 1; 0 if R does not have the key
        self._rows: pa.RecordBatch | None = None
        self._keys: pa.RecordBatch | None = None
        self._sizes = np.zeros(1, np.int64)  # bytes of the row at each place
        self._waiting: deque[int | NDArray[np.uint8]] = deque()  # of batches in the join: places, or the number of rows
        self._held = 0
        self.count = 0
        """Rows that were answered as guests."""

    def joined(
        self, join: Join, rows: Iterable[tuple[pa.RecordBatch, NDArray[np.bool_] | None]]
    ) -> Iterator[Iterator[pa.RecordBatch]]:
        """Join rows, some of which are guests; yield the join's answers in portions.

        After each, no guest waits.
        """
        rest = iter(rows)
        more = [True]

        def some() -> Iterator[pa.RecordBatch]:
            """Yield batches until there is no room to remember more guests: then the join has to be drained."""
            for batch, guests in rest:
                yield self._admitted(batch, guests)
                if self._held > self._task.memory.guests // 2:
                    return
            more.clear()

        while more:
            yield join.process(some())

    def _admitted(self, batch: pa.RecordBatch, guests: NDArray[np.bool_] | None) -> pa.RecordBatch:
        """Return a batch in which guests with a known row have no key."""
        places = None if guests is None else self._places(batch, guests)
        if places is None or not places.any():
            self._waiting.append(batch.num_rows)
            return batch
        self._waiting.append(places)
        self._held += places.size
        self.count += int(np.count_nonzero(places))
        others = pa.array(places == 0)
        columns = [
            pc.if_else(others, column, pa.scalar(None, column.type)) if name in self._on else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def fill_in(self, answers: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Fill the answers of guests into ``answers``, the join's next answers in the order of the stream.

        A guest's row can be long, while the join's answer for it is almost empty, so the result may be several batches.
        """
        parts = []
        left = answers.num_rows
        while left:
            next_ = self._waiting.popleft()
            size = next_ if isinstance(next_, int) else next_.size
            if size > left:
                self._waiting.appendleft(size - left if isinstance(next_, int) else next_[left:])
                size = left
            parts.append(np.zeros(size, np.uint8) if isinstance(next_, int) else next_[:size])
            self._held -= 0 if isinstance(next_, int) else size
            left -= size
        if not any(part.any() for part in parts):
            yield answers
            return
        places = np.concatenate(parts)
        sizes = self._sizes[places] + answers.nbytes // answers.num_rows
        for begin, end in portions(places.size, sizes, max(self._task.memory.results, self._task.memory.guests) // 2):
            yield self._put_in(answers.slice(begin, end - begin), places[begin:end].astype(np.int64))

    def _put_in(self, answers: pa.RecordBatch, places: Ints) -> pa.RecordBatch:
        assert self._rows is not None
        at = pa.array(np.where(places > 0, answers.num_rows + places - 1, np.arange(places.size)))
        found = list(self._rows.columns)
        if answers.num_columns > len(found):  # a column says which rows have a match
            found.append(pa.repeat(pa.scalar(True), self._rows.num_rows))
        columns = [
            pa.concat_arrays([column, more]).take(at) for column, more in zip(answers.columns, found, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=answers.schema)

    # -- inside -------------------------------------------------------------------------------------------

    def _places(self, batch: pa.RecordBatch, guests: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """Return the place of each row's row of R, counted from 1; 0 for rows that are not answered here."""
        at = np.flatnonzero(guests)
        some = take_rows(batch, at)
        keys, valid = self._own.key.encode(some, self._on)
        at, keys = at[valid], keys[valid]
        distinct, inverse = np.unique(keys, return_inverse=True)
        self._look_up([key for key in distinct.tolist() if key not in self._known])
        found = np.array([self._known[key] for key in distinct.tolist()], np.int64)[inverse]
        if not self._own.key.exact and found.any():  # R may have a different key with the same hash
            assert self._keys is not None
            known = found > 0
            ours = self._keys.take(pa.array(found[known] - 1))
            same = self._own.key.verify(take_rows(batch, at[known]), self._on, ours)
            found[np.flatnonzero(known)[~same]] = 0
        places = np.zeros(batch.num_rows, np.uint8)
        places[at] = found
        return places

    def _look_up(self, unknown: list[int]) -> None:
        """Find the rows of keys in their shards.

        Each shard is opened only once, because that is slow in a store.
        """
        task, keys = self._task, np.array(unknown, np.int64)
        homes = self._own.key.shards(keys, task.shards)
        for home in np.unique(homes).tolist():
            with task.relation.opened(Pin(self._own.version), home, task.shards) as relation:
                frames = relation.frames(1)
                for key in keys[homes == home].tolist():
                    self._known[key] = self._found(relation, frames, key)

    def _found(self, relation: Relation, frames: Bytes, key: int) -> int:
        """Find a key's row, keep it, and return its place; 0 if R does not have the key."""
        for page in relation.locate(np.array([key], np.int64)).pages:
            there, rows = relation.decode(np.array([page]), frames)
            at = np.flatnonzero(there == key)
            if at.size:
                return self._keep(rows.slice(int(at[0]), 1))
        return 0

    def _keep(self, row: pa.RecordBatch) -> int:
        """Keep copies of the key and the result columns of a row of R; return the row's place."""
        row = row.take(pa.array([0]))  # a slice would hold its whole page in memory
        key, values = (
            row.select(list(self._task.relation.key)),
            fit(row.select(self._task.value_names), self._task.added),
        )
        self._sizes = np.append(self._sizes, values.nbytes)
        if self._rows is not None:
            key, values = pa.concat_batches([self._keys, key]), pa.concat_batches([self._rows, values])
        self._keys, self._rows = key, values
        assert values.num_rows <= _MOST
        return int(values.num_rows)
