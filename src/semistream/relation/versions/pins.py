"""Pins the version of R that a micro-batch reads: chosen once, recorded before any row is read, reused by a replay.

The first task of a batch that opens a relation records the newest version under the query and batch. It links a file
into place, which only one task can do, so all tasks and all replays of the batch read the same version. It holds the
version meanwhile, so `vacuum` either sees the pin or keeps the version.

Linking is atomic and survives the end of any process. Flushing to disk, against a power failure, takes many times
longer than a small micro-batch, so it runs in the background. The task that recorded the version waits for it at its
end, so no batch ends before its version is on disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from semistream.core.errors import NotARelationError, PinError, StorageError
from semistream.relation.storage import files
from semistream.relation.storage import manifest as manifests
from semistream.relation.stores.store_path import Place, StorePath, names_in
from semistream.relation.versions import holds

__all__ = ["KEPT_PINS", "SHARED", "Pin", "forget_idle", "pin_version", "pinned_versions", "version_for"]

PINS = ".pins"
KEPT_PINS = 16
"""Batches of a query whose pins are kept. Spark replays only the last batch, which it had not committed."""
SHARED = "at-"
"""Prefix of names under which batches of several queries are pinned by their time in milliseconds; see `moments`."""
_SHARED_KEPT = 86_400_000  # milliseconds for which shared pins are kept
_SHARED_SWEEP = 64  # one shared pin in this many triggers the removal of old ones
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_SAFE = re.compile(r"[A-Za-z0-9-]+")


@dataclass(frozen=True)
class Pin:
    """The version that a micro-batch reads."""

    version: int
    _flushing: Future[None] | None = None

    def wait(self) -> None:
        """Wait until the pin is on disk, if this process has recorded it."""
        if self._flushing is not None:
            self._flushing.result()


def version_for(path: Place, query: str, batch: int, *, elsewhere: Path | None = None) -> int:
    """Return the version of the relation at ``path`` that a micro-batch reads.

    Pin it if it is not pinned yet.

    Parameters
    ----------
    path
        The relation.
    query, batch
        Spark's query id, which survives restarts from a checkpoint, and batch id.
    elsewhere
        A directory for pins if the relation is read-only, such as one in the query's checkpoint. `vacuum` does not see
        these pins, so writers to the relation must keep versions for such readers.
    """
    pin = pin_version(path, query, batch, elsewhere=elsewhere)
    pin.wait()
    return pin.version


def pin_version(path: Place, query: str, batch: int, *, elsewhere: Path | None = None) -> Pin:
    """Do the same as `version_for`, without waiting for the disk.

    The caller must wait before its batch ends.
    """
    if not _SAFE.fullmatch(query):
        raise ValueError(f"a query id must consist of letters, digits and dashes, not {query!r}")
    name = Path(query, f"{batch:012d}")
    if elsewhere is not None and (version := _read(elsewhere / name)) is not None:
        return Pin(version)  # even if the relation has become writable
    try:
        return _pinned(path, path / PINS / name)
    except StorageError as error:
        if error.errno not in _READ_ONLY or elsewhere is None:
            raise
        return _pinned(path, elsewhere / name)


def _pinned(path: Place, pin: Place) -> Pin:
    flushing = None
    while (version := _read(pin)) is None:
        newest = manifests.latest(path)
        if newest is None:
            raise NotARelationError(f"there is no longer a relation at {path}; restore it, and the query continues")
        held = holds.hold(path, newest)
        if held is None:  # superseded and removed meanwhile
            continue
        with held:
            above = _write(pin, newest)
            if above is not None:
                flushing = _in_background(functools.partial(_flush, pin, above))
    return Pin(version, flushing)


def pinned_versions(path: Place) -> set[int]:
    """Return the versions that a query may have to read again: those of each query's last pins."""
    found = set()
    for pin in _pins_below(path):
        with contextlib.suppress(FileNotFoundError):
            if text := pin.read_bytes():
                found.add(_number(pin, text))
    return found


