"""Which version of R a micro-batch reads: chosen once, recorded before any row is read, and read again by a replay.

The first task of a batch that comes to a relation records the newest version under the query and batch; a file is
linked into place, which only one can do, so all tasks and all replays of that batch read the same.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from pathlib import Path

from semistream.core.errors import NotARelationError
from semistream.relation import manifest as manifests
from semistream.relation.versions import vacuum

__all__ = ["KEPT_PINS", "clean", "pinned_versions", "version_for"]

PINS = ".pins"
KEPT_PINS = 16
"""Pins of this many batches of a query are kept. Spark replays only what it had not committed: the last batch."""
_SAFE = re.compile(r"[A-Za-z0-9-]+")


def version_for(path: Path, query: str, batch: int) -> int:
    """Return the version of the relation at ``path`` that a micro-batch reads, pinning it if nobody has.

    Parameters
    ----------
    path
        The relation.
    query, batch
        Spark's query id, which survives restarts from a checkpoint, and batch id.
    """
    if not _SAFE.fullmatch(query):
        raise ValueError(f"a query id of letters, digits and dashes was expected, not {query!r}")
    pin = path / PINS / query / f"{batch:012d}"
    while (version := _read(pin)) is None:
        newest = manifests.latest(path)
        if newest is None:
            raise NotARelationError(f"there is no relation at {path} any more; restore it, and the query goes on")
        _write(pin, newest)
    return version


def pinned_versions(path: Path) -> set[int]:
    """Return the versions that some query may still have to read again: those of each one's last pins."""
    pins = sorted(path.glob(f"{PINS}/*/*"))
    return {version for pin in pins if (version := _read(pin)) is not None}


def clean(path: Path, *, idle_days: float = 30.0, older_than: float = 3600.0) -> list[str]:
    """Remove pins of queries that have not run for ``idle_days``, then versions that no pin holds.

    Returns the names of what was removed from the relation.
    """
    for query in (path / PINS).glob("*"):
        last = max((pin.stat().st_mtime for pin in query.glob("*")), default=0.0)
        if time.time() - last > idle_days * 86_400:
            shutil.rmtree(query, ignore_errors=True)
    return vacuum(path, keep=pinned_versions(path), older_than=older_than)


def _read(pin: Path) -> int | None:
    try:
        return int(pin.read_text())
    except FileNotFoundError:
        return None


def _write(pin: Path, version: int) -> None:
    """Record a version unless another task was first; either way a pin is there afterwards."""
    pin.parent.mkdir(parents=True, exist_ok=True)
    temporary = pin.parent / f".{uuid.uuid4().hex}"
    try:
        with open(temporary, "w") as file:
            file.write(str(version))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, pin)
        except FileExistsError:
            return
        manifests.sync_directory(pin.parent)
    finally:
        temporary.unlink(missing_ok=True)
    _forget_old(pin.parent)


def _forget_old(folder: Path) -> None:
    for pin in sorted(folder.glob("[0-9]*"))[:-KEPT_PINS]:
        pin.unlink(missing_ok=True)
