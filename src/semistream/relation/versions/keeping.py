"""Explains why `vacuum` kept old versions."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Collection
from pathlib import Path

from semistream.relation.storage import manifest as manifests
from semistream.relation.stores.store_path import place_of
from semistream.relation.versions import holds
from semistream.relation.versions.leases import leases
from semistream.relation.versions.pins import PINS

__all__ = ["kept_because"]


def kept_because(
    path: str | os.PathLike[str], *, keep: Collection[int] = (), older_than: float = 3600.0
) -> dict[int, str]:
    """Return why each version is kept; the parameters are those of `vacuum`."""
    place = place_of(path)
    if not isinstance(place, Path):  # an object store has no locks to inspect
        return {}
    path = place
    numbers = manifests.versions(path)
    now = time.time()
    floors = [lease.floor for lease in leases(path, now, older_than) if lease.alive and lease.floor is not None]
    pinned = _pinned(path)
    reasons: dict[int, str] = {}
    for number, following in itertools.pairwise([*numbers, 0]):
        if following == 0:
            reasons[number] = "it is the newest"
        elif number in keep:
            reasons[number] = "--keep lists it"
        elif number in pinned:
            reasons[number] = f"a micro-batch of query {pinned[number]} read it, and may be replayed"
        elif floors and number >= min(floors):
            reasons[number] = "an active writer began at this version or an earlier one"
        elif (held := holds.lock(path, number)) is None:
            reasons[number] = "a process has it open"
        else:
            held.close()
            with contextlib.suppress(FileNotFoundError):
                age = now - (path / manifests.name_of(following)).stat().st_mtime
                if age <= older_than:
                    reasons[number] = f"it was the newest {age / 60:.0f} minutes ago; --older-than 0 removes it"
            reasons.setdefault(number, "nothing: the next vacuum removes it")
    return reasons


def _pinned(path: Path) -> dict[int, str]:
    found: dict[int, str] = {}
    for pin in path.glob(f"{PINS}/*/[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ValueError):
            if text := pin.read_bytes():
                found[int(text)] = pin.parent.name
    return found
