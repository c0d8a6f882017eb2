"""Warm state: the cache of a shard outlives the task that filled it.

Tasks of one shard run in whichever Python worker is free, so what one of them learned must lie outside of it: in
memory-mapped files on the machine, which the next worker attaches without copying.

::

    /dev/shm/semistream-<user>/<query>/<join>/00003-of-00008/    or a local directory, if there is no room for it there
        clean           what the cache holds: relation, version, files of the shard, layout; missing while in use
        *.array         the arrays of the cache

The directory itself is locked (``flock``) by the one task that uses the cache.

It is only a cache, and never trusted further than that:

* a task that does not get the lock (a speculative twin of one that runs) works with a cache of its own;
* ``clean`` is removed before the first use and written again after the last, so a cache whose task was killed or
  failed is thrown away, and so is one of another layout, or from before a reboot;
* of a cache of another version of R, the rows that are others now are forgotten (`brought_up`), and all of them if it
  cannot be told which;
* files are never emptied in place but removed and made anew, so whoever still has them mapped is not disturbed; and
  a directory that was removed, or made anew by another, is noticed: a task works inside the one that it has locked.

A shard has one cache at a time on a machine, of a size that is part of the join's memory. Files on a memory file system
are memory: all of their room is taken when they are made, so that it cannot run out in the middle.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path
from types import TracebackType

from semistream.core.arrays import Ints
from semistream.core.errors import NotARelationError
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.manifest import Manifest
from semistream.relation.stores.store_path import Place, StorePath
from semistream.relation.version_changes import changed_between
from semistream.structures.array_source import Arrays, MappedArrays

__all__ = [
    "OWNERS",
    "WarmShard",
    "boot_id",
    "brought_up",
    "is_own",
    "own_place",
    "places",
    "room_at",
    "shard_identity",
    "started",
]

_MEMORY_FILES = Path("/dev/shm")
OWNERS = "owners"
"""Directory under that of a query, with a file for each executor that has run tasks of it."""
_FORMAT = 2
_FEW_PAGES, _MOST_SHARE = 256, 16
"""A new version is compared with the old one if few pages were written, or few for the size of the shard."""


def places() -> list[Path]:
    """Return the directories in which caches may be, the best first; each is this user's alone."""
    local = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    return [root / f"semistream-{os.getuid()}" for root in (_MEMORY_FILES, Path(local)) if root.is_dir()]


def is_own(root: Path) -> bool:
    """Return whether a place is a directory of this user's: anyone may put something, or a link, under its name."""
    try:
        status = root.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def shard_identity(path: Place, manifest: Manifest, shard: int) -> str:
    """Return what tells the contents of a shard from any other: its files, which are never changed, only replaced."""
    if isinstance(path, StorePath):
        listed = path.entries()
        named = [[name, listed[name].identity] for name in manifest.shards[shard].files]
        return json.dumps([str(path), manifest.version, named])
    found = []
    for name in manifest.shards[shard].files:
        status = (path / name).stat()
        found.append([name, status.st_ino, status.st_mtime_ns, status.st_size])
    return json.dumps([str(path), manifest.version, found])


