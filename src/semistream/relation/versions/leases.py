"""Who writes to a relation: each writer registers before its first file, so that `vacuum` knows what is rubbish.

::

    relation/.writers/
        3f2a…              a lease: locked (flock) while its writer lives; says where it runs, and since which version
        3f2a….committing   the same, while its manifest is linked into place
        3f2a….dead         of a writer that is gone, until `vacuum` has removed what it left

The name of a lease is part of the names of all files that its writer makes, a Spark job's tasks on other machines
included, so nothing need be listed and no clock be asked whose file is whose.

Two promises follow, from the order in which things are done:

* A file is there only after its writer's lease, and the lease goes only after the manifest is there or the file is
  gone. So a file that was seen before leases were looked at, and manifests after them, is rubbish if neither knows it.
* A writer notes the newest version *before* it registers, and `vacuum` leaves alone that version and all after it. So
  the number after the one that a writer read is taken for good once another has it, and linking a manifest is
  compare-and-swap.

A lease is dead if its lock is free and its process was of this start of this machine. Of another machine it must have
given no sign of life for a day, as locks may not reach from machine to machine; should that writer wake up again, it
finds its lease taken away, and does not commit: both sides rename it, and only one of them can.
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

_HEARTBEAT = 60.0
_SILENT_RESTART = 900.0
"""The same for one on this machine before it was started anew."""
_LEASE = re.compile(r"([0-9a-f]{16})(\.committing|\.dead)?")
_MADE = re.compile(r"(?:shard-\d+|\.sorting|\.manifest|\.repair)-([0-9a-f]+)\b.*")


def made_by(name: str) -> str | None:
    """Return the writer that made a file, or None if the name is not that of a file a writer makes.

    >>> made_by("shard-0003-3f2a5d0c11e2a9b4-17.pages")
    '3f2a5d0c11e2a9b4'
    """
    match = _MADE.fullmatch(name)
    return None if match is None else match[1]


class Writer:
    """One try at a new version. Use as a context manager around all that is written.

    Whatever was written and is in no version is removed in the end, after an error as after `commit`.

    Parameters
    ----------
    path
        The relation's directory, which is there.
    """

    def __init__(self, path: Place) -> None:
        self.path = path
        self.floor = 0
        """The newest version before this writer began; it and all after it stay as long as the writer lives."""
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
            files.make_directory_unflushed(folder)  # who needs it does not survive a crash either
            self.floor = manifests.latest(self.path) or 0
            self.run = os.urandom(8).hex()
            temporary = folder / f".{self.run}"
            self._file = files.create(temporary)
            try:
                if _try_lock(self._file.fileno()) is False:  # taken for a leftover, just now
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
                f"{self.path} has version {self.floor}, and this change was made to version {version}; open the "
                "relation again and repeat the change"
            )

    def commit(self, manifest: Manifest) -> None:
        """Make ``manifest`` the newest version, or raise `CommitConflictError` if another one is."""
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
                    f"this writer to {self.path} gave no sign of life for a day and was taken for dead, so its files "
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
            # What cannot be removed, `vacuum` removes: the lease stays, and is dead.
            with contextlib.suppress(OSError, NotARelationError):
                self._remove_unnamed()
                files.remove(self._lease)
        finally:
            self._file.close()

    def _remove_unnamed(self) -> None:
        """Remove what is in no version; asked of the disk, as an error may have come after the commit."""
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
    """Return all writers; those that are dead can commit no more.

    ``now`` is by the file system's clock; what is left of writers that died while they registered is removed if
    ``older_than`` so many seconds.
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
            with contextlib.suppress(FileNotFoundError):  # ended, or about to commit: looked at again below
                found.append(_judged(file, match[1], match[2] == ".dead", now))
                continue
            committing = file.with_name(f"{match[1]}.committing")
            with contextlib.suppress(FileNotFoundError):
                found.append(_judged(committing, match[1], False, now))
    return found


def _remove_unfinished(file: Path, since: float) -> None:
    """Remove a lease that was not registered; one whose writer is about to is made anew by it."""
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
    """Lock a file, and tell whether nobody else has; None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise StorageError(f"a lock in {WRITERS} failed ({error})", number=error.errno) from error
        return None
    return True