def forget_idle(path: Place, *, idle_days: float, now: float, older_than: float) -> None:
    """Remove pins of queries that have not run for ``idle_days``, and leftovers of killed tasks of other queries."""
    if isinstance(path, StorePath):
        _forget_idle_in_store(path, now - idle_days * 86_400)
        return
    for query in (path / PINS).glob("*"):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            _forget_query_if_idle(query, idle_days=idle_days, now=now, older_than=older_than)


def _forget_query_if_idle(query: Path, *, idle_days: float, now: float, older_than: float) -> None:
    last = query.stat().st_mtime  # a new directory, in which a task is about to link its first pin
    seen = []
    for pin in query.iterdir():
        with contextlib.suppress(FileNotFoundError):
            written = pin.stat().st_mtime
            last = max(last, written)
            if pin.name.startswith(".") and now - written > older_than:
                files.remove(pin)  # a task that is only slow creates it again
            else:
                seen.append(pin)
    if now - last > idle_days * 86_400:
        for pin in seen:
            files.remove(pin)
        files.remove_empty_directory(query)  # fails if a pin was added meanwhile


def _pins_below(path: Place) -> list[Place]:
    if isinstance(path, StorePath):
        return [pin for pin, _ in (path / PINS).below() if pin.name[0].isdigit()]
    return list(path.glob(f"{PINS}/*/[0-9]*"))


def _forget_idle_in_store(path: StorePath, since: float) -> None:
    queries: dict[StorePath, list[tuple[StorePath, float]]] = {}
    for pin, status in (path / PINS).below():
        queries.setdefault(pin.parent, []).append((pin, status.st_mtime))
    for found in queries.values():
        if max(written for _, written in found) < since:
            for pin, _ in found:
                files.remove(pin)


def _number(pin: Place, text: bytes) -> int:
    if not text.isdigit() or len(text) > 18:
        raise PinError(
            f"the pin {pin} is damaged: it holds {text[:20]!r} instead of a version number; write the version of the "
            "query's last progress to it, or remove the file if its micro-batch had not begun"
        )
    return int(text)


def _read(pin: Place) -> int | None:
    try:
        text = pin.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if text:
        return _number(pin, text)
    if isinstance(pin, Path):
        _remove_empty(pin)
    return None


def _remove_empty(pin: Path) -> None:
    """Remove an empty pin, left by a power failure before the pin was flushed.

    No batch ended with it. This needs a lock. Otherwise two tasks that see the pin would remove each other's new pin.
    """
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(pin.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # the file system has no locks: continue without
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if pin.stat().st_size == 0:
                files.remove(pin)
        finally:
            os.close(descriptor)


def _write(pin: Place, version: int) -> list[Path] | None:
    """Record a version and return the directories above the pin's to flush; return None if another task was first."""
    try:
        above = files.make_directory_unflushed(pin.parent)
    except (FileExistsError, FileNotFoundError):  # the directory above was removed as idle
        return None
    return above if files.put_if_absent(pin, str(version).encode()) else None


def _flush(pin: Place, above: Sequence[Path]) -> None:
    """Flush a pin to disk, and remove pins that no replay can need."""
    if isinstance(pin, StorePath):
        _forget_old(pin)
        return
    with contextlib.suppress(FileNotFoundError):  # already old, and removed
        with files.edit(pin) as file:
            file.sync()
        for directory in (pin.parent, *reversed(above)):
            files.sync_directory(directory)
        _forget_old(pin)


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


def _forget_old(newest: Place) -> None:
    folder = newest.parent
    names = sorted(name for name in names_in(folder) if name[0].isdigit())
    if not folder.name.startswith(SHARED):
        # A query that was reset to an earlier batch needs its pins, however many later pins there are.
        old = [name for name in names if name <= newest.name][:-KEPT_PINS]
    elif (now := int(newest.name)) % _SHARED_SWEEP == 0:
        # By age: a query with many batches must not displace the pin of a query with few.
        old = [name for name in names if now - int(name) > _SHARED_KEPT]
    else:
        old = []
    for name in old:
        files.remove(folder / name)
