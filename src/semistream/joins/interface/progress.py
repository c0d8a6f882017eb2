"""A join that waits for what cannot come turns for ever; here it is stopped with an error instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semistream.core.errors import StalledJoinError

if TYPE_CHECKING:
    from semistream.joins.interface.join import Join

__all__ = ["Progress"]

_IDLE_TURNS = 1000


class Progress:
    """Watches a join that has to finish: told after each turn, it raises when nothing happens any more."""

    def __init__(self, join: Join) -> None:
        self._join = join
        self._work = join.work()
        self._idle = 0

    def turned(self) -> None:
        """Compare what was done with what was done before this turn."""
        work = self._join.work()
        if work != self._work:
            self._work, self._idle = work, 0
            return
        self._idle += 1
        if self._idle >= _IDLE_TURNS:
            join = self._join
            raise StalledJoinError(
                f"{join.id} took {_IDLE_TURNS:,} turns in which nothing happened, with {join.pending:,} tuples waiting "
                f"and memory of {join.budget.total:,} B ({join.budget}); give it more memory, and report this"
            )
