"""When a window of ADAPTIVEJOIN is served: immediately, or as late as allowed, so that more tuples share a page."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Floats
from semistream.core.clock import Clock, RealClock
from semistream.joins.adaptive.window import Window
from semistream.joins.deadlines import check_deadline, check_moments, deadlines_of

__all__ = ["SHED", "WindowSchedule", "parse_wait"]

SHED = -2
"""The number of a tuple that is not served because its deadline has passed."""

_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0}
_MARGIN = 1.3
"""Safety factor: a window may take this much longer than earlier ones, and its tuples still leave in time."""


def parse_wait(wait: float | str | None) -> float | None:
    """Return seconds: a number, or text such as ``"2s"`` and ``"500ms"``.

    >>> parse_wait("500ms"), parse_wait("2 s"), parse_wait(0.1), parse_wait(None)
    (0.5, 2.0, 0.1, None)
    """
    if wait is None:
        return None
    seconds = wait
    if isinstance(wait, str):
        unit = next((unit for unit in ("ms", "min", "s") if wait.strip().endswith(unit)), "")
        try:
            seconds = float(wait.strip().removesuffix(unit)) * _UNITS[unit]
        except (KeyError, ValueError):
            raise ValueError(f"wait must be seconds, or text such as '2s', '500ms' or '1min', not {wait!r}") from None
    if isinstance(seconds, str) or not 0 < seconds < math.inf:
        raise ValueError(f"wait must be a positive time, not {wait!r}")
    return float(seconds)


class WindowSchedule:
    """Tracks deadlines of tuples, and estimates the time of a window from the time per tuple of earlier windows.

    Parameters
    ----------
    wait, deadline
        How long each tuple may wait, or the stream column with its deadline; not both.
    on_overload
        ``"shed"``: tuples whose deadline has passed when their iteration begins are dropped.
    clock
        The clock for deadlines; the machine's if None.
    """

    def __init__(
        self,
        wait: float | str | None,
        deadline: str | None,
        on_overload: Literal["block", "shed"],
        clock: Clock | None,
    ) -> None:
        if on_overload not in ("block", "shed"):
            raise ValueError(f"on_overload must be 'block' or 'shed', not {on_overload!r}")
        if wait is not None and deadline is not None:
            raise ValueError(f"give wait={wait!r} or deadline={deadline!r}, not both")
        self._wait = parse_wait(wait)
        self._deadline = deadline
        self._sheds = on_overload == "shed"
        self.clock: Clock = clock if clock is not None else RealClock()
        self.missed = 0
        """Tuples that left after their deadline."""
        self.shed = 0
        """Tuples that were dropped because their deadline had passed when their iteration began."""
        self._due = math.inf
        self._seconds_a_tuple = 0.0

    def check(self, schema: pa.Schema) -> None:
        """Raise unless a stream of ``schema`` has a valid deadline column, if one is set."""
        if self._deadline is not None:
            check_deadline(schema, self._deadline)

    def check_offered(self, batch: pa.RecordBatch) -> None:
        """Raise if deadlines of tuples cannot be times of the clock."""
        if self._deadline is not None:
            check_moments(batch.column(self._deadline), self._deadline, self.clock)

    @property
    def timed(self) -> bool:
        """Whether tuples have deadlines."""
        return self._wait is not None or self._deadline is not None

    def due(self, tuples: int) -> float | None:
        """Return when to begin to serve ``tuples`` waiting tuples so that all leave in time; None if any time."""
        if not self.timed or self._due == math.inf:
            return None
        return self._due - _MARGIN * self._seconds_a_tuple * tuples

    def may_wait(self, window: Window) -> bool:
        """Return whether there may be room for more tuples and no tuple in the window is due."""
        if not self.timed or window.refused or len(window) >= window.tuples:
            return False
        due = self.due(len(window))
        return due is None or self.clock.now() < due

    def came(self, batch: pa.RecordBatch) -> float:
        """Record the deadlines of tuples that arrive now; return the one that the window stores for all of them."""
        if not self.timed:
            return math.inf
        due = float(self._dues(batch, self.clock.now() + (self._wait or 0.0)).min(initial=math.inf))
        self._due = min(self._due, due)
        return due if self._wait is not None else math.inf

    def shed_late(self, window: Window) -> bool:
        """Mark tuples whose deadline has passed as `SHED`; return False, and mark none, if tuples are not shed."""
        if not (self.timed and self._sheds):
            return False
        now = self.clock.now()
        for batch, numbers, due in window.parts():
            numbers[self._dues(batch, due) < now] = SHED
        return True

    def left(self, batch: pa.RecordBatch, due: float) -> None:
        """Count the tuples that leave too late."""
        if self.timed:
            self.missed += int(np.count_nonzero(self._dues(batch, due) < self.clock.now()))

    def took(self, seconds: float, tuples: int, window: Window) -> None:
        """Learn the time per tuple, and the earliest deadline of the tuples still in the window."""
        if tuples:
            self._seconds_a_tuple = max(seconds / tuples, 0.7 * self._seconds_a_tuple)
        if self._deadline is None:
            self._due = window.due if self.timed else math.inf
            return
        dues = (self._dues(batch, due).min(initial=math.inf) for batch, _, due in window.parts())
        self._due = float(min(dues, default=math.inf))

    def _dues(self, batch: pa.RecordBatch, due: float) -> Floats:
        """Return the deadline of each tuple; ``due`` for all if there is no deadline column."""
        if self._deadline is None:
            return np.full(batch.num_rows, due)
        return deadlines_of(batch.column(self._deadline), self.clock)
