"""When a window of ADAPTIVEJOIN is served: at once, or as late as its tuples may wait, so that more share a page."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Floats
from semistream.core.clock import Clock, RealClock
from semistream.joins.adaptive.adaptive_moving import AdaptiveMoving
from semistream.relation.relation import Relation

__all__ = ["SHED", "AdaptiveSchedule", "parse_wait"]

SHED = -2
"""The number of a tuple that is not served because its deadline has passed."""

_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0}
_MARGIN = 1.3
"""A window may take longer than those before it by this factor, and its tuples still leave in time."""


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


class AdaptiveSchedule(AdaptiveMoving):
    """The part of ADAPTIVEJOIN that knows deadlines.

    What a window takes is estimated from what those before it took for a tuple.
    """

    def __init__(
        self,
        relation: Relation,
        *,
        wait: float | str | None = None,
        deadline: str | None = None,
        on_overload: Literal["block", "shed"] = "block",
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        if on_overload not in ("block", "shed"):
            raise ValueError(f"on_overload must be 'block' or 'shed', not {on_overload!r}")
        if wait is not None and deadline is not None:
            raise ValueError(f"give wait={wait!r} or deadline={deadline!r}, not both")
        self._wait = parse_wait(wait)
        self._deadline = deadline
        self._sheds = on_overload == "shed"
        self.clock: Clock = clock if clock is not None else RealClock()
        self._due = math.inf
        self._seconds_a_tuple = 0.0
        self.missed_deadlines = 0
        """Tuples that left after their deadline."""
        self.shed_tuples = 0
        """Tuples that were not served, because their deadline had passed when their turn came."""
        super().__init__(relation, **options)

    @property
    def _timed(self) -> bool:
        return self._wait is not None or self._deadline is not None

    @property
    def due(self) -> float | None:
        """The moment by which `step` must be called for all waiting tuples to leave in time; None if any time."""
        if not self._timed or self._due == math.inf:
            return None
        return self._due - _MARGIN * self._seconds_a_tuple * self.pending

    def _may_wait(self) -> bool:
        """Whether the window is neither full, nor the last, nor due."""
        if not self._timed or self._closing or self._more_coming:
            return False
        return len(self._window) < self._window.tuples and (self.due is None or self.clock.now() < self.due)

    def _due_of(self, batch: pa.RecordBatch) -> float:
        """Return the moment by which the first of some tuples that come now is to leave."""
        if not self._timed:
            return math.inf
        due = float(self._dues(batch, self.clock.now() + (self._wait or 0.0)).min(initial=math.inf))
        self._due = min(self._due, due)
        return due if self._wait is not None else math.inf

    def _dues(self, batch: pa.RecordBatch, due: float) -> Floats:
        """Return when each tuple is to leave; ``due`` where all may wait as long."""
        if self._deadline is None:
            return np.full(batch.num_rows, due)
        column = batch.column(self._deadline).cast(pa.float64()).fill_null(math.inf)
        dues: Floats = column.to_numpy(zero_copy_only=False)
        return dues

    def _shed_late(self) -> None:
        """Give up tuples whose deadline has passed, where that is the rule: nothing is read for them."""
        if not (self._timed and self._sheds):
            return
        now = self.clock.now()
        for batch, numbers, due in self._window.parts():
            numbers[self._dues(batch, due) < now] = SHED
        self._arena.pin_only(self._window.numbers)

    def _left(self, batch: pa.RecordBatch, due: float) -> None:
        """Count the tuples that leave too late."""
        if self._timed:
            self.missed_deadlines += int(np.count_nonzero(self._dues(batch, due) < self.clock.now()))

    def _took(self, seconds: float, tuples: int) -> None:
        """Learn what a window took, and when the rest of it is due."""
        if tuples:
            self._seconds_a_tuple = max(seconds / tuples, 0.7 * self._seconds_a_tuple)
        self._due = min(
            (float(self._dues(batch, due).min(initial=math.inf)) for batch, _, due in self._window.parts()),
            default=math.inf,
        )
