"""When phases of SSIJ begin: with enough tuples, at the end of the stream, or in time for deadlines (§IV-F)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Floats, Ints
from semistream.core.clock import Clock, RealClock
from semistream.core.statistics import JoinStatistics
from semistream.joins.deadlines import check_deadline, check_moments, deadlines_of
from semistream.joins.interface.stream_buffer import StreamBuffer
from semistream.joins.ssij.phase_costs import PhaseCosts
from semistream.joins.ssij.ssij_memory import SsijMemory
from semistream.relation.relation import Relation
from semistream.relation.spans import locate_spans

__all__ = ["Deadlines", "Phase", "SsijSchedule"]


_MOST_OFFERS = 64
"""Maximum offers whose times are stored separately while their tuples wait outside of the input buffer."""


class Phase(Enum):
    """The phases of SSIJ."""

    PENDING = "tuples collect, and cached pages may be evicted for them"
    ONLINE = "tuples are looked up; tuples whose pages are cached leave, the others wait"
    JOIN = "wanted pages are read and joined with the tuples that wait for them"


class Deadlines:
    """The deadlines of tuples.

    Parameters
    ----------
    deadline
        None; or seconds after its offer by which each tuple should leave; or the name of a stream column with the
        deadline (see `deadlines_of`), where NULL means none.
    clock
        The clock for deadlines; the machine's if None.
    """

    def __init__(self, deadline: float | str | None, clock: Clock | None) -> None:
        if isinstance(deadline, int | float) and not deadline > 0:
            raise ValueError(f"deadline must be a positive number of seconds or the name of a column, not {deadline}")
        self._deadline = deadline
        self.clock: Clock = clock if clock is not None else RealClock()
        self._offers: deque[tuple[int, float]] = deque()  # tuples outside of the input buffer: count and arrival time
        self._outside = 0

    def check(self, schema: pa.Schema) -> None:
        """Raise unless a stream of ``schema`` has a valid deadline column, if one is set."""
        if isinstance(self._deadline, str):
            check_deadline(schema, self._deadline)

    def check_offered(self, batch: pa.RecordBatch) -> None:
        """Raise if deadlines of tuples cannot be times of the clock."""
        if isinstance(self._deadline, str):
            check_moments(batch.column(self._deadline), self._deadline, self.clock)

    @property
    def exist(self) -> bool:
        """Whether tuples have deadlines."""
        return self._deadline is not None

    def offered(self, outside: int) -> None:
        """Record arrival times: ``outside`` tuples are outside of the input buffer, and the increase arrived now."""
        if outside > self._outside and not isinstance(self._deadline, str):
            size, moment = outside - self._outside, self.clock.now()
            if len(self._offers) == _MOST_OFFERS:  # use the earlier time of the last offer, so that none leaves late
                before, moment = self._offers.pop()
                size += before
            self._offers.append((size, moment))
        self._outside = outside

    def taken_in(self, count: int) -> None:
        """Record that the first ``count`` tuples are in the input buffer, in time linear in their offers."""
        self._outside -= count
        while count > 0 and self._offers:
            size, moment = self._offers.popleft()
            if size > count:
                self._offers.appendleft((size - count, moment))
            count -= size

    def of(self, batch: pa.RecordBatch) -> Floats:
        """Return the deadline of each tuple; they are the first tuples outside of the input buffer."""
        if not isinstance(self._deadline, str):
            dues = np.full(batch.num_rows, np.inf)
            begin = 0
            for size, moment in self._offers:
                dues[begin : begin + size] = moment + (self._deadline or 0.0)
                if (begin := begin + size) >= dues.size:
                    break
            return dues
        return deadlines_of(batch.column(self._deadline), self.clock)


class SsijSchedule:
    """Decides which phases an iteration has.

    To meet a deadline, a join phase must begin early enough. The time of a phase is estimated from the pages that it
    will read and the cost of similar phases.

    Parameters
    ----------
    relation, memory
        R, and the buffers.
    deadlines
        The deadlines of tuples.
    stream, stats
        Tuples that are not in the input buffer yet; counters, whose hit ratio is expected to stay as it is.
    """

    def __init__(
        self,
        relation: Relation,
        memory: SsijMemory,
        deadlines: Deadlines,
        stream: StreamBuffer,
        stats: JoinStatistics,
    ) -> None:
        self._relation = relation
        self._memory = memory
        self._stream = stream
        self._stats = stats
        self._deadlines = deadlines
        self._clock = deadlines.clock
        self.timed = deadlines.exist
        """Whether tuples have deadlines."""
        self.late = 0
        """Tuples that left after their deadline; counted by the phases."""
        self._input_pages = 0
        self._input_due = np.inf
        self._costs = PhaseCosts(
            seek=memory.profile.seek_seconds, transfer=memory.profile.transfer_seconds,
            page_count=relation.page_count, max_scan=memory.planner.max_scan,
        )  # fmt: skip

    def now(self) -> float:
        """Return the current time of the clock for deadlines."""
        return self._clock.now()

    # -- events -------------------------------------------------------------------------------------------

    def offered(self) -> None:
        """Record the arrival time of tuples that are new in the stream buffer."""
        if self.timed:
            self._deadlines.offered(len(self._stream))

    def came(self, lows: Ints, highs: Ints, dues: Floats) -> None:
        """Count the pages and deadlines of tuples that were added to the input buffer."""
        self._deadlines.taken_in(lows.size)
        if lows.size:
            self._input_pages += int(locate_spans(self._relation, lows, highs).length.sum())
            self._input_due = min(self._input_due, float(dues.min()))

    def looked_up(self, pages: int) -> None:
        """Subtract the pages of tuples that were looked up: the pages that they wait for are known now."""
        self._input_pages = max(0, self._input_pages - pages)

    def went_on(self) -> None:
        """Update the earliest deadline of the input buffer after tuples were looked up."""
        self._input_due = self._memory.input.due_bounds()[0]
        if len(self._memory.input) == 0:
            self._input_pages = 0

    def observe(self, pages: int, seconds: float) -> None:
        """Record the cost of a join phase."""
        self._costs.observe(pages, seconds)

    # -- decisions ----------------------------------------------------------------------------------------

    def turn(self, closing: bool) -> Iterator[Phase]:
        """Yield the phases of an iteration, each decided after the previous one; ``closing``: the stream has ended."""
        if self._waiting_press(closing):
            yield Phase.JOIN
        if self._online_is_due(closing):
            yield Phase.ONLINE
        if self._join_is_due(closing):
            yield Phase.JOIN

    @property
    def join_cannot_wait(self) -> bool:
        """Whether enough tuples wait, or a deadline of one of them is near."""
        return len(self._memory.index) >= self._memory.thresholds.buffer_tuples or self._is_at(self._join_due())

    @property
    def due(self) -> float | None:
        """The time at which an iteration must begin so that all tuples meet their deadlines; None if there is none."""
        return min((moment for moment in (self._online_due(), self._join_due()) if moment is not None), default=None)

    def _online_is_due(self, closing: bool) -> bool:
        """Return whether a batch is complete, the buffer is full, the stream has ended, or a deadline is near."""
        gathered = len(self._memory.input)
        if gathered == 0:
            return False
        full = gathered >= self._memory.thresholds.input_tuples or len(self._stream) > 0
        return full or closing or self._is_at(self._online_due())

    def _waiting_press(self, closing: bool) -> bool:
        """Return whether waiting tuples would be late if the next tuples added the pages that they are expected to."""
        index = self._memory.index
        if not self.timed or len(index) == 0:
            return False
        more = 0.0
        if self._online_is_due(closing):
            looked_up = min(1.0, self._memory.thresholds.input_tuples / len(self._memory.input))
            more = self._input_pages * looked_up * (1.0 - self._stats.hit_ratio)
        pages = min(index.wanted + int(more), self._relation.page_count)
        return self._is_at(float(index.earliest[0]) - self._costs.estimate(pages))

    def _join_is_due(self, closing: bool) -> bool:
        """Return whether enough tuples wait, no more can be added, or a deadline is near."""
        if len(self._memory.index) == 0:
            return False
        # The stream has ended, or no more tuples fit into the memory that the waiting tuples leave.
        last = len(self._memory.input) == 0 and (closing or len(self._stream) > 0)
        return last or self.join_cannot_wait

    def _is_at(self, moment: float | None) -> bool:
        return moment is not None and self._clock.now() >= moment

    def _online_due(self) -> float | None:
        if not self.timed or self._input_due == np.inf:
            return None
        pages = min(self._memory.index.wanted + self._input_pages, self._relation.page_count)
        return self._input_due - self._costs.estimate(pages)

    def _join_due(self) -> float | None:
        index = self._memory.index
        if not self.timed or index.earliest[0] == np.inf:
            return None
        return float(index.earliest[0]) - self._costs.estimate(index.wanted)
