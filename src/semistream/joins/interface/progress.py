"""A join that waits for what cannot come turns for ever; here it is stopped with an error instead."""

from __future__ import annotations

from typing import ClassVar, Protocol

from semistream.core.budget import MemoryBudget
from semistream.core.errors import StalledJoinError

__all__ = ["Progress"]

_IDLE_TURNS = 1000
_LOOK_EVERY = 16
"""Turns between two looks at what was done, which costs a tenth of a short turn."""


class Turning(Protocol):
    """What is watched: a `Join`."""

    id: ClassVar[str]
    budget: MemoryBudget

    @property
    def pending(self) -> int:
        """Stream tuples that were offered and have not left."""
        ...

    def work(self) -> tuple[object, ...]:
        """Return numbers of which one is another after a turn that led to something."""
        ...


class Progress:
    """Watches a join that has to finish: told after each turn, it raises when nothing happens any more."""

    def __init__(self, join: Turning) -> None:
        self._join = join
        self._work: tuple[object, ...] = ()
        self._turns = self._idle = 0

    def turned(self) -> None:
        """Compare what was done with what was done some turns before."""
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
                f"{join.id} took {self._idle:,} turns in which nothing happened, with {join.pending:,} tuples waiting "
                f"and memory of {join.budget.total:,} B ({join.budget}); give it more memory, and report this"
            )
