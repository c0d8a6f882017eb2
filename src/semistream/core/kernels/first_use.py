"""Callbacks for a first use, which takes long because kernels are compiled; without importing the compiler."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["PATIENCE", "Compiling", "compiling", "tell_compiling"]

PATIENCE = 1.0  # seconds of compiling before anybody is told

compiling: list[Callable[[], None]] = []
"""Called once each, when compiling has taken more than `PATIENCE`."""


def tell_compiling() -> None:
    """Call all, and forget them.

    >>> compiling.append(lambda: print("a moment"))
    >>> tell_compiling(), tell_compiling()
    a moment
    (None, None)
    """
    while compiling:
        compiling.pop()()


class Compiling:
    """Adds up the time of compiling, and tells of it when it becomes long: not of a kernel or two."""

    def __init__(self) -> None:
        self._depth = 0
        self._spent = 0.0
        self._began = 0.0
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        """Take note that compiling begins; while a kernel is compiled, others that it calls may be."""
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
        """Take note that it has ended, well or not."""
        self._depth -= 1
        if self._depth == 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._spent += time.monotonic() - self._began
