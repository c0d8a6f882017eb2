"""Detects a join that makes no progress, and raises an error instead of looping forever."""

from __future__ import annotations

from typing import ClassVar, Protocol

from semistream.core.budget import MemoryBudget
from semistream.core.errors import StalledJoinError

__all__ = ["Progress"]

_IDLE_TURNS = 1000  # iterations without progress after which an error is raised
_LOOK_EVERY = 16
"""Iterations between two checks; a check costs a tenth of a short iteration."""


class Turning(Protocol):
    """What is observed: a `Join`."""

    id: ClassVar[str]
    budget: MemoryBudget

    @property
    def pending(self) -> int:
        """Stream tuples that were offered and have not left."""
        ...

    def work(self) -> tuple[object, ...]:
        """Return numbers of which at least one changes in an iteration that makes progress."""
        ...


class Progress:
    """Observes a join that must finish: called after each iteration, it raises if the join makes no progress."""

    def __init__(self, join: Turning) -> None:
        self._join = join
        self._work: tuple[object, ...] = ()
        self._turns = self._idle = 0

    def turned(self) -> None:
        """Count an iteration, and periodically check that the join has made progress."""
        self._turns += 1
        if self._turns % _LOOK_EVERY:
            return
        work = self._join.work()
        if work != self._work:
            self._work, self._idle = work, 0
            return
        self._idle += _LOOK_EVERY
        if self._idle >= _IDLE_TURNS:
            join = self._join
            raise StalledJoinError(
                f"{join.id} made no progress in {self._idle:,} iterations, with {join.pending:,} tuples waiting "
                f"and memory of {join.budget.total:,} B ({join.budget}); give it more memory, and report this"
            )
