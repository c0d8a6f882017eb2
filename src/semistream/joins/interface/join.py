"""What all semi-stream joins share: keys in, results out, and no memory outside of the budget.

The file of an algorithm contains what its paper adds; `semistream.joins.interface.contract` describes what that is.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.arguments import listed
from semistream.core.arrays import Ints
from semistream.core.budget import MemoryBudget
from semistream.core.compiled import frozen
from semistream.core.errors import UnsupportedJoinError
from semistream.core.statistics import JoinStatistics
from semistream.core.units import format_bytes, is_share, memory_bytes
from semistream.joins.interface.conditions import ConditionName, check_condition, condition_for
from semistream.joins.interface.following import FollowsUpdates
from semistream.joins.interface.memory_needs import MemoryNeeds
from semistream.joins.interface.output import output_schema
from semistream.joins.interface.progress import Progress
from semistream.joins.interface.results import Results
from semistream.joins.interface.stage_behind import StageBehind
from semistream.joins.interface.stream_buffer import Tuples
from semistream.joins.interface.view import View
from semistream.relation.relation import Relation
from semistream.relation.rows.fitting import fit, null_array
from semistream.relation.rows.row_cells import RowLimitError
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.rows.selection import keep_rows

__all__ = ["How", "Join"]

How = Literal["inner", "left"]


class Join(FollowsUpdates, Results, StageBehind, MemoryNeeds):
    """A join of a stream with a relation, exact, within a memory budget.

    A join is a small state machine: `offer` puts stream tuples into the stream buffer, `step` runs one iteration of the
    algorithm's loop and yields results, and `drain` steps until no tuple waits. `process` does all of this for an
    iterable of batches.

    Parameters
    ----------
    relation
        R.
    on
        The stream's key column or columns, in the order of R's key. For a range join, its two bounds.
    condition
        ``"equal"``, or ``"between"`` for ``R.key BETWEEN low AND high``, which only some joins support.
    as_of
        In a join with a history, the stream's column with the time of each tuple: a timestamp, date or integer. The
        tuple meets the row of its key that was valid at that time, at most one. Only some joins support this.
    how
        ``"left"`` returns stream tuples without a match once, with NULLs; ``"inner"`` drops them.
    memory
        All memory of the join: bytes, text such as ``"64MB"``, or a share of R such as ``"5%"``. A share is never less
        than the join needs, and holds all of an R of up to 16 MB (`memory_bytes`); ``budget.total`` is the result in
        bytes. None is for a join behind another stage, which assigns its memory later.
    schema
        The stream's schema, if it is known now: then all checks are made immediately, not at the first batch.
    prefix
        Put before the names of all of R's columns in the result.
    suffix
        Added to the names of R's columns that the stream also has.
    columns
        R's columns in the result, by default all. Other columns are not decoded.
    """

    def __init__(
        self,
        relation: Relation,
        *,
        on: str | Sequence[str],
        how: How = "left",
        memory: int | float | str | None = "64MB",
        schema: pa.Schema | None = None,
        suffix: str = "_right",
        prefix: str = "",
        condition: ConditionName = "equal",
        as_of: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        if how not in ("inner", "left"):
            raise UnsupportedJoinError(f"how must be 'inner' or 'left', not {how!r}")
        self.relation = relation
        self.on = listed(on)
        if as_of is not None and condition == "equal":
            condition = "as_of"
        self.condition = condition_for(condition, relation, self.on, columns, as_of)
        self._decoder = None if columns is None else self._decoder_of_some()
        check_condition(condition, self.id, self.conditions)
        self.how = how
        given = 1 if memory is None else memory_bytes(memory, relation.nbytes, relation.row_count)
        self.budget, self._may_grow = MemoryBudget(given), is_share(memory)
        self.schema = schema
        self.prefix, self.suffix = prefix, suffix
        self.row_bytes = 2.0  # until the stream is known: no row is shorter
        self.bound = False
        self._index_bytes = relation.index_bytes
        self._counters = relation.counters
        self.tally = JoinStatistics()
        if schema is not None:
            self.bind(schema)
        elif memory is not None:
            self._check_minimum()  # the only check that is possible before the stream is known

    # -- the interface ------------------------------------------------------------------------------------

    def bind(self, schema: pa.Schema, sample: pa.RecordBatch | None = None, *, row_bytes: float | None = None) -> None:
        """Set the stream's schema: check the key, determine the output schema, allocate the memory.

        Called by the first `offer`. ``sample`` or ``row_bytes`` gives the expected length of variable-length rows.
        """
        self._take_memory(schema, sample, row_bytes)
        self.relation.subscribe(self)

    def _take_memory(self, schema: pa.Schema, sample: pa.RecordBatch | None, row_bytes: float | None) -> None:
        self._know_stream(schema, row_bytes)
        self._check_minimum()
        if self.stream_codec.variable:
            self._expect_rows(self.row_bytes, self._typical_row(sample) if row_bytes is None else row_bytes)
        self._blank_bytes = sum(null_array(1, field.type).nbytes for field in self.condition.fields)
        self._take_parts(self._update_bytes_now())
        self.bound = True

    def _know_stream(self, schema: pa.Schema, row_bytes: float | None) -> None:
        """Check the stream's schema, and store what depends on it, before any memory is allocated."""
        self.condition.check(schema)
        self.schema = schema
        joined = output_schema(schema, self.condition.fields, self.suffix, prefix=self.prefix)
        self.output_schema = self._with_found(joined)
        self.stream_codec = RowCodec(schema)
        self.row_bytes = float(self.stream_codec.stride)
        if self.stream_codec.variable:
            self.row_bytes += 16.0 if row_bytes is None else min(16.0, row_bytes - self.row_bytes)
        self._index_bytes = self.relation.index_bytes

    @classmethod
    def minimum_memory(cls, relation: Relation, schema: pa.Schema, **options: object) -> int:
        """Return the smallest budget that this algorithm accepts for a stream of ``schema``."""
        if not cls.bounded:
            return 1
        join = cls(relation, memory=None, **options)  # type: ignore[arg-type]
        join._know_stream(schema, None)
        return join.least_memory()

    def offer(self, batch: pa.RecordBatch) -> int:
        """Put stream tuples into the stream buffer; return how many were accepted, counted from the first.

        If the buffer is full, fewer than all are accepted: call `step`, then offer the rest.
        """
        began = time.perf_counter()
        self._check_usable()
        if not self.bound:
            self.bind(batch.schema, batch)
        if batch.schema != self.schema:
            batch = fit(batch, self.schema)
        taken = 0
        try:
            while taken < batch.num_rows and (more := self._offer(batch.slice(taken))):
                taken += more
                with self._to_its_end():
                    self.absorb()
        except RowLimitError:
            if taken == 0:  # otherwise raise when the row is the first of an offer
                raise
        self.tally.busy_seconds += time.perf_counter() - began
        return taken

    def step(self) -> Iterator[pa.RecordBatch]:
        """Run one iteration of the algorithm's loop, and yield its results. Consume the iterator to its end.

        A join whose iteration was abandoned, or ended with an error such as a failed read, cannot be used any more.
        """
        self._check_usable()
        self.tally.steps += 1
        turn = self._whole_turn()
        self._in_turn = True
        try:
            with self._to_its_end():
                while True:
                    began = time.perf_counter()
                    result = next(turn, None)
                    self.tally.busy_seconds += time.perf_counter() - began
                    if result is None:
                        return
                    if result.num_rows:
                        self.tally.rows_out += result.num_rows
                        yield result
        finally:
            self._in_turn = False

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Step until no tuple waits. The join can be used afterwards: a micro-batch ends this way."""
        self._check_usable()
        self.closing = True
        progress = Progress(self)
        try:
            while self.pending:
                yield from self.step()
                progress.turned()
        finally:
            self.closing = False

    def process(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join a whole stream: yield results as they are found, and all of them by the end."""
        if isinstance(batches, pa.Table):
            batches = batches.to_batches()
        for batch in [batches] if isinstance(batches, pa.RecordBatch) else batches:
            yield from self.feed(batch)
        yield from self.drain()

    def feed(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add a batch of a continuing stream, stepping when memory is full; some of its tuples may wait afterwards."""
        at = 0
        progress = Progress(self)
        while at < batch.num_rows:
            at += self.offer(batch.slice(at))
            if at < batch.num_rows:
                self.more_coming = True
                try:
                    yield from self.step()
                finally:
                    self.more_coming = False
                progress.turned()

    @property
    def pending(self) -> int:
        """Stream tuples that were offered and have not left."""
        return self.waiting + (self.stream.held if self.bound else 0)

    @property
    def stats(self) -> JoinStatistics:
        """Counters of the join's work so far."""
        read = self.relation.counters - self._counters
        return dataclasses.replace(
            self.tally,
            pages_read=read.pages, reads=read.reads, bytes_read=read.bytes, io_seconds=read.seconds,
            store_requests=read.requests, store_bytes=read.fetched_bytes, local_pages=read.local_pages,
        )  # fmt: skip

    def view(self) -> View:
        """Return a snapshot of the join's state, for measurements and tests; call it between iterations."""
        return View(self.arrived, self.waiting, self.stream.limit, self.budget.parts())

    def work(self) -> tuple[object, ...]:
        """Return numbers of which at least one changes in an iteration that makes progress."""
        stats = self.tally
        done = stats.rows_in, stats.rows_done, stats.rows_out, stats.probes, stats.appended, stats.buffered
        return (*done, self.pending, self.relation.counters.pages)

    def check(self) -> None:
        """Assert all invariants, which hold between iterations."""
        self.budget.check()
        if self.bound:
            self.stream.check()
            self.check_parts()

    # -- inside -------------------------------------------------------------------------------------------

    def _whole_turn(self) -> Iterator[pa.RecordBatch]:
        if self.bound:
            yield from self._serve_aside()
            yield from self.turn()

    def _offer(self, batch: pa.RecordBatch) -> int:
        count = self.stream.fitting(batch)
        if count == 0:
            if self.stream.room.taken:
                return 0
            count = 1  # a row larger than the whole stream buffer is joined alone
            self._check_row(batch.slice(0, 1))
        batch = batch.slice(0, count)
        keys, valid = self.condition.lows(batch)
        self.tally.rows_in += count
        if not valid.all():
            self._put_aside(None, keep_rows(batch, ~valid))
            keys, batch = keys[valid], keep_rows(batch, valid)
        giant = self._giants(batch)
        if giant is not None:
            self._put_aside(keys[giant], keep_rows(batch, giant))
            keys, batch = keys[~giant], keep_rows(batch, ~giant)
        if len(keys):
            self.stream.receive(Tuples(frozen(keys), batch))
        return count

    def _giants(self, batch: pa.RecordBatch) -> NDArray[np.bool_] | None:
        """Return which rows, when encoded, are too long for the memory of the algorithm."""
        codec, largest = self.stream_codec, self.stream.limit - self.stream_codec.blank_bytes
        if self.largest_row is not None:
            largest = min(largest, self.largest_row)
        if not codec.variable and codec.stride <= largest:
            return None
        lengths = codec.lengths(batch)
        return lengths > largest if int(lengths.max(initial=0)) > largest else None

    def _check_row(self, row: pa.RecordBatch) -> None:
        """Raise if a row is too large for this memory."""
        size = int(self.stream_codec.lengths(row)[0])
        if self.bounded and size > self.budget.total:
            raise RowLimitError(
                f"a row of the stream takes {size:,} B, more than all of the memory of {self.budget.total:,} B; give "
                f"{self.id} memory of at least {format_bytes(2 * size)}, or keep values that long outside the stream"
            )

    def _put_aside(self, keys: Ints | None, batch: pa.RecordBatch) -> None:
        """Keep rows that bypass the algorithm for the next iteration: without a key, or too long for its memory."""
        if keys is None:
            self.tally.null_keys += batch.num_rows
            if self.how == "inner":
                self.tally.rows_done += batch.num_rows
                self.tally.unmatched += batch.num_rows
                return
        self.stream.put_aside(keys, batch)

    def _serve_aside(self) -> Iterator[pa.RecordBatch]:
        """Let the rows that were put aside leave: without a match, or looked up individually through the index."""
        for keys, batch in self.stream.take_aside():
            if keys is None:
                self.tally.rows_done += batch.num_rows
                yield from self.without_partner(self.rows_of(batch).all())
            else:
                yield from self._looked_up_aside(Tuples(frozen(keys), batch))
