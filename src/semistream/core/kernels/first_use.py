"""Callbacks for the first use, which is slow because kernels are compiled; this module does not import the compiler."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["PATIENCE", "Compiling", "compiling", "tell_compiling"]

PATIENCE = 1.0  # seconds of compilation before the callbacks are called

compiling: list[Callable[[], None]] = []
"""Callbacks; each is called once, when compilation has taken more than `PATIENCE`."""


def tell_compiling() -> None:
    """Call all callbacks, and remove them.

    >>> compiling.append(lambda: print("a moment"))
    >>> tell_compiling(), tell_compiling()
    a moment
    (None, None)
    """
    while compiling:
        compiling.pop()()


class Compiling:
    """Adds up compilation time, and calls the callbacks when it becomes long; one or two kernels are not enough."""

    def __init__(self) -> None:
        self._depth = 0
        self._spent = 0.0
        self._began = 0.0
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        """Record that compilation begins. Calls may nest: a kernel's compilation may compile others that it calls."""
        self._depth += 1
        if self._depth > 1 or not compiling:
            return
        self._began = time.monotonic()
        if self._spent >= PATIENCE:
            tell_compiling()
            return
        self._timer = threading.Timer(PATIENCE - self._spent, tell_compiling)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Record that compilation has ended, successfully or not."""
        self._depth -= 1
        if self._depth == 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._spent += time.monotonic() - self._began
