"""The two-phase protocol by which all holders of copies of R's rows or pages agree to an update.

::

    install(patch)   ask every listener:     prepare_update(patch) -> Agreement   any may refuse by raising:
                                                                                  the others then cancel()
                     R is changed
                     notify every listener:  agreement.commit(change)

A listener acquires everything it needs for the update, above all memory, when it is asked. So `commit` cannot fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from semistream.relation.changes.overlay import Change

if TYPE_CHECKING:
    from semistream.relation.changes.patch import Patch

__all__ = ["Agreement", "Listener", "MovableListener", "ask_all", "cancelled_unless_done", "tell_all"]


class Agreement(Protocol):
    """A listener's consent to one update, which is then committed or cancelled."""

    def commit(self, change: Change) -> None:
        """Forget copies of what has changed, because the update is installed; must not fail."""
        ...

    def cancel(self) -> None:
        """The update is abandoned, because another listener refused: release what was acquired for it."""
        ...

    def failed(self, error: BaseException) -> None:
        """`commit` or `cancel` raised nevertheless: serve nothing from copies that may be stale."""
        ...


class Listener(Protocol):
    """A holder of copies of R. `Relation.install` asks it before updates and notifies it afterwards."""

    def prepare_update(self, patch: Patch) -> Agreement:
        """Agree to an update, or raise to refuse it.

        In both cases, no row may be lost or duplicated if the update is abandoned. A listener that raises must be
        unchanged.
        """
        ...


@runtime_checkable
class MovableListener(Listener, Protocol):
    """A listener that can also follow R to another version, because it holds no tuples between calls."""

    def moving(self) -> AbstractContextManager[None]:
        """Wait for calls that read R, and hold back new ones while R moves to other files or is closed."""
        ...


def ask_all(listeners: Iterable[Listener], patch: Patch) -> list[Agreement]:
    """Return the agreements of all listeners, or cancel those given and raise the first refusal."""
    agreements: list[Agreement] = []
    with cancelled_unless_done(agreements):
        for listener in listeners:
            agreements.append(listener.prepare_update(patch))  # noqa: PERF401 -- a refusal needs the agreements so far
    return agreements


@contextmanager
def cancelled_unless_done(agreements: Sequence[Agreement]) -> Iterator[None]:
    """Cancel agreements, last first, if the body raises."""
    try:
        yield
    except BaseException:
        for agreement in reversed(agreements):
            try:
                agreement.cancel()
            except Exception as error:  # the caller must see the refusal
                agreement.failed(error)
        raise


def tell_all(agreements: Iterable[Agreement], change: Change) -> None:
    """Notify all that the update is installed, even if some of them fail."""
    stopped: BaseException | None = None
    for agreement in agreements:
        try:
            agreement.commit(change)
        except Exception as error:
            agreement.failed(error)
        except BaseException as error:  # an interrupt: the others must be notified first
            agreement.failed(error)
            stopped = error
    if stopped is not None:
        raise stopped
