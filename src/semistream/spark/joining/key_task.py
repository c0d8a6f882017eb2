"""A join that sees only keys: the stream's other columns stay in the JVM.

A join that answers in the order of the stream, and each row once, is a function of the key: an Arrow UDF, from arrays
of keys to arrays of structs, R's columns. Rows without a partner are told by a flag where anybody asks; counters of the
task are in its last row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as st
from numpy.typing import NDArray
from pyspark.accumulators import Accumulator

from semistream.core.errors import UnsupportedJoinError
from semistream.spark.joining.arrival import Arrival
from semistream.spark.joining.join_task import JoinTask
from semistream.spark.joining.spreading.guests import Guests
from semistream.spark.joining.spreading.hot_keys import KeySample, Told
from semistream.spark.monitoring.metrics import COUNTERS, counters, with_sentinel
from semistream.spark.relations.types import fit, together

__all__ = ["FOUND", "ROW", "KeyTask", "answer_type"]

ROW = pa.field("\0row", pa.uint32())
"""Column of a row's number, by which rows without a partner are told; it begins again after four milliards."""
FOUND = "found"
_FOUND = pa.field(FOUND, pa.bool_())


def answer_type(added: st.StructType, *, flagged: bool, counted: bool) -> st.StructType:
    """Return what the function answers a key with: R's columns by number, the flag, counters."""
    fields = [st.StructField(f"r{number}", part.dataType) for number, part in enumerate(added.fields)]
    if flagged:
        fields.append(st.StructField(FOUND, st.BooleanType()))
    return with_sentinel(st.StructType(fields)) if counted else st.StructType(fields)


@dataclass(frozen=True)
class KeyTask:
    """What the function does in one task: it is given arrays of the key's columns, of marks if any, and of arrivals."""

    task: JoinTask
    """The join; its stream is the key, with `ROW` after it where rows are ``flagged``."""
    flagged: bool
    """Whether to say which rows have a partner. The join is then an inner one."""
    marked: bool
    """Whether an array tells rows that an earlier join has marked; their keys are NULL."""
    told: Accumulator[list[Told]] | None = None
    """Where to tell which keys are hot, if those are spread."""

    def semistream_join(self, arrays: Iterator[Any]) -> Iterator[pa.Array]:
        """Yield structs, as many as keys were given. Plans call it by this name."""
        seen = _Seen()
        keys = self._keys(arrays, seen)
        given = next(keys, None)
        if given is None:
            return
        assert seen.arrival is not None
        first, task = given[0], self.task
        width = len(first.schema)
        with task.at_work(seen.arrival, first) as (joined, order):
            guests = Guests(task, joined.relation)
            sample = None if self.told is None else KeySample(joined.relation.key, joined.on, task.shards, first)
            if not joined.relation.unique:
                raise UnsupportedJoinError(
                    f"version {joined.relation.version} of {task.path} has several rows for a key, and when this query "
                    "was started it had one for each; start it again from its checkpoint"
                )
            late: pa.RecordBatch | None = None
            for found in guests.joined(joined, chain([given], keys)):
                for rows in self._in_order(together(found, task.results // 2), order, width, seen):
                    for answers in guests.beside(rows):
                        if late is not None:
                            yield self._answers(late)
                        late = answers
            if self.told is not None and sample is not None:
                self.told.add([sample.told(seen.arrival.part, seen.rows)])
        assert late is not None
        if not task.counted:
            yield self._answers(late)
            return
        # what passed the join by is none of its rows; guests are, and had a partner
        less = dict.fromkeys(("rows_in", "rows_done", "null_keys", "unmatched"), -seen.marked)
        less |= {name: less[name] - guests.count for name in ("null_keys", "unmatched")}
        less["rows_out"] = guests.count if self.flagged else 0
        told = counters(joined, seen.arrival.part, **less)
        yield self._answers(late.slice(0, late.num_rows - 1))
        yield self._answers(late.slice(late.num_rows - 1), told)

    def _keys(self, arrays: Iterator[Any], seen: _Seen) -> Iterator[tuple[pa.RecordBatch, NDArray[np.bool_] | None]]:
        """Yield batches of the join's stream, and which rows of them are guests if there are any."""
        names = list(self.task.names)
        for given in arrays:
            columns, count = list(given), len(given[0])
            if count == 0:
                continue
            arrived = columns.pop()
            if seen.arrival is None:
                seen.arrival = Arrival.of(arrived)
            if self.marked:
                seen.marked += columns.pop().true_count
            if self.flagged:
                begin = seen.rows & 0xFFFFFFFF
                columns.append(pa.array((np.arange(begin, begin + count) & 0xFFFFFFFF).astype(np.uint32)))
            seen.rows += count
            guests = arrived.to_numpy() < 0 if self.task.guests else None
            yield pa.RecordBatch.from_arrays(columns, names=names), guests

    def _in_order(
        self, found: Iterator[pa.RecordBatch], order: list[int] | None, width: int, seen: _Seen
    ) -> Iterator[pa.RecordBatch]:
        """Yield R's columns for each row that has come in, some of which the join has found."""
        for result in found:
            result = result if order is None else result.select(order)
            rows = fit(result.select(list(range(width, result.num_columns))), self.task.added)
            if self.flagged:
                rows = self._spread(rows, result.column(width - 1), seen.answered)
            seen.answered += rows.num_rows
            yield rows
        if self.flagged and seen.answered < seen.rows:
            yield self._nobody(seen.rows - seen.answered)
            seen.answered = seen.rows

    def _spread(self, rows: pa.RecordBatch, numbers: pa.Array, emitted: int) -> pa.RecordBatch:
        """Return rows with their flag, and one of NULLs in the place of each that is not among the numbers."""
        places = numbers.to_numpy() - np.uint32(emitted & 0xFFFFFFFF)
        count = int(places[-1]) + 1
        found = pa.repeat(pa.scalar(True), rows.num_rows)
        rows = pa.RecordBatch.from_arrays([*rows.columns, found], schema=self._schema)
        if count == rows.num_rows:
            return rows
        at = np.full(count, -1, np.int64)
        at[places] = np.arange(places.size)
        taken = rows.take(pa.array(at, mask=at < 0))
        return taken.set_column(len(self.task.added), _FOUND, pc.fill_null(taken.column(len(self.task.added)), False))

    def _nobody(self, count: int) -> pa.RecordBatch:
        nulls = [pa.nulls(count, part.type) for part in self.task.added]
        return pa.RecordBatch.from_arrays([*nulls, pa.repeat(pa.scalar(False), count)], schema=self._schema)

    @property
    def _schema(self) -> pa.Schema:
        return pa.schema([*self.task.added, _FOUND])

    def _answers(self, rows: pa.RecordBatch, told: pa.Array | None = None) -> pa.StructArray:
        columns = list(rows.columns)
        if self.task.counted:
            columns.append(pa.nulls(rows.num_rows, COUNTERS.type) if told is None else told)
        names = [f"r{number}" for number in range(len(self.task.added))]
        names += [FOUND] * self.flagged + [COUNTERS.name] * self.task.counted
        if not columns:
            return pa.array([{}] * rows.num_rows, pa.struct([]))
        return pa.StructArray.from_arrays(columns, names)


@dataclass
class _Seen:
    """What has come in so far."""

    arrival: Arrival | None = None
    rows: int = 0
    answered: int = 0
    marked: int = 0
    """Rows that are none of the join's."""
