"""How a join follows updates of R: it agrees, with the memory that the update takes, or refuses and stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Self

from semistream.core.arrays import Ints
from semistream.core.budget import Reservation
from semistream.core.errors import BrokenJoinError, UpdateRefusedError, UpdateTooLargeError
from semistream.core.units import format_bytes
from semistream.joins.interface.contract import Algorithm
from semistream.relation.changes.overlay import Change

if TYPE_CHECKING:
    from semistream.relation.changes.patch import Patch

__all__ = ["FollowsUpdates", "JoinAgreement", "Undo"]

Undo = Callable[[], None]


class FollowsUpdates(Algorithm):
    """The part of a join that listens to its relation.

    An algorithm adds `before_update`, where it may refuse, and `after_update`, where it forgets what has changed; and
    `give_up`, if some of its memory can go to R.
    """

    _updates_part: Reservation
    _index_bytes: int
    """Of R's index when the memory was taken; what it grows by counts as an update."""
    _in_turn = False
    broken: BaseException | None = None
    """Why it could not follow an update, and serves nothing any more."""
    _closed = False
    _owns_relation = False
    _left_half_way = ""
    """How a turn came to be left half-way: which of its rows are out, nobody can tell."""

    def own_relation(self) -> None:
        """Close R with the join: nothing else uses it."""
        self._owns_relation = True

    def close(self) -> None:
        """Stop following updates of R; close R if `create` was given its path. The join serves nothing afterwards."""
        self._closed = True
        self.relation.unsubscribe(self)
        if self._owns_relation:
            self.relation.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare_update(self, patch: Patch) -> JoinAgreement:
        """Agree to an update of R, or raise; see `Listener`."""
        if self.amid_turn:
            raise UpdateRefusedError(
                f"R cannot change amid a turn of {self.id}: iterate step(), or drain() and process() which call it, "
                "to the end, then update R"
            )
        undo: list[Undo] = []
        try:
            if self.broken is None:
                self.before_update(patch, undo)
        except BaseException:
            _undo(undo)
            raise
        return JoinAgreement(self, undo)

    def before_update(self, patch: Patch, undo: list[Undo]) -> None:
        """Take what an update needs, between turns; raise to refuse it.

        Each tuple must see R wholly before or wholly after an update. A tuple that is served within one turn does.

        Parameters
        ----------
        patch
            What R is going to be.
        undo
            What to do if the update is given up, by this join or by another one, the last first; append to it.
        """
        parts = self._growth(patch)
        lacking = sum(size - part.bytes for part, size in parts) - self.budget.free
        if lacking > 0:
            undo.append(self.give_up(lacking, patch))
            parts = self._growth(patch)  # the memory may have been taken again
        for part, size in parts:
            undo.append(partial(part.resize, part.bytes))
            part.resize(size)

    def after_update(self, change: Change) -> None:
        """Forget what has changed; the update is installed."""

    def forget_rows(self, keys: Ints) -> None:
        """Forget what a warm cache holds of keys, ascending: it was filled from another version of R.

        `semistream.relation.version_changes.changed_keys` says which have changed in between.
        """

    # -- memory -------------------------------------------------------------------------------------------

    def _update_bytes(self, overlay_bytes: int, index_bytes: int) -> int:
        """Return what R holds in memory because of updates."""
        return overlay_bytes + max(0, index_bytes - self._index_bytes)

    def _growth(self, patch: Patch) -> list[tuple[Reservation, int]]:
        """Return what takes another size with an update, and which."""
        return [(self._updates_part, self._update_bytes(patch.overlay.nbytes, patch.index_bytes))]

    def give_up(self, lacking: int, patch: Patch) -> Undo:
        """Do with ``lacking`` bytes less from now on; return what takes it back. Raises if that is too little."""
        raise self.too_large(lacking, patch)

    def too_large(self, lacking: int, patch: Patch) -> UpdateTooLargeError:
        return UpdateTooLargeError(
            f"with this update R holds {format_bytes(patch.nbytes)} in memory, changed pages and index, for which "
            f"{self.id} with memory of {self.budget.total:,} B has {lacking:,} B too little; give the join "
            f"{self.budget.total + 3 * lacking:,} B, or write the update with semistream.upsert and open that version",
            lacking,
        )

    def must_drain(self, waiting: int) -> UpdateRefusedError:
        return UpdateRefusedError(
            f"{self.id} holds {waiting:,} tuples in memory that the update needs; drain the join, then update R"
        )

    # -- inside -------------------------------------------------------------------------------------------

    @property
    def amid_turn(self) -> bool:
        """Whether a turn has begun and is not at its end, so that R must not change."""
        return self._in_turn

    @contextmanager
    def _to_its_end(self) -> Iterator[None]:
        """Let the join serve nothing any more if this is left half-way: rows of it would be lost, or come twice."""
        try:
            yield
        except GeneratorExit:
            self._left_half_way = "was not iterated to its end"
            raise
        except BaseException as error:
            self._left_half_way = f"ended with {type(error).__name__}: {error}"  # the error itself would hold the join
            raise

    def _check_usable(self) -> None:
        if self._closed:
            raise BrokenJoinError(f"this {self.id} is closed; make a new join")
        if self._left_half_way:
            raise BrokenJoinError(
                f"a turn of {self.id} {self._left_half_way}, and rows of it may be missing; make a new join, and offer "
                "it all rows again whose results you have not kept"
            )
        if self.broken is not None:
            raise BrokenJoinError(
                f"{self.id} could not follow an update of R ({type(self.broken).__name__}: {self.broken}) and may "
                "hold rows of before it; make a new join, and report this: it should not happen"
            ) from self.broken


class JoinAgreement:
    """A join's consent to an update."""

    def __init__(self, join: FollowsUpdates, undo: list[Undo]) -> None:
        self._join = join
        self._undo = undo

    def commit(self, change: Change) -> None:
        """Let the join forget what has changed."""
        if self._join.broken is None:
            self._join.after_update(change)

    def cancel(self) -> None:
        """Give back what was taken for the update."""
        _undo(self._undo)

    def failed(self, error: BaseException) -> None:
        """Let the join serve nothing any more."""
        self._join.broken = error


def _undo(steps: list[Undo]) -> None:
    while steps:
        steps.pop()()
