"""Warm state: the cache of a shard outlives the task that filled it.

Tasks of a shard run in any free Python worker, so the cache must be outside of the worker: in memory-mapped files that
the next worker on the machine attaches without copying.

::

    /dev/shm/semistream-<user>/<query>/<join>/00003-of-00008/    or a local directory, if there is no room for it there
        clean           what the cache holds: relation, version, files of the shard, layout; missing while in use
        *.array         the arrays of the cache
        *.note          what the last task found about the stream, for the sizes of the arrays

The task that uses the cache locks the directory (``flock``).

A cache is used only if it is known to be valid:

* A task that does not get the lock, such as a speculative copy of a running task, uses a private cache.
* ``clean`` is removed before the first use and written again after the last. So a cache is discarded if its task was
  killed or failed, if its layout differs, or if the machine was restarted since.
* If the cache is of another version of R, only the rows that changed are evicted (`brought_up`). If the changes are not
  known, all rows are.
* Files are never truncated in place. They are removed and created again, so that processes that have them mapped are
  not disturbed. A task works inside the directory that it has locked, even if the directory was removed or replaced.

A machine has at most one cache of a shard. Its size is part of the join's memory. Files on a memory file system occupy
memory: all of their space is allocated when they are created, so that it cannot run out later.
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
"""Subdirectory of a query's directory, with a file for each executor that has run tasks of the query."""
_FORMAT = 2
_FEW_PAGES, _MOST_SHARE = 256, 16
"""A new version is compared with the old one only if at most 256 pages, or 1/16 of the shard's pages, were written."""


def places() -> list[Path]:
    """Return the directories that may contain caches, the best first; each belongs to this user only."""
    local = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    return [root / f"semistream-{os.getuid()}" for root in (_MEMORY_FILES, Path(local)) if root.is_dir()]


def is_own(root: Path) -> bool:
    """Return whether a place is a directory that this user owns: anyone could create a file or link of that name."""
    try:
        status = root.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def shard_identity(path: Place, manifest: Manifest, shard: int) -> str:
    """Return what identifies the contents of a shard: its files, which are never changed, only replaced."""
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
    """Return the keys to evict from a cache that was filled from shard ``before``; None if all must be evicted.

    The cache may have been filled from a later version: a replayed batch reads the version that it read first.
    """
    try:
        where, version, _ = json.loads(before)
        left = manifests.load(path, version)
        if manifest.by is not None:
            left = left.in_order_of(manifest.by, path)
        if where != str(path) or shard_identity(path, left, shard) != before:
            return None
    except (ValueError, TypeError, LookupError, OSError, NotARelationError):
        return None
    first, last = sorted((left, manifest), key=lambda one: one.version)
    most = max(_FEW_PAGES, manifest.shards[shard].pages // _MOST_SHARE)
    return changed_between(path, first, last, shard, most_pages=most)


class WarmShard:
    """The cache of one shard, held by one task.

    Use it as a context manager, and call `keep` at the end, when no change is in progress. A join gets it as its
    ``arrays``: it provides the arrays that the last task left, if they have the same layout.

    Parameters
    ----------
    lock
        Descriptor of the cache's directory, which is locked. It is closed at the end.
    identity
        See `shard_identity`.
    """

    def __init__(self, lock: int, identity: str) -> None:
        # through the descriptor: always the directory that is locked, even if its name was removed or replaced
        self.directory = Path(f"/proc/self/fd/{lock}")
        self.attached = False
        """Whether the cache was left by an earlier task."""
        self._lock = lock
        self.identity = identity
        self._left_by = identity
        self._label: str | None = None

    @classmethod
    def take(cls, query: str, join: str, part: int, parts: int, identity: str, *, room: int) -> WarmShard | None:
        """Return the cache of a task; None if another task uses it, or this machine has no place for one.

        Caches of the same join with a different number of parts contain other keys; they are removed.

        Parameters
        ----------
        query, join, part, parts
            Identify the cache. They become directory names.
        identity
            See `shard_identity`.
        room
            Maximum bytes of the cache. A memory file system is used only if the same amount stays free there.
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
        """Return arrays of this layout: those of the last task, or empty ones.

        They are in use from now on. Any of them may raise an `OSError` if there is no space or it was removed. Then
        none of them can be used.
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
        """The identity of the shard that the cache was filled from; the current one, if there is no cache."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            return str(json.loads((self.directory / "clean").read_text())[2])
        return self.identity

    def take_over(self, before: str) -> None:
        """Accept a cache that was filled from shard ``before``; the caller evicts the rows that differ."""
        self._left_by = before

    @staticmethod
    def _labelled(identity: str, layout: str) -> str:
        return json.dumps([_FORMAT, boot_id(), identity, layout])

    def note(self, name: str) -> str:
        """Return what the last task left under this name; empty if it left nothing."""
        with contextlib.suppress(OSError):
            return (self.directory / f"{name}.note").read_text()
        return ""

    def leave_note(self, name: str, text: str) -> None:
        """Leave a text to the next task, which gets it even if it starts with an empty cache."""
        with contextlib.suppress(OSError):  # no space: the next task works without it
            (self.directory / f"{name}.note").write_text(text)

    def keep(self) -> None:
        """Leave the cache to the next task; its arrays must not be changed any more."""
        if self._label is not None:
            new = self.directory / "clean.new"
            with contextlib.suppress(OSError):  # removed, or no space even for a line: the next task starts empty
                new.write_text(self._label)
                new.rename(self.directory / "clean")

    def discard(self) -> None:
        """Remove the cache and free its space."""
        self._label, self.attached = None, False
        with contextlib.suppress(OSError):
            (self.directory / "clean").unlink(missing_ok=True)
            self._empty()

    def close(self) -> None:
        """Unlock the cache for other tasks: as `keep` left it, or else empty."""
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
    """Record under a query that processes of this executor use its caches, and the time."""
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o700)
    if not is_own(root):
        raise PermissionError(f"{root} is not a directory owned by this user")
    owners = root / query / OWNERS
    owners.mkdir(parents=True, exist_ok=True)
    parent = os.getppid()  # Spark's daemon, which lives as long as the executor
    (owners / f"{parent}-{started(parent)}").touch()


def _remove_others(join: Path, parts: int) -> None:
    """Remove the caches that a different number of tasks left for a join."""
    with contextlib.suppress(OSError):
        for cache in list(join.iterdir()):
            if not cache.name.endswith(f"-of-{parts:05d}"):
                shutil.rmtree(cache, ignore_errors=True)


def _locked(directory: Path) -> int | None:
    """Return a descriptor that holds the lock of a directory, or None if another process holds it."""
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
        os.close(descriptor)  # removed between opening and locking: create it again


def started(process: int) -> str:
    """Return when a process was started, to distinguish it from another process with the same number."""
    try:
        # the fields after the name, which is in parentheses and may contain anything
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def boot_id() -> str:
    """Return an identifier of the machine's current run, different after each restart."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def room_at(path: Path) -> int:
    """Return the free bytes of the file system of a path."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize
