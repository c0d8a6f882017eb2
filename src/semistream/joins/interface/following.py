"""How a join follows updates of R: it agrees and reserves the memory for it, or refuses and remains unchanged."""

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
    """The part of a join that follows updates of its relation.

    An algorithm implements `before_update`, where it may refuse, and `after_update`, where it forgets what has changed;
    and `give_up`, if it can release some of its memory for R.
    """

    _updates_part: Reservation
    _index_bytes: int
    """Bytes of R's index when the memory was allocated; growth counts as memory of updates."""
    _in_turn = False
    broken: BaseException | None = None
    """The error because of which the join could not follow an update, and cannot be used any more."""
    _closed = False
    _owns_relation = False
    _left_half_way = ""
    """How an iteration was abandoned; then it is unknown which of its rows were returned."""

    def own_relation(self) -> None:
        """Close R with the join: nothing else uses it."""
        self._owns_relation = True

    def close(self) -> None:
        """Stop following updates of R; close R if `create` got its path. The join cannot be used afterwards."""
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
                f"R cannot change during an iteration of {self.id}: consume the results of step(), drain() or "
                "process() to the end, then update R"
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
        """Reserve what an update needs, between iterations; raise to refuse it.

        Each tuple must see R entirely before or entirely after an update. A tuple that is joined within one iteration
        does.

        Parameters
        ----------
        patch
            The new state of R.
        undo
            Functions to call, last first, if this join or another refuses the update; append to it.
        """
        parts = self._growth(patch)
        lacking = sum(size - part.bytes for part, size in parts) - self.budget.free
        if lacking > 0:
            undo.append(self.give_up(lacking, patch))
            parts = self._growth(patch)  # the memory may have been allocated again
        for part, size in parts:
            undo.append(partial(part.resize, part.bytes))
            part.resize(size)

    def after_update(self, change: Change) -> None:
        """Forget what has changed; the update is installed."""

    def forget_rows(self, keys: Ints) -> None:
        """Forget what a warm cache holds of these ascending keys: it was filled from another version of R.

        `semistream.relation.version_changes.changed_keys` returns the keys that have changed in between.
        """

    # -- memory -------------------------------------------------------------------------------------------

    def _update_bytes(self, overlay_bytes: int, index_bytes: int) -> int:
        """Return the bytes that R holds in memory because of updates."""
        return overlay_bytes + max(0, index_bytes - self._index_bytes)

    def _growth(self, patch: Patch) -> list[tuple[Reservation, int]]:
        """Return the reservations whose size changes with an update, and their new sizes."""
        return [(self._updates_part, self._update_bytes(patch.overlay.nbytes, patch.index_bytes))]

    def give_up(self, lacking: int, patch: Patch) -> Undo:
        """Release ``lacking`` bytes for an update; return a function that undoes it. Raises if this is not possible."""
        raise self.too_large(lacking, patch)

    def too_large(self, lacking: int, patch: Patch) -> UpdateTooLargeError:
        return UpdateTooLargeError(
            f"with this update R holds {format_bytes(patch.nbytes)} in memory, for changed pages and the index; "
            f"{self.id} with memory of {self.budget.total:,} B lacks {lacking:,} B for that; give the join "
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
        """Whether an iteration has begun and has not ended, so that R must not change."""
        return self._in_turn

    @contextmanager
    def _to_its_end(self) -> Iterator[None]:
        """Make the join unusable if this block is abandoned: rows would be lost or returned twice."""
        try:
            yield
        except GeneratorExit:
            self._left_half_way = "was not iterated to its end"
            raise
        except BaseException as error:
            self._left_half_way = f"ended with {type(error).__name__}: {error}"  # the error would keep the join alive
            raise

    def _check_usable(self) -> None:
        if self._closed:
            raise BrokenJoinError(f"this {self.id} is closed; make a new join")
        if self._left_half_way:
            raise BrokenJoinError(
                f"an iteration of {self.id} {self._left_half_way}, and its rows may be missing; make a new join, and "
                "offer it again all rows whose results you do not have"
            )
        if self.broken is not None:
            raise BrokenJoinError(
                f"{self.id} could not follow an update of R ({type(self.broken).__name__}: {self.broken}) and may "
                "hold rows from before it; make a new join, and report this: it should not happen"
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
        """Release what was reserved for the update."""
        _undo(self._undo)

    def failed(self, error: BaseException) -> None:
        """Make the join unusable."""
        self._join.broken = error


def _undo(steps: list[Undo]) -> None:
    while steps:
        steps.pop()()
