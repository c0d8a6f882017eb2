"""Retries a commit that lost to another writer: wait briefly, then compute the version again from the newest."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from semistream.core.errors import CommitConflictError

__all__ = ["PATIENCE", "until_first"]

PATIENCE = 600.0
"""Seconds after which a writer gives up if other writers always commit first."""
_TRIES = 3  # minimum attempts, even after `PATIENCE`
_LONGEST_PAUSE = 5.0  # maximum seconds between attempts

T = TypeVar("T")


def until_first(path: object, work: Callable[[], T], *, patience: float = PATIENCE) -> T:
    """Repeat ``work`` until no other writer commits first.

    Pauses between attempts grow, and their length is random.
    """
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
                    f"other writers changed {path} before this one could, {tries} times in {spent:,.0f} s; run fewer "
                    "writers at the same time, or combine their changes"
                ) from conflict
        time.sleep(random.uniform(pause / 2, pause))
        pause = min(2 * pause, _LONGEST_PAUSE)
