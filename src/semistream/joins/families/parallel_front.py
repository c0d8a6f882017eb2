"""Stream probing and disk probing in parallel, as in P-CACHEJOIN and OP-CACHEJOIN.

The caller's thread probes ``H_R`` with stream tuples and puts misses into the intermediate buffer ``I_B``. A second
thread feeds the join behind from there and runs its iterations. Reads and compiled kernels release the interpreter's
lock, so the two phases overlap.

The second thread exists only while there is work, so an idle join has none.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Any, ClassVar

import pyarrow as pa

from semistream.core.arguments import check_between
from semistream.core.arrays import Bytes, Ints
from semistream.joins.families.front_stage import FrontStage
from semistream.joins.interface.contract import Overlap
from semistream.joins.interface.following import Undo
from semistream.joins.interface.progress import Progress
from semistream.joins.interface.stage_behind import Lent
from semistream.joins.interface.stream_buffer import Room, Tuples
from semistream.joins.shares import LEAST_BETWEEN, Lending, parts_between
from semistream.relation.changes.overlay import Change
from semistream.relation.changes.patch import Patch
from semistream.relation.relation import Relation
from semistream.relation.rows.row_sizes import BatchBytes
from semistream.structures.hot.hot_tuples import HotTuples

__all__ = ["ParallelFrontStage"]


_PATIENCE = 0.05  # seconds to wait for the other thread before checking again


class ParallelFrontStage(FrontStage):
    """A front stage whose join behind runs in its own thread.

    Parameters
    ----------
    buffer_share
        Share of the memory for the intermediate buffer ``I_B``. The paper's optimum is 2 MB of 100 MB: with less,
        stream probing stops too often; more takes memory from the joins.
    threads
        False runs the phases one after the other in the caller's thread, with disk probing whenever stream probing must
        stop. This is for simulation: the same stream must give the same counts, and overlap is computed, not measured.
    """

    deterministic = False
    overlap = Overlap.PHASES
    lends = Lending.ARRIVALS
    loaders_behind: ClassVar[bool] = False
    """Whether the join behind also has threads."""

    def __init__(self, relation: Relation, *, buffer_share: float = 0.02, threads: bool = True, **options: Any) -> None:
        check_between(0, 0.5, buffer_share=buffer_share)
        self._buffer_share = buffer_share
        self._threads = threads
        self._between: deque[tuple[Tuples, int]] = deque()  # I_B
        self._between_bytes = 0
        # Bytes of tuples in the stream buffer of the join behind, after its last iteration: during an iteration it
        # removes tuples, and puts back those for which there is no room.
        self._arrived_bytes = 0
        self._too_long: deque[Tuples] = deque()  # a row larger than all of I_B, to be passed to the other thread
        self._behind_rows = 0  # stream tuples in I_B and in the join behind
        self._done_behind = 0
        self._results: deque[pa.RecordBatch] = deque()
        self._results_bytes = 0
        # An unfinished iteration of the join behind. It does not reference this stage, which can end before it.
        self._phase: Iterator[pa.RecordBatch] | None = None
        self._failure: BaseException | None = None
        self._worker: threading.Thread | None = None
        self._changed = threading.Condition()  # guards all of the above
        self._cache_lock = threading.Lock()  # H_R: probed here, filled there
        self._turn_lock = threading.Lock()  # held while the join behind works
        if self.loaders_behind:
            options["threads"] = threads
        super().__init__(relation, **options)

    def least_bytes(self) -> int:
        return super().least_bytes() + LEAST_BETWEEN

    def open_parts(self) -> None:
        self._results_limit, self._buffer_limit = parts_between(
            self.budget.total, self.budget.free, super().least_bytes(), self._buffer_share
        )
        self.budget.reserve("results ahead", self._results_limit)
        self.budget.reserve("intermediate buffer", self._buffer_limit)
        self._size_of_result = BatchBytes(self.output_schema)
        super().open_parts()
        self._progress = Progress(self.inner)

    def _lend(self) -> Lent:
        # Tuples for the join behind are in I_B or in its stream buffer.
        return Lent(Room(self._buffer_limit), self._single)

    # -- stream probing, in the caller's thread -----------------------------------------------------------

    def turn(self) -> Iterator[pa.RecordBatch]:
        self.inner.closing = self.closing
        for part in self._arrivals():
            with self._cache_lock:
                hits, missed = self._probe(part)
            yield from hits
            yield from self._buffer(missed)
        # If there is nothing more to probe, wait for the other phase; otherwise take the results that are ready.
        yield from self._collect(wait=not (self.more_coming or len(self.stream)))

    def _buffer(self, part: Tuples) -> Iterator[pa.RecordBatch]:
        """Put misses into ``I_B``; while it is full, stop stream probing and yield results."""
        while len(part.keys):
            with self._changed:
                # A tuple that is being moved from I_B to the join behind counts in both.
                room = self._buffer_limit - self._between_bytes - self._arrived_bytes
                count = self.stream.within(part.batch, room)
                if count < len(part.keys) and 2 * room < self._buffer_limit:
                    count = 0  # many small parts would cost both threads more than a short wait
                if count:
                    self._enter(_head(part, count))
                    part = Tuples(part.keys[count:], part.batch.slice(count))
                    continue
                alone = room == self._buffer_limit
            if alone:  # one row is larger than all of I_B
                yield from self._pass_long(_head(part, 1))
                part = Tuples(part.keys[1:], part.batch.slice(1))
            else:
                yield from self._collect(wait=True)

    def _looked_up_aside(self, part: Tuples) -> Iterator[pa.RecordBatch]:
        for row in range(len(part.keys)):
            yield from self._pass_long(Tuples(part.keys[row : row + 1], part.batch.slice(row, 1)))

    def _pass_long(self, row: Tuples) -> Iterator[pa.RecordBatch]:
        """Let the other thread look up a long row, because R may only change between its iterations; one at a time."""
        with self._changed:
            self._too_long.append(row)
            self._behind_rows += 1
            self._start_worker()
        while self._too_long:
            yield from self._collect(wait=True)

    def _enter(self, part: Tuples) -> None:
        size = self._bytes(part)
        self._between.append((part, size))
        self._between_bytes += size
        self._behind_rows += len(part.keys)
        self.tally.buffered += len(part.keys)
        self._start_worker()

    def _start_worker(self) -> None:
        if self._worker is None and self._threads:
            self._worker = threading.Thread(
                target=_probe_disk, args=(weakref.ref(self),), name=f"{self.id}-disk", daemon=True
            )
            self._worker.start()

    def _collect(self, *, wait: bool) -> Iterator[pa.RecordBatch]:
        """Yield the results of disk probing; with ``wait``, first wait for a change there."""
        if wait and not self._threads:
            self._disk_turn()
        with self._changed:
            if wait and self._threads and not self._results and self._behind_rows and self._failure is None:
                self._changed.wait(_PATIENCE)
            results, self._results, self._results_bytes = self._results, deque(), 0
            self._changed.notify_all()
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
        yield from results

    # -- disk probing, in its own thread ------------------------------------------------------------------

    def _disk_turn(self) -> bool:
        """Feed the join behind from ``I_B`` and run one iteration of it; False if there is nothing left to do."""
        with self._changed:
            if self._threads and 2 * self._results_bytes > self._results_limit:
                self._changed.wait(_PATIENCE)
                return True
            if self._behind_rows == 0 or self._failure is not None:
                self._worker = None
                return False
        with self._turn_lock:
            if self._phase is None:
                self._phase = chain(*self._fetch(), self.inner.step())
            for result in self._phase:
                if self._deliver(result):
                    return True  # the iteration continues when there is room again
            self._end_turn()
            self._progress.turned()
        return True

    def _end_turn(self) -> None:
        """Finish an unfinished iteration of the join behind, if there is one. The caller holds the turn lock."""
        for result in self._phase or ():
            self._deliver(result)
        self._phase = None
        with self._changed:
            done = self.inner.done
            self._behind_rows -= done - self._done_behind
            self._done_behind = done
            self._arrived_bytes = self.inner.arrived_bytes
            self._changed.notify_all()

    def _fetch(self) -> list[Iterator[pa.RecordBatch]]:
        """Pass tuples from ``I_B`` to the join behind while it accepts them; return results of rows too long for it."""
        alone: list[Iterator[pa.RecordBatch]] = []
        with self._changed:
            if self._too_long:
                alone.append(self.inner.look_up(self._too_long.popleft()))
                self._changed.notify_all()
        while True:
            with self._changed:
                if not self._between:
                    return alone
                part, size = self._between.popleft()
            taken = self.inner.hand(part)
            if taken == 0 and self.inner.arrived == 0:
                taken = 1  # the row is larger than the whole stream buffer of the join behind
                row = Tuples(part.keys[:1], part.batch.slice(0, 1))
                alone.append(self.inner.look_up(row))
            rest = Tuples(part.keys[taken:], part.batch.slice(taken))
            with self._changed:
                left = self._bytes(rest) if len(rest.keys) else 0
                self._between_bytes -= size - left
                self._arrived_bytes = self.inner.arrived_bytes
                if len(rest.keys):
                    self._between.appendleft((rest, left))
                    return alone

    def _deliver(self, result: pa.RecordBatch) -> bool:
        """Add a result for the caller's thread; return whether there is no room for another."""
        with self._changed:
            self._results.append(result)
            self._results_bytes += self._size_of_result(result)
            if 2 * self._results_bytes > self._results_limit:
                self._changed.notify_all()
            return self._results_bytes > self._results_limit

    def _fail(self, failure: BaseException) -> None:
        with self._changed:
            self._failure = failure
            self._worker = None
            self._changed.notify_all()

    def notice(self, keys: Ints, data: Bytes, starts: Ints, flags: Bytes) -> None:
        with self._cache_lock:
            super().notice(keys, data, starts, flags)

    # -- updates of R -------------------------------------------------------------------------------------

    @property
    def amid_turn(self) -> bool:
        return False  # only iterations of the join behind matter; the update waits until one has ended

    def before_update(self, patch: Patch, undo: list[Undo]) -> None:
        """Stop disk probing between two of its iterations, until the update is over."""
        self._turn_lock.acquire()
        undo.append(self._turn_lock.release)
        self._end_turn()
        super().before_update(patch, undo)

    def after_update(self, change: Change) -> None:
        """Forget the changed tuples, and continue."""
        try:
            with self._cache_lock:
                super().after_update(change)
        finally:
            self._turn_lock.release()

    def _move_memory(self, cache: HotTuples) -> None:
        with self._cache_lock:
            super()._move_memory(cache)

    def work(self) -> tuple[object, ...]:
        # A read may take long: while an iteration of the join behind runs, this counts as progress.
        return (*super().work(), time.monotonic() if self._turn_lock.locked() else 0.0)

    # -- inside -------------------------------------------------------------------------------------------

    def _bytes(self, part: Tuples) -> int:
        return self.stream.size_of(part.batch)

    @property
    def waiting(self) -> int:
        with self._changed:
            return self._behind_rows + len(self._results)

    def let_wait(self, batch: pa.RecordBatch) -> None:
        with self._turn_lock:
            super().let_wait(batch)
            with self._changed:
                self._behind_rows += batch.num_rows

    def check_parts(self) -> None:
        with self._turn_lock, self._changed, self._cache_lock:
            self.cache.check()
            if self._phase is None:
                self.inner.check()
            assert sum(size for _, size in self._between) == self._between_bytes
            held = self._between_bytes, self.inner.arrived_bytes
            assert sum(held) <= self._buffer_limit, f"{held} B in an intermediate buffer of {self._buffer_limit} B"


def _head(part: Tuples, count: int) -> Tuples:
    return Tuples(part.keys[:count], part.batch.slice(0, count))


def _probe_disk(reference: weakref.ref[ParallelFrontStage]) -> None:
    """Run iterations of disk probing while there is work and the join still exists."""
    while (join := reference()) is not None:
        try:
            if not join._disk_turn():
                return
        except BaseException as failure:  # raised again in the thread of the caller
            join._fail(failure)
            return
        del join
