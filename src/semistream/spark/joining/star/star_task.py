"""One task of a stage with all of its joins: it receives the keys of all dimensions and returns all of their columns.

The task is an Arrow UDF that answers each row once, in order. Dimensions that are held whole are looked up batch by
batch. If the stage has a shuffled dimension, the keys are a stream for its join. Columns that the other dimensions need
are part of that stream, so the join's budget covers them, and results come back in order::

    batch of keys ──▶ held dimensions before ──▶ shuffled dimension (a join) ──▶ held dimensions after ──▶ structs
                      places of rows: int32      keys + places + fate             from keys

The *fate* of a row is 0 while it is joined. A row without a match that is dropped or becomes a dead letter is not
looked up in later dimensions, as in a chain of joins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as st
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.accumulators import Accumulator

from semistream.core.arrays import Bools, Slots
from semistream.joins import Join
from semistream.spark.joining.arrival import Arrival
from semistream.spark.joining.join_task import set_modules_apart
from semistream.spark.joining.spreading.guests import Guests
from semistream.spark.joining.spreading.hot_keys import KeyReport, KeySample
from semistream.spark.joining.star.dimensions import HeldDimension, HeldImages, LookUp, ShuffledDimension
from semistream.spark.monitoring.metrics import COUNTERS, counters
from semistream.spark.relations.types import fit, together

__all__ = ["DROPPED", "FATE", "FOUND", "StarTask", "answer_type", "column_name", "counters_name", "riding_names"]

FATE, FOUND = "fate", "\0found"
DROPPED = -1
_PASSES = -2
"""Fate of a row that an earlier stage has marked: it passes all joins unchanged."""

Dimension = HeldDimension | ShuffledDimension


def column_name(dimension: int, column: int) -> str:
    """Return the name of a dimension's column among the answers."""
    return f"d{dimension}r{column}"


def counters_name(dimension: int) -> str:
    """Return the name of a dimension's counters among the answers."""
    return f"d{dimension}counters"


def answer_type(added: list[list[st.StructField]], counted: list[bool], *, flagged: bool) -> st.StructType:
    """Return the type of a row's answer: columns by number, the fate, counters."""
    fields = [
        st.StructField(column_name(number, at), part.dataType)
        for number, parts in enumerate(added)
        for at, part in enumerate(parts)
    ]
    if flagged:
        fields.append(st.StructField(FATE, st.ByteType()))
    fields += [st.StructField(counters_name(number), st.StringType()) for number, tells in enumerate(counted) if tells]
    return st.StructType(fields)


@dataclass(frozen=True)
class StarTask:
    """The function of a stage.

    Its arguments are arrays of key columns, of marks if there are any, and of arrivals.
    """

    dimensions: tuple[Dimension, ...]
    """In the order of the joins; one of them may be shuffled."""
    marked: bool
    """Whether an array says which rows an earlier join has marked."""
    timed: bool
    """Whether rows arrive with the time of the micro-batch; replays have the same time."""
    reports: Accumulator[list[KeyReport]] | None = None
    """Where to report frequent keys; None if hot keys are not spread."""

    @property
    def flagged(self) -> bool:
        """Whether answers contain the fate of rows."""
        return any(one.way != "null" for one in self.dimensions)

    @property
    def shuffled(self) -> int | None:
        """The number of the shuffled dimension."""
        return next((at for at, one in enumerate(self.dimensions) if isinstance(one, ShuffledDimension)), None)

    def semistream_join(self, arrays: Iterator[Any]) -> Iterator[pa.Array]:
        """Yield structs, one per row; plans call this method by its name."""
        given = (list(columns) for columns in arrays if len(columns[0]))
        first = next(given, None)
        if first is None:  # true for most tasks of a small micro-batch: open nothing
            return
        context = TaskContext.get()
        assert context is not None, "runs only inside a Spark task"
        arrival = Arrival.of(first[-1])
        images = HeldImages(context, arrival.moment if self.timed else None)
        work = _Work(self, arrival, {
            number: LookUp(one, images)
            for number, one in enumerate(self.dimensions)
            if isinstance(one, HeldDimension)
        })  # fmt: skip
        late: pa.RecordBatch | None = None
        for answers in work.answers(chain([first], given)):
            if late is not None:
                yield self._structs(late)
            late = answers
        images.done()
        set_modules_apart()
        assert late is not None
        last = late.num_rows - 1
        if work.counters:
            yield self._structs(late.slice(0, last))
            yield self._structs(late.slice(last), work.counters)
        else:
            yield self._structs(late)

    def _structs(self, rows: pa.RecordBatch, counted: dict[int, pa.Array] | None = None) -> pa.StructArray:
        columns, names = list(rows.columns), list(rows.schema.names)
        for number, one in enumerate(self.dimensions):
            if one.counted:
                columns.append((counted or {}).get(number, pa.nulls(rows.num_rows, COUNTERS.type)))
                names.append(counters_name(number))
        return pa.StructArray.from_arrays(columns, names)


