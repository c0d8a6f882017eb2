"""Which version of R a micro-batch reads: chosen once, recorded before any row is read, and read again by a replay.

The first task of a batch that comes to a relation records the newest version under the query and batch; a file is
linked into place, which only one can do, so all tasks and all replays of that batch read the same.

Linking is at once and survives the end of any process. Flushing to the disk, for when the power fails, takes many times
as long as a small micro-batch, and is done meanwhile: the task that recorded the version waits for it at its end, so
no batch is over before its version is on the disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from semistream.core.errors import NotARelationError
from semistream.relation import manifest as manifests
from semistream.relation.versions import vacuum

__all__ = ["KEPT_PINS", "Pin", "clean", "pin_version", "pinned_versions", "version_for"]

PINS = ".pins"
KEPT_PINS = 16
"""Pins of this many batches of a query are kept. Spark replays only what it had not committed: the last batch."""
_SAFE = re.compile(r"[A-Za-z0-9-]+")


@dataclass(frozen=True)
class Pin:
    """The version that a micro-batch reads."""

    version: int
    _flushing: Future[None] | None = None

    def wait(self) -> None:
        """Wait until the pin is on the disk, if this process has recorded it."""
        if self._flushing is not None:
            self._flushing.result()


def version_for(path: Path, query: str, batch: int) -> int:
    """Return the version of the relation at ``path`` that a micro-batch reads, pinning it if nobody has.

    Parameters
    ----------
    path
        The relation.
    query, batch
        Spark's query id, which survives restarts from a checkpoint, and batch id.
    """
    pin = pin_version(path, query, batch)
    pin.wait()
    return pin.version


def pin_version(path: Path, query: str, batch: int) -> Pin:
    """Do as `version_for`, without waiting for the disk: that is left to the caller, before its batch ends."""
    if not _SAFE.fullmatch(query):
        raise ValueError(f"a query id of letters, digits and dashes was expected, not {query!r}")
    pin = path / PINS / query / f"{batch:012d}"
    flushing = None
    while (version := _read(pin)) is None:
        newest = manifests.latest(path)
        if newest is None:
            raise NotARelationError(f"there is no relation at {path} any more; restore it, and the query goes on")
        if _write(pin, newest):
            flushing = _in_background(lambda: _flush(pin))
    return Pin(version, flushing)


def pinned_versions(path: Path) -> set[int]:
    """Return the versions that some query may still have to read again: those of each one's last pins."""
    pins = sorted(path.glob(f"{PINS}/*/*"))
    return {version for pin in pins if (version := _read(pin)) is not None}


def clean(path: Path, *, idle_days: float = 30.0, keep: Iterable[int] = (), older_than: float = 3600.0) -> list[str]:
    """Remove pins of queries that have not run for ``idle_days``, then versions that no pin holds.

    ``keep`` and ``older_than`` are `vacuum`'s. Returns the names of what was removed from the relation.
    """
    for query in (path / PINS).glob("*"):
        last = max((pin.stat().st_mtime for pin in query.glob("*")), default=0.0)
        if time.time() - last > idle_days * 86_400:
            shutil.rmtree(query, ignore_errors=True)
    return vacuum(path, keep={*keep, *pinned_versions(path)}, older_than=older_than)


def _read(pin: Path) -> int | None:
    try:
        text = pin.read_text()
    except FileNotFoundError:
        return None
    if not text:
        # A name without contents is what a power failure leaves of a pin that was not flushed: no batch ended with it.
        pin.unlink(missing_ok=True)
        return None
    return int(text)


def _write(pin: Path, version: int) -> bool:
    """Record a version unless another task was first, and tell; either way a pin is there afterwards."""
    pin.parent.mkdir(parents=True, exist_ok=True)
    temporary = pin.parent / f".{uuid.uuid4().hex}"
    try:
        temporary.write_text(str(version))
        os.link(temporary, pin)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _flush(pin: Path) -> None:
    """Put a pin on the disk, and remove those that no replay can need."""
    with contextlib.suppress(FileNotFoundError):  # old already, and removed
        manifests.sync_directory(pin)
        manifests.sync_directory(pin.parent)
        _forget_old(pin.parent)


def _in_background(work: Callable[[], None]) -> Future[None]:
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name="pin", daemon=True).start()
    return done


def _forget_old(folder: Path) -> None:
    for pin in sorted(folder.glob("[0-9]*"))[:-KEPT_PINS]:
        pin.unlink(missing_ok=True)