def brought_up(path: Place, before: str, manifest: Manifest, shard: int) -> Ints | None:
    """Return the keys that a cache must forget which was filled from a shard as it was ``before``; None: all of them.

    It may have been filled from a later version: a batch that is done again reads the one that it read first.
    """
    try:
        where, version, _ = json.loads(before)
        left = manifests.load(path, version)
        if where != str(path) or shard_identity(path, left, shard) != before:
            return None
    except (ValueError, TypeError, LookupError, OSError, NotARelationError):
        return None
    first, last = sorted((left, manifest), key=lambda one: one.version)
    most = max(_FEW_PAGES, manifest.shards[shard].pages // _MOST_SHARE)
    return changed_between(path, first, last, shard, most_pages=most)


class WarmShard:
    """The cache of one shard, held by one task.

    Use as a context manager; call `keep` at the end, when nothing is in the middle of a change. Given to a join as
    its ``arrays``, it hands out those that the last task left, if they are of the same layout.

    Parameters
    ----------
    lock
        Descriptor of the cache's directory, which is locked. Closed in the end.
    identity
        See `shard_identity`.
    """

    def __init__(self, lock: int, identity: str) -> None:
        # Through the descriptor: always the directory that is locked, whatever has become of its name.
        self.directory = Path(f"/proc/self/fd/{lock}")
        self.attached = False
        """Whether the cache is that of an earlier task."""
        self._lock = lock
        self.identity = identity
        self._left_by = identity
        self._label: str | None = None

    @classmethod
    def take(cls, query: str, join: str, part: int, parts: int, identity: str, *, room: int) -> WarmShard | None:
        """Return the cache of a task, or None if another task has it or this machine has no place for one.

        Caches of the same join with another number of parts hold other keys; they are removed.

        Parameters
        ----------
        query, join, part, parts
            Whose cache. Names become directories.
        identity
            See `shard_identity`.
        room
            Bytes that the cache takes at most. A memory file system is used only if it keeps as much again free.
        """
        below = Path(query, join, f"{part:05d}-of-{parts:05d}")
        roots = places()
        existing = [root for root in roots if (root / below).is_dir()]
        if not existing:
            for root in roots:
                _remove_others(root / query / join, parts)
        for root in existing or roots:
            try:
                if not existing and root.parent == _MEMORY_FILES and room_at(root.parent) < 2 * room:
                    continue
                own_place(root, query)
                lock = _locked(root / below)
            except OSError:  # not ours, read-only, full
                continue
            return None if lock is None else cls(lock, identity)
        return None

    def __call__(self, layout: str) -> Arrays:
        """Return arrays of this layout: those of the last task, or empty ones. They are in use from now on.

        Any of them may turn out not to be had, with an `OSError`: no room, or removed meanwhile. Then none is of use.
        """
        self._label = self._labelled(self.identity, layout)
        clean = self.directory / "clean"
        with contextlib.suppress(OSError):
            self.attached = clean.read_text() == self._labelled(self._left_by, layout)
        clean.unlink(missing_ok=True)
        if not self.attached:
            self._empty()
        return MappedArrays(self.directory, existing=self.attached)

    @property
    def left_by(self) -> str:
        """The identity of the shard that the cache was filled from; this one's, if there is none."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            return str(json.loads((self.directory / "clean").read_text())[2])
        return self.identity

    def take_over(self, before: str) -> None:
        """Have a cache that was filled from the shard as it was ``before``; whoever uses it makes up the difference."""
        self._left_by = before

    @staticmethod
    def _labelled(identity: str, layout: str) -> str:
        return json.dumps([_FORMAT, boot_id(), identity, layout])

    def keep(self) -> None:
        """Leave the cache to the next task. Whoever has its arrays must not change them any more."""
        if self._label is not None:
            new = self.directory / "clean.new"
            with contextlib.suppress(OSError):  # removed meanwhile, or no room even for a line: the next starts empty
                new.write_text(self._label)
                new.rename(self.directory / "clean")

    def discard(self) -> None:
        """Give up the cache and the room it takes."""
        self._label, self.attached = None, False
        with contextlib.suppress(OSError):
            (self.directory / "clean").unlink(missing_ok=True)
            self._empty()

    def close(self) -> None:
        """Let another task have the cache: as `keep` left it, or else empty."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _empty(self) -> None:
        for file in self.directory.glob("*.array"):
            file.unlink(missing_ok=True)

    def __enter__(self) -> WarmShard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


# -- inside ---------------------------------------------------------------------------------------------------


def own_place(root: Path, query: str) -> None:
    """Note under a query that processes of this executor use its caches, and when they last did."""
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o700)
    if not is_own(root):
        raise PermissionError(f"{root} is not a directory of this user")
    owners = root / query / OWNERS
    owners.mkdir(parents=True, exist_ok=True)
    parent = os.getppid()  # Spark's daemon, which lives as long as the executor
    (owners / f"{parent}-{started(parent)}").touch()


def _remove_others(join: Path, parts: int) -> None:
    """Remove the caches of a join that were left by another number of tasks."""
    with contextlib.suppress(OSError):
        for cache in list(join.iterdir()):
            if not cache.name.endswith(f"-of-{parts:05d}"):
                shutil.rmtree(cache, ignore_errors=True)


def _locked(directory: Path) -> int | None:
    """Return a descriptor that holds the lock of a directory, or None if another process does."""
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), directory.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        os.close(descriptor)  # removed between opening and locking: make it again


def started(process: int) -> str:
    """Return when a process was started, so that another of the same number is not taken for it."""
    try:
        # fields after the name, which is in parentheses and may hold anything
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def boot_id() -> str:
    """Return what tells this run of the machine from others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def room_at(path: Path) -> int:
    """Return the bytes that are free in the file system of a path."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize
