"""Clocks: the real clock, and a virtual clock that advances only on request."""

from __future__ import annotations

import threading
import time
from typing import Protocol

__all__ = ["Clock", "RealClock", "VirtualClock"]


class Clock(Protocol):
    """A source of time in seconds."""

    def now(self) -> float:
        """Return seconds since some fixed moment."""
        ...


class RealClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Return `time.perf_counter`."""
        return time.perf_counter()


class VirtualClock:
    """Simulated time, which simulated devices and cost constants advance.

    >>> clock = VirtualClock()
    >>> clock.advance(0.0085)
    >>> clock.now()
    0.0085
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._lock = threading.Lock()

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Advance by ``seconds``."""
        if seconds < 0:
            raise ValueError(f"a clock can advance only by 0 s or more, not by {seconds} s")
        with self._lock:
            self._now += seconds

    def advance_to(self, moment: float) -> None:
        """Advance to ``moment``; a moment in the past changes nothing."""
        with self._lock:
            self._now = max(self._now, moment)
