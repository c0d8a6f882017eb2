"""How an update of R is agreed on by all who hold copies of its rows or pages: first all are asked, then all are told.

::

    install(patch)   ask every listener:  prepare_update(patch) -> Agreement      any may refuse by raising:
                                                                                  those who agreed cancel()
                     R is changed
                     tell every listener: agreement.commit(change)

Whatever a listener needs for the update it takes when it is asked, memory above all, so that being told cannot fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from semistream.relation.changes.overlay import Change

if TYPE_CHECKING:
    from semistream.relation.changes.patch import Patch

__all__ = ["Agreement", "Listener", "ask_all", "cancelled_unless_done", "tell_all"]


class Agreement(Protocol):
    """A listener's consent to one update: it is committed or cancelled."""

    def commit(self, change: Change) -> None:
        """The update is installed: forget copies of what has changed. Must not fail."""
        ...

    def cancel(self) -> None:
        """The update is given up, since another listener refused: give back what was taken for it."""
        ...

    def failed(self, error: BaseException) -> None:
        """`commit` or `cancel` raised all the same: let nobody be served from what may be stale."""
        ...


class Listener(Protocol):
    """Someone who holds copies of R, asked and told of updates by `Relation.install`."""

    def prepare_update(self, patch: Patch) -> Agreement:
        """Agree to an update, or raise to refuse it.

        Either way no row may be lost or doubled if it is given up. Who raises must be as before.
        """
        ...


def ask_all(listeners: Iterable[Listener], patch: Patch) -> list[Agreement]:
    """Return the consent of all, or raise the first refusal; then those asked before are as they were."""
    agreements: list[Agreement] = []
    with cancelled_unless_done(agreements):
        for listener in listeners:
            agreements.append(listener.prepare_update(patch))  # noqa: PERF401 -- what there is before a refusal counts
    return agreements


@contextmanager
def cancelled_unless_done(agreements: Sequence[Agreement]) -> Iterator[None]:
    """Cancel agreements, the last first, if what is done meanwhile raises."""
    try:
        yield
    except BaseException:
        for agreement in reversed(agreements):
            try:
                agreement.cancel()
            except Exception as error:  # the refusal is what the caller must hear of
                agreement.failed(error)
        raise


def tell_all(agreements: Iterable[Agreement], change: Change) -> None:
    """Tell all that the update is installed, whatever becomes of some."""
    stopped: BaseException | None = None
    for agreement in agreements:
        try:
            agreement.commit(change)
        except Exception as error:
            agreement.failed(error)
        except BaseException as error:  # an interrupt: the others must hear of the update first
            agreement.failed(error)
            stopped = error
    if stopped is not None:
        raise stopped
