"""Leases of the writers to a relation.

Each writer registers before its first file, so `vacuum` can identify leftovers.

::

    relation/.writers/
        3f2a…              a lease: locked (flock) while its writer lives; holds its machine and its first version
        3f2a….committing   the same, while its manifest is linked into place
        3f2a….dead         the lease of a dead writer, until `vacuum` has removed its leftovers

The name of a lease is part of the names of all files of its writer, including files that tasks of a Spark job write on
other machines. So the owner of a file is known without a list and without a clock.

The order of operations gives two guarantees:

* A file exists only after its writer's lease exists. The lease is removed only after the manifest exists or the file is
  removed. So list files first, then leases, then manifests: a file known to neither leases nor manifests is a leftover.
* A writer reads the newest version *before* it registers, and `vacuum` keeps that version and all later ones. So the
  next version number, once another writer has used it, never becomes free again, and linking a manifest is
  compare-and-swap.

A lease is dead if its lock is free and its process belongs to the current boot of this machine. A lease of another
machine is dead after a day without a heartbeat, because locks may not work across machines. If that writer wakes up
again, it finds its lease taken away and does not commit: both sides rename the lease, and only one of them succeeds.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import threading
from pathlib import Path
from types import TracebackType

from semistream.core.errors import CommitConflictError, NotARelationError, StorageError
from semistream.relation.storage import files
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.manifest import Manifest
from semistream.relation.stores.store_path import Place, StorePath, names_in
from semistream.relation.versions.lease_record import SILENT_MACHINE, WRITERS, Lease, named_after, this_machine
from semistream.relation.versions.store_leases import StoreLease, leases_in_store

__all__ = ["WRITERS", "Lease", "Writer", "leases", "made_by"]

_HEARTBEAT = 60.0  # seconds between heartbeats of a writer
_SILENT_RESTART = 900.0
"""Seconds without a heartbeat after which a writer from an earlier boot of this machine is considered dead."""
_LEASE = re.compile(r"([0-9a-f]{16})(\.committing|\.dead)?")
_MADE = re.compile(r"(?:shard-\d+|\.sorting|\.manifest|\.repair)-([0-9a-f]+)\b.*")


def made_by(name: str) -> str | None:
    """Return the writer of a file, or None if the name is not of a file that a writer makes.

    >>> made_by("shard-0003-3f2a5d0c11e2a9b4-17.pages")
    '3f2a5d0c11e2a9b4'
    """
    match = _MADE.fullmatch(name)
    return None if match is None else match[1]


class Writer:
    """One attempt at a new version.

    Use it as a context manager around everything that is written. On exit, files that were written and that no version
    lists are removed, after an error and after `commit`.

    Parameters
    ----------
    path
        The relation's directory, which must exist.
    """

    def __init__(self, path: Place) -> None:
        self.path = path
        self.floor = 0
        """The newest version before this writer began. It and all later versions are kept while the writer lives."""
        self.run = ""
        """Part of the names of all files of this writer."""
        self._lease: Path | None = None
        self._file: files.WrittenFile | None = None
        self._ended = threading.Event()
        self._stored: StoreLease | None = None

    def __enter__(self) -> Writer:
        if isinstance(self.path, StorePath):
            self._stored = StoreLease(self.path)
            self.floor, self.run = self._stored.floor, self._stored.run
            return self
        folder = self.path / WRITERS
        while self._lease is None:
            files.make_directory_unflushed(folder)  # not flushed: after a crash of the machine, no writer needs it
            self.floor = manifests.latest(self.path) or 0
            self.run = os.urandom(8).hex()
            temporary = folder / f".{self.run}"
            self._file = files.create(temporary)
            try:
                if _try_lock(self._file.fileno()) is False:  # just considered a leftover by `vacuum`
                    raise FileNotFoundError
                self._file.write(json.dumps({"floor": self.floor, **this_machine(), "process": os.getpid()}).encode())
                self._file.sync()
                files.rename(temporary, folder / self.run)
                self._lease = folder / self.run
            except FileNotFoundError:
                self._file.close()
            except BaseException:
                self._file.close()
                with contextlib.suppress(OSError):
                    files.remove(temporary)
                raise
        threading.Thread(target=self._beat, name="writer's lease", daemon=True).start()
        return self

    def check_follows(self, version: int) -> None:
        """Raise `CommitConflictError` if ``version`` was not the newest when this writer began."""
        if version != self.floor:
            raise CommitConflictError(
                f"{self.path} has version {self.floor}, but this change is based on version {version}; open the "
                "relation again and repeat the change"
            )

    def commit(self, manifest: Manifest) -> None:
        """Make ``manifest`` the newest version, or raise `CommitConflictError` if another writer was first."""
        if self._stored is not None:
            self._stored.about_to_commit()
            manifests.commit(self.path, manifest, self.run)
            return
        assert self._lease is not None, "a writer commits inside its context"
        assert self._file is not None
        assert isinstance(self.path, Path)
        committing = self.path / WRITERS / f"{self.run}.committing"
        if self._lease != committing:
            os.utime(self._file.fileno())
            try:
                files.rename(self._lease, committing)
            except FileNotFoundError:
                raise CommitConflictError(
                    f"this writer to {self.path} had no heartbeat for a day and was considered dead, so its files "
                    "were removed; write again"
                ) from None
            self._lease = committing
        manifests.commit(self.path, manifest, self.run)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._ended.set()
        if self._stored is not None:
            with self._stored, contextlib.suppress(OSError, NotARelationError):
                self._remove_unnamed()
                self._stored.give_up()
            return
        assert self._lease is not None
        assert self._file is not None
        try:
            # The lease stays and is dead, so `vacuum` removes what could not be removed here.
            with contextlib.suppress(OSError, NotARelationError):
                self._remove_unnamed()
                files.remove(self._lease)
        finally:
            self._file.close()

    def _remove_unnamed(self) -> None:
        """Remove files that no version lists.

        Read versions from disk, as an error may have followed the commit.
        """
        made = [name for name in names_in(self.path) if made_by(name) == self.run]
        if not made:
            return
        named = named_after(self.path, self.floor)
        for name in made:
            if name not in named:
                files.remove_tree(self.path / name)

    def _beat(self) -> None:
        while not self._ended.wait(_HEARTBEAT):
            with contextlib.suppress(OSError):
                assert self._file is not None
                os.utime(self._file.fileno())


def leases(path: Place, now: float, older_than: float) -> list[Lease]:
    """Return all writers.

    Dead writers can no longer commit. ``now`` is the time of the file system's clock. Leftovers of writers that died
    while they registered are removed after ``older_than`` seconds.
    """
    if isinstance(path, StorePath):
        return leases_in_store(path, now)
    found = []
    try:
        names = os.listdir(path / WRITERS)
    except (FileNotFoundError, NotADirectoryError):
        return []
    for name in names:
        file = path / WRITERS / name
        if name.startswith("."):
            with contextlib.suppress(FileNotFoundError):
                _remove_unfinished(file, now - older_than)
        elif match := _LEASE.fullmatch(name):
            with contextlib.suppress(FileNotFoundError):  # ended, or about to commit: checked again below
                found.append(_judged(file, match[1], match[2] == ".dead", now))
                continue
            committing = file.with_name(f"{match[1]}.committing")
            with contextlib.suppress(FileNotFoundError):
                found.append(_judged(committing, match[1], False, now))
    return found


def _remove_unfinished(file: Path, since: float) -> None:
    """Remove a lease that was never registered.

    If its writer is about to register, the writer creates it again.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_mtime < since and _try_lock(descriptor) is not False:
            files.remove(file)
    finally:
        os.close(descriptor)


def _judged(file: Path, run: str, dead: bool, now: float) -> Lease:
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        try:
            record = json.loads(os.read(descriptor, 1 << 16))
            floor = int(record["floor"])
        except (ValueError, KeyError, TypeError):
            record, floor = {}, 0
        if not dead and not _is_dead(descriptor, record, now - status.st_mtime):
            return Lease(file, run, floor, alive=True)
        taken = file.with_name(f"{run}.dead")
        if not dead:
            files.rename(file, taken)
        return Lease(taken, run, floor, alive=False)
    finally:
        os.close(descriptor)


def _is_dead(descriptor: int, record: dict[str, object], silent: float) -> bool:
    locked = _try_lock(descriptor)
    if locked is False:
        return False
    here = this_machine()
    if locked and here["boot"] and record.get("boot") == here["boot"]:
        return True
    same_machine = here["machine"] and all(record.get(name) == here[name] for name in ("host", "machine"))
    return silent > (_SILENT_RESTART if same_machine else SILENT_MACHINE)


def _try_lock(descriptor: int) -> bool | None:
    """Try to lock a file; return False if another process holds the lock, None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise StorageError(f"a lock in {WRITERS} failed ({error})", number=error.errno) from error
        return None
    return True
