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
from semistream.joins.deadlines import check_deadline, deadlines_of
from semistream.joins.interface.stream_buffer import StreamBuffer
from semistream.joins.ssij.phase_costs import PhaseCosts
from semistream.joins.ssij.ssij_memory import SsijMemory
from semistream.relation.relation import Relation
from semistream.relation.spans import locate_spans

__all__ = ["Deadlines", "Phase", "SsijSchedule"]


_MOST_OFFERS = 64
"""Moments of offers that are told apart while their tuples find no room."""


class Phase(Enum):
    """What SSIJ is doing."""

    PENDING = "tuples gather, and cached pages may make way for them"
    ONLINE = "tuples are looked up; those whose pages are cached leave, the others wait"
    JOIN = "wanted pages are read and meet the tuples that wait for them"


class Deadlines:
    """When tuples are to leave.

    Parameters
    ----------
    deadline
        None; or seconds after its offer by which each tuple is to leave; or the name of a stream column with the
        moment (see `deadlines_of`), NULL meaning none.
    clock
        What deadlines are measured with; the machine's if None.
    """

    def __init__(self, deadline: float | str | None, clock: Clock | None) -> None:
        if isinstance(deadline, int | float) and not deadline > 0:
            raise ValueError(f"deadline must be a positive number of seconds or the name of a column, not {deadline}")
        self._deadline = deadline
        self.clock: Clock = clock if clock is not None else RealClock()
        self._offers: deque[tuple[int, float]] = deque()  # of those not taken in: how many, and when they came
        self._outside = 0

    def check(self, schema: pa.Schema) -> None:
        """Raise unless a stream of ``schema`` has deadlines where they are said to be."""
        if isinstance(self._deadline, str):
            check_deadline(schema, self._deadline)

    @property
    def exist(self) -> bool:
        """Whether tuples have deadlines."""
        return self._deadline is not None

    def offered(self, outside: int) -> None:
        """Note when tuples came: so many are outside of the input buffer now, and those not counted yet are new."""
        if outside > self._outside and not isinstance(self._deadline, str):
            size, moment = outside - self._outside, self.clock.now()
            if len(self._offers) == _MOST_OFFERS:  # they count as come with those before, so none leaves too late
                before, moment = self._offers.pop()
                size += before
            self._offers.append((size, moment))
        self._outside = outside

    def taken_in(self, count: int) -> None:
        """Note that the first ``count`` tuples are in the input buffer: time in the offers they came with."""
        self._outside -= count
        while count > 0 and self._offers:
            size, moment = self._offers.popleft()
            if size > count:
                self._offers.appendleft((size - count, moment))
            count -= size

    def of(self, batch: pa.RecordBatch) -> Floats:
        """Return the moment by which each tuple is to leave; they are the first of those outside."""
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
    """Decides which phases a turn has.

    A deadline is met if the join phase that ends with it begins in time; how long a phase takes is estimated from the
    pages it will want and what phases like it have cost.

    Parameters
    ----------
    relation, memory
        R, and the buffers that are looked at.
    deadlines
        When tuples are to leave.
    stream, stats
        Tuples that came and are not in the input buffer yet; the share of cached pages is expected to stay as it is.
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
        """Return the time that deadlines are compared with."""
        return self._clock.now()

    # -- what it is told ----------------------------------------------------------------------------------

    def offered(self) -> None:
        """Note when the tuples came that are new in the stream buffer."""
        if self.timed:
            self._deadlines.offered(len(self._stream))

    def came(self, lows: Ints, highs: Ints, dues: Floats) -> None:
        """Reckon with tuples that were put into the input buffer: what they ask for, and when they are to leave."""
        self._deadlines.taken_in(lows.size)
        if lows.size:
            self._input_pages += int(locate_spans(self._relation, lows, highs).length.sum())
            self._input_due = min(self._input_due, float(dues.min()))

    def looked_up(self, pages: int) -> None:
        """Reckon no more with tuples that asked for so many pages: what they wait for is known."""
        self._input_pages = max(0, self._input_pages - pages)

    def went_on(self) -> None:
        """Look who is in the input buffer now that the tuples looked up are not."""
        self._input_due = self._memory.input.due_bounds()[0]
        if len(self._memory.input) == 0:
            self._input_pages = 0

    def observe(self, pages: int, seconds: float) -> None:
        """Remember what a join phase has cost."""
        self._costs.observe(pages, seconds)

    # -- what it decides ----------------------------------------------------------------------------------

    def turn(self, closing: bool) -> Iterator[Phase]:
        """Yield the phases of a turn, each decided when the one before is over; ``closing``: no more tuples come."""
        if self._waiting_press(closing):
            yield Phase.JOIN
        if self._online_is_due(closing):
            yield Phase.ONLINE
        if self._join_is_due(closing):
            yield Phase.JOIN

    @property
    def join_cannot_wait(self) -> bool:
        """Whether enough tuples wait, or a deadline of theirs presses."""
        return len(self._memory.index) >= self._memory.thresholds.buffer_tuples or self._is_at(self._join_due())

    @property
    def due(self) -> float | None:
        """The moment at which a turn must begin for all tuples to meet their deadlines; None if any time."""
        return min((moment for moment in (self._online_due(), self._join_due()) if moment is not None), default=None)

    def _online_is_due(self, closing: bool) -> bool:
        """Whether a batch has gathered, no more can, no more will, or a deadline presses."""
        gathered = len(self._memory.input)
        if gathered == 0:
            return False
        full = gathered >= self._memory.thresholds.input_tuples or len(self._stream) > 0
        return full or closing or self._is_at(self._online_due())

    def _waiting_press(self, closing: bool) -> bool:
        """Whether the pages that the next tuples are likely to bring would make those late that wait."""
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
        """Whether enough tuples wait, no more will, or a deadline presses."""
        if len(self._memory.index) == 0:
            return False
        # nothing more comes, or nothing more fits into what the waiting tuples have left
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
