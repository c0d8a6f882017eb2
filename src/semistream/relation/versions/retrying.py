"""What a writer does that was not first: wait a little, and work its version out anew on the newest."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from semistream.core.errors import CommitConflictError

__all__ = ["PATIENCE", "until_first"]

PATIENCE = 600.0
"""Seconds after which a writer gives up that others are always ahead of."""
_TRIES = 3
_LONGEST_PAUSE = 5.0

T = TypeVar("T")


def until_first(path: object, work: Callable[[], T], *, patience: float = PATIENCE) -> T:
    """Do ``work`` until no other writer was first; pauses between tries grow, and are of random length."""
    begun = time.monotonic()
    pause, tries = 0.01, 0
    while True:
        try:
            return work()
        except CommitConflictError as conflict:
            tries += 1
            spent = time.monotonic() - begun
            if spent > patience and tries >= _TRIES:
                raise CommitConflictError(
                    f"others changed {path} before this writer could, {tries} times in {spent:,.0f} s; let fewer "
                    "write at once, or put their changes together"
                ) from conflict
        time.sleep(random.uniform(pause / 2, pause))
        pause = min(2 * pause, _LONGEST_PAUSE)