@dataclass
class _Rows:
    """Some rows on their way through a stage."""

    fates: NDArray[np.int8] | None
    """None while all rows are joined."""
    places: dict[int, Slots] = field(default_factory=dict)
    """Places of the rows of R, by held dimension."""

    @property
    def asked(self) -> Bools | None:
        """Which rows are still joined; None means all."""
        return None if self.fates is None else self.fates == 0

    def exclude_unmatched(self, unmatched: Bools, dimension: int, way: str) -> None:
        """Exclude rows without a match in a dimension from later joins, unless they are kept with NULLs."""
        if way == "null" or not unmatched.any():
            return
        if self.fates is None:
            self.fates = np.zeros(unmatched.size, np.int8)
        self.fates[unmatched & (self.fates == 0)] = DROPPED if way == "drop" else dimension + 1


class _Work:
    """The state of one task."""

    def __init__(self, star: StarTask, arrival: Arrival, look_ups: dict[int, LookUp]) -> None:
        self._star, self._arrival, self._look_ups = star, arrival, look_ups
        self._cut = len(star.dimensions) if star.shuffled is None else star.shuffled
        """Dimensions before this one are looked up when rows arrive."""
        after = [one for one in star.dimensions[self._cut + 1 :] if isinstance(one, HeldDimension)]
        self._riding = sorted({key for one in after for key in one.keys})
        """Key columns that dimensions after the shuffled one need."""
        self._rows = 0
        self.counters: dict[int, pa.Array] = {}
        """Counters, by dimension."""

    def answers(self, given: Iterator[list[pa.Array]]) -> Iterator[pa.RecordBatch]:
        """Yield the answers for all rows, in order."""
        if self._star.shuffled is None:
            yield from self._held(given)
        else:
            yield from self._joined(given, self._star.shuffled)
        for number, look_up in self._look_ups.items():
            if look_up.dimension.counted:
                self.counters[number] = look_up.counters(self._arrival.part)

    def _held(self, given: Iterator[list[pa.Array]]) -> Iterator[pa.RecordBatch]:
        sharing = Counter(look_up.dimension.image for look_up in self._look_ups.values())
        most = min(look_up.rows_at_once(sharing[look_up.dimension.image]) for look_up in self._look_ups.values())
        for columns in given:
            for begin in range(0, len(columns[0]), most):
                some = [column.slice(begin, most) for column in columns]
                yield self._answer(self._arrived(some), len(some[0]), None)

    def _arrived(self, columns: list[pa.Array]) -> _Rows:
        """Look up new rows in the dimensions before the shuffled one."""
        rows = _Rows(None)
        if self._star.marked and (marks := columns[-2]).true_count:
            rows.fates = np.where(marks.to_numpy(zero_copy_only=False), np.int8(_PASSES), np.int8(0))
        for number in range(self._cut):
            self._look_up(number, rows, columns)
        return rows

    def _look_up(self, number: int, rows: _Rows, columns: list[pa.Array] | dict[int, pa.Array]) -> None:
        look_up = self._look_ups[number]
        dimension = look_up.dimension
        places = look_up.find([columns[key] for key in dimension.keys], rows.asked)
        rows.places[number] = places
        rows.exclude_unmatched(places < 0, number, dimension.way)

    def _answer(self, rows: _Rows, count: int, shuffled: list[pa.Array] | None) -> pa.RecordBatch:
        arrays: list[pa.Array] = []
        names: list[str] = []
        for number, one in enumerate(self._star.dimensions):
            if number in self._look_ups:
                made = self._look_ups[number].columns(rows.places[number])
            else:
                assert shuffled is not None
                made = shuffled
            arrays += made
            names += [column_name(number, at) for at in range(len(one.added))]
        if self._star.flagged:
            fates = np.zeros(count, np.int8) if rows.fates is None else rows.fates
            arrays.append(pa.array(np.where(fates == _PASSES, np.int8(0), fates)))
            names.append(FATE)
        return pa.RecordBatch.from_arrays(arrays, names=names)

    # -- with a shuffled dimension ------------------------------------------------------------------------

    def _joined(self, given: Iterator[list[pa.Array]], number: int) -> Iterator[pa.RecordBatch]:
        dimension = self._star.dimensions[number]
        assert isinstance(dimension, ShuffledDimension)
        task, part = dimension.task, self._arrival.part
        away = [0]
        stream = self._stream(given, dimension, away)
        first = next(stream)
        width = len(first[0].schema)
        with task.at_work(self._arrival, first[0]) as (joined, order):
            task.relation.check_answers(joined.relation, dated="as_of" in task.settings)
            guests = Guests(task, joined.relation)
            sample = None
            if self._star.reports is not None:
                sample = KeySample(joined.relation.key, joined.on, task.parts, first[0])
            for found in guests.joined(joined, chain([first], stream)):
                for result in together(found, task.memory.results // 2):
                    result = result if order is None else result.select([*order, result.num_columns - 1])
                    yield from self._left(result, width, dimension, number, guests)
            if self._star.reports is not None and sample is not None:
                self._star.reports.add([sample.report(part, self._rows)])
        if task.counted:
            self.counters[number] = _counters(joined, part, away[0], guests.count, dimension.way)

    def _stream(
        self, given: Iterator[list[pa.Array]], dimension: ShuffledDimension, away: list[int]
    ) -> Iterator[tuple[pa.RecordBatch, NDArray[np.bool_] | None]]:
        """Yield batches of the join's stream, and which of their rows are guests; None if guests are not possible."""
        fated = self._is_fated
        for columns in given:
            count = len(columns[0])
            rows = self._arrived(columns)
            keys = [columns[key] for key in dimension.keys]
            asked = rows.asked
            if asked is not None and not asked.all():  # the join passes NULL keys on
                away[0] += count - int(np.count_nonzero(asked))
                there = pa.array(asked)
                keys = [pc.if_else(there, key, pa.scalar(None, key.type)) for key in keys]
            riding = [pa.array(rows.places[before]) for before in range(self._cut)]
            riding += [columns[key] for key in self._riding]
            if fated:
                riding.append(pa.array(np.zeros(count, np.int8) if rows.fates is None else rows.fates))
            self._rows += count
            guests = columns[-1].to_numpy() < 0 if dimension.task.memory.guests else None
            yield pa.RecordBatch.from_arrays([*keys, *riding], names=list(dimension.task.names)), guests

    @property
    def _is_fated(self) -> bool:
        return is_fated(self._star.dimensions[: self._cut], marked=self._star.marked)

    def _left(
        self, result: pa.RecordBatch, width: int, dimension: ShuffledDimension, number: int, guests: Guests
    ) -> Iterator[pa.RecordBatch]:
        """Yield answers for rows that leave the join; their first ``width`` columns are the join's stream."""
        found = result.num_columns - 1
        values = fit(result.select(list(range(width, found))), dimension.added)
        answers = pa.RecordBatch.from_arrays([*values.columns, result.column(found)],
                                             schema=dimension.added.append(pa.field(FOUND, pa.bool_())))  # fmt: skip
        begin = 0
        for some in guests.fill_in(answers):
            count = some.num_rows
            riding = iter(result.slice(begin, count).columns[len(dimension.keys) : width])
            begin += count
            rows = _Rows(None, {before: next(riding).to_numpy() for before in range(self._cut)})
            keys = {key: next(riding) for key in self._riding}
            if self._is_fated:
                rows.fates = next(riding).to_numpy().copy()
            if dimension.way != "null":
                unmatched = ~some.column(some.num_columns - 1).to_numpy(zero_copy_only=False)
                rows.exclude_unmatched(unmatched, number, dimension.way)
            for after in range(number + 1, len(self._star.dimensions)):
                self._look_up(after, rows, keys)
            yield self._answer(rows, count, list(some.columns[:-1]))


def is_fated(before: tuple[Dimension, ...], *, marked: bool) -> bool:
    """Return whether some rows that reach the shuffled dimension may no longer be joined."""
    return marked or any(one.way != "null" for one in before)


def riding_names(dimensions: tuple[Dimension, ...], cut: int, *, marked: bool) -> list[str]:
    """Return the names of the columns that ride along in the stream of the shuffled dimension, number ``cut``."""
    after = sorted({key for one in dimensions[cut + 1 :] for key in one.keys})
    names = [f"\0place{number}" for number in range(cut)] + [f"\0key{key}" for key in after]
    return names + ["\0fate"] * is_fated(dimensions[:cut], marked=marked)


def _counters(joined: Join, part: int, away: int, guests: int, way: str) -> pa.Array:
    """Return the counters of a join: without the ``away`` rows that only passed through, and with guests as matches."""
    less = dict.fromkeys(("rows_in", "rows_done", "null_keys", "unmatched", "rows_out"), -away)
    less |= {name: less[name] - guests for name in ("null_keys", "unmatched")}
    if way != "null":  # rows without a match leave the join only to keep their position
        less["rows_out"] -= joined.stats.unmatched - away - guests
    return counters(joined, part, **less)
