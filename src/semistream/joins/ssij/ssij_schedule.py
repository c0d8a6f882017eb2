"""When phases of SSIJ begin: with enough tuples, at the end of the stream, or in time for deadlines (§IV-F)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Floats
from semistream.core.clock import Clock, RealClock
from semistream.joins.ssij.ssij_memory import SsijMemory
from semistream.relation.relation import Relation

__all__ = ["SsijSchedule"]


class SsijSchedule(SsijMemory):
    """The part of SSIJ that decides what a turn does.

    A deadline is met if the join phase that ends with it begins in time; how long a phase takes is estimated from the
    pages it will want and what phases like it have cost.
    """

    def __init__(
        self,
        relation: Relation,
        *,
        deadline: float | str | None = None,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        if isinstance(deadline, int | float) and not deadline > 0:
            raise ValueError(f"deadline must be a positive number of seconds or the name of a column, not {deadline}")
        self._deadline = deadline
        self._timed = deadline is not None
        self._clock = clock if clock is not None else RealClock()
        self._input_pages = 0
        self._input_due = np.inf
        self.missed_deadlines = 0
        """Tuples that left after their deadline."""
        super().__init__(relation, **options)

    def _dues(self, batch: pa.RecordBatch) -> Floats:
        if not isinstance(self._deadline, str):
            return np.full(batch.num_rows, self._clock.now() + (self._deadline or 0.0))
        column = batch.column(self._deadline).cast(pa.float64()).fill_null(np.inf)
        dues: Floats = column.to_numpy(zero_copy_only=False)
        return dues

    def _online_is_due(self) -> bool:
        """Whether a batch has gathered, no more can, no more will, or a deadline presses."""
        if len(self._input) == 0:
            return False
        full = len(self._input) >= self._input_tuples or len(self._stream) > 0
        return full or self._closing or self._clock_is_at(self._online_due())

    def _waiting_press(self) -> bool:
        """Whether the pages that the next tuples are likely to bring would make those late that wait."""
        if not self._timed or len(self._index) == 0:
            return False
        more = 0.0
        if self._online_is_due():
            more = self._input_pages * min(1.0, self._input_tuples / len(self._input)) * (1.0 - self._stats.hit_ratio)
        pages = min(self._index.wanted + int(more), self.relation.page_count)
        return self._clock_is_at(float(self._index.earliest[0]) - self.costs.estimate(pages))

    def _join_is_due(self) -> bool:
        """Whether enough tuples wait, no more will, or a deadline presses."""
        if len(self._index) == 0:
            return False
        # nothing more comes, or nothing more fits into what the waiting tuples have left
        last = len(self._input) == 0 and (self._closing or len(self._stream) > 0)
        return last or len(self._index) >= self._buffer_tuples or self._clock_is_at(self._join_due())

    def _clock_is_at(self, moment: float | None) -> bool:
        return moment is not None and self._clock.now() >= moment

    @property
    def due(self) -> float | None:
        """The moment by which `step` must be called for all waiting tuples to meet their deadlines; None if any time.

        A join phase that begins then ends in time: for tuples that wait, over the pages they wait for; for tuples not
        yet looked up, over all these and all they may turn out to need.
        """
        if not self._timed or not self._bound:
            return None
        return min((moment for moment in (self._online_due(), self._join_due()) if moment is not None), default=None)

    def _online_due(self) -> float | None:
        if not self._timed or self._input_due == np.inf:
            return None
        pages = min(self._index.wanted + self._input_pages, self.relation.page_count)
        return self._input_due - self.costs.estimate(pages)

    def _join_due(self) -> float | None:
        if not self._timed or self._index.earliest[0] == np.inf:
            return None
        return float(self._index.earliest[0]) - self.costs.estimate(self._index.wanted)
