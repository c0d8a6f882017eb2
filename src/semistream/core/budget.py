"""The memory budget: named reservations in bytes, refused when they do not fit.

A join reserves all memory here before it uses it, so `peak` is the maximum it ever held.
"""

from __future__ import annotations

import threading

from semistream.core.errors import BudgetExceededError
from semistream.core.units import format_bytes

__all__ = ["MemoryBudget", "Reservation"]


class Reservation:
    """A named part of a budget. Resize it, release it, or use it as a context manager."""

    __slots__ = ("_budget", "bytes", "name")

    def __init__(self, budget: MemoryBudget, name: str, size: int) -> None:
        self._budget = budget
        self.name = name
        self.bytes = size

    def resize(self, size: int) -> None:
        """Grow or shrink to ``size`` bytes. If there is not enough free memory, raise and change nothing."""
        self._budget._change(self, size)

    def release(self) -> None:
        """Release all bytes. Releasing twice is harmless."""
        self._budget._drop(self)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"Reservation({self.name!r}, {format_bytes(self.bytes)})"


class MemoryBudget:
    """A number of bytes and their reservations.

    Thread-safe: the parallel joins reserve from several threads.

    Examples
    --------
    >>> budget = MemoryBudget(1000)
    >>> buffer = budget.reserve("disk buffer", 800)
    >>> budget.free, budget.peak
    (200, 800)
    >>> budget.reserve("queue", 300)
    Traceback (most recent call last):
        ...
    semistream.core.errors.BudgetExceededError: queue needs 300 B, but only 200 B of the budget of 1 KB is \
free (held: disk buffer 800 B); give more memory, or less to the other parts
    """

    def __init__(self, total: int) -> None:
        if total <= 0:
            raise ValueError(f"a memory budget must be positive, not {total}")
        self.total = int(total)
        self.peak = 0
        self._used = 0
        self._held: list[Reservation] = []
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes reserved now."""
        return self._used

    @property
    def free(self) -> int:
        """Bytes that can still be reserved."""
        return self.total - self._used

    def reserve(self, name: str, size: int) -> Reservation:
        """Reserve ``size`` bytes under ``name`` or raise `BudgetExceededError`."""
        reservation = Reservation(self, name, 0)
        with self._lock:
            self._held.append(reservation)
        try:
            self._change(reservation, size)
        except BaseException:
            self._drop(reservation)
            raise
        return reservation

    def release(self) -> None:
        """Release all reservations."""
        for reservation in list(self._held):
            reservation.release()

    def resize(self, total: int) -> None:
        """Change the total, which must not be less than what is reserved now; `peak` is capped at it."""
        with self._lock:
            if total < self._used:
                raise BudgetExceededError(
                    f"a budget of {format_bytes(total)} does not hold the {format_bytes(self._used)} that are "
                    "reserved; release some first"
                )
            self.total, self.peak = total, min(self.peak, total)

    def parts(self) -> dict[str, int]:
        """Return the bytes held now under each name."""
        parts: dict[str, int] = {}
        with self._lock:
            for reservation in self._held:
                parts[reservation.name] = parts.get(reservation.name, 0) + reservation.bytes
        return parts

    def check(self) -> None:
        """Assert that the sums agree and the total is not exceeded."""
        with self._lock:
            held = sum(reservation.bytes for reservation in self._held)
        assert held == self._used, f"reservations sum to {held}, recorded {self._used}: {self._held}"
        assert 0 <= self._used <= self.peak <= self.total, (self._used, self.peak, self.total)

    def _change(self, reservation: Reservation, size: int) -> None:
        if size < 0:
            raise ValueError(f"a reservation cannot be negative: {size} for {reservation.name}")
        with self._lock:
            if reservation not in self._held:
                raise ValueError(f"the reservation {reservation.name} was released; make a new one")
            more = size - reservation.bytes
            if more > self.total - self._used:
                held = ", ".join(f"{r.name} {format_bytes(r.bytes)}" for r in self._held if r.bytes)
                raise BudgetExceededError(
                    f"{reservation.name} needs {format_bytes(more)}, but only {format_bytes(self.free)} of the budget "
                    f"of {format_bytes(self.total)} is free (held: {held or 'nothing'}); give more memory, or less to "
                    "the other parts"
                )
            reservation.bytes = size
            self._used += more
            self.peak = max(self.peak, self._used)

    def _drop(self, reservation: Reservation) -> None:
        with self._lock:
            if reservation in self._held:
                self._held.remove(reservation)
                self._used -= reservation.bytes
                reservation.bytes = 0

    def __repr__(self) -> str:
        return f"MemoryBudget({format_bytes(self._used)} of {format_bytes(self.total)})"
