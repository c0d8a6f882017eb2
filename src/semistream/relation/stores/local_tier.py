"""The local tier: a cache on the local disk, within a byte budget, shared by all processes, of data from a store.

It holds mirrors of page objects (`mirror`), and complete copies of small objects. A process that adds data holds the
tier's lock; a reader does not. While there is room, everything fetched is kept. After that, a page is kept only if it
was requested more often than the cached pages. Otherwise a stream that requests every page now and then would write to
the disk all the time, for pages that are worth no more than the pages they replace. Eviction uses the clock algorithm:
a hand goes around the pages of all mirrors and evicts pages that are requested less often than average. Mirrors of old
versions, and of relations that are no longer joined, are evicted completely.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from semistream.core.arrays import Bools, Bytes, Ints
from semistream.core.errors import StorageError
from semistream.core.units import format_bytes, parse_bytes
from semistream.relation.stores.mirror import EXTENTS, Mirror, punch
from semistream.relation.stores.object_store import ObjectStatus
from semistream.relation.stores.store_path import StorePath

__all__ = ["NO_ROOM", "LocalTier", "local_tier"]

_DIGEST = 16
_PATIENCE = 0.002
"""Seconds that a reader waits for the lock to keep a page. Eviction holds the lock for longer."""
_LEAST = 1 << 20  # smallest budget in bytes
_IDLE_WHOLE = 3600.0  # seconds after which an unused small object is removed
_LOOK_EVERY = 0.02  # seconds between attempts to start an eviction
NO_ROOM = errno.ENOSPC, errno.EDQUOT
_FULL, _FREED = 15 / 16, 7 / 8
"""Shares of the budget. Eviction starts above the first and stops at the second. Below the second, any page is kept."""


def local_tier(given: int | float | str | None, of: int) -> LocalTier | None:
    """Return the tier requested by the argument or by ``$SEMISTREAM_LOCAL``; None if none was requested.

    ``of`` is the size of the relation, to which a share such as ``"25%"`` refers. The tier is in
    ``$SEMISTREAM_LOCAL_DIR``, or in the user's cache directory.
    """
    asked = given if given is not None else os.environ.get("SEMISTREAM_LOCAL") or None
    if asked is None:
        return None
    budget = parse_bytes(asked, of=of)
    if budget < _LEAST:
        raise ValueError(f"a local tier of {budget:,} B is too small to be useful; give at least {_LEAST:,} B, or none")
    return LocalTier(_root(), budget)


def _root() -> Path:
    chosen = os.environ.get("SEMISTREAM_LOCAL_DIR")
    if chosen:
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "semistream" / "tier"


class LocalTier:
    """A directory of mirrors, of at most ``budget`` bytes. Any number of processes may have it open."""

    def __init__(self, root: Path, budget: int) -> None:
        self.root, self.budget = root, budget
        self._thread = threading.Lock()
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(
                f"the local tier {root} cannot be written ({error.strerror}); set SEMISTREAM_LOCAL_DIR to a writable "
                "directory, or do without a tier (local=None)", number=error.errno, path=root,
            ) from error  # fmt: skip
        weakref.finalize(self, os.close, self._lock)
        self.full = False
        """Whether the disk was full. If so, nothing more is kept."""
        try:
            with self.locked():
                self._note(self._measured())
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self.full = True
        self._evicting = threading.Lock()
        self._next_look = 0.0
        if self.used > budget:
            self._evict(budget)

    @property
    def used(self) -> int:
        """Bytes on disk of the whole tier. The lock file stores the number; additions and evictions update it."""
        return int.from_bytes(os.pread(self._lock, 8, 0), "little")

    @property
    def spare(self) -> int:
        """Bytes that can be kept before anything is evicted."""
        return int(self.budget * _FULL) - self.used

    def _note(self, used: int) -> None:
        os.pwrite(self._lock, max(0, used).to_bytes(8, "little"), 0)

    def check(self) -> None:
        """Raise if the disk cannot hold the budget, or cannot free evicted parts of files."""
        free = shutil.disk_usage(self.root).free
        if free < self.budget - self.used:
            raise StorageError(
                f"a local tier of {format_bytes(self.budget)} does not fit into {self.root}, which holds "
                f"{format_bytes(self.used)} and has {format_bytes(free)} free; give less, make room, or set "
                "SEMISTREAM_LOCAL_DIR to a directory on a larger disk", number=errno.ENOSPC, path=self.root,
            )  # fmt: skip
        probe = self.root / f".probe-{os.urandom(8).hex()}"
        try:
            with open(probe, "wb") as file:
                file.write(bytes(8192))
                file.flush()
                punch(file.fileno(), 0, 4096)
        except OSError as error:
            raise StorageError(
                f"the file system of {self.root} cannot free parts of a file ({error.strerror}), which a local "
                "tier needs; set SEMISTREAM_LOCAL_DIR to a directory on ext4, xfs or btrfs",
                number=error.errno, path=self.root,
            ) from error  # fmt: skip
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()

    def mirror(self, place: StorePath, status: ObjectStatus, pages: int, page_bytes: int) -> Mirror:
        """Return the mirror of an object."""
        with self._told():
            mirror = Mirror(self._folder(place, status), place.name, pages, page_bytes)
            mirror.note_opened()
            return mirror

    def has_room(self, more: int) -> bool:
        """Return whether every fetched page is kept: neither the disk nor the tier is nearly full."""
        return not self.full and self.used + more <= self.budget * _FREED

    def worth(self, mirror: Mirror, pages: Ints) -> Bools:
        """Return which pages to keep when there is no room: pages that are requested often."""
        return np.zeros(pages.size, np.bool_) if self.full else mirror.worth(pages)

    def keep(self, mirror: Mirror, first: int, frames: Bytes) -> bool:
        """Keep a run of pages and return True, or return False if there is no room. Eviction runs in the background."""
        if self.full or not self._has_room(frames.nbytes):
            return False
        with self.locked(patience=_PATIENCE) as mine:
            if not mine or self.used + frames.nbytes > self.budget:
                return False
            try:
                self._note(self.used + mirror.put(first, frames))
            except OSError as error:
                if error.errno not in (*NO_ROOM, errno.EIO, errno.EROFS):
                    raise
                self.full = True  # from now on, pages come from the store
                return False
        return True

    def whole(self, place: StorePath, status: ObjectStatus) -> bytes:
        """Return a small object, from the tier or from the store."""
        file = self._folder(place, status) / place.name
        with contextlib.suppress(OSError):
            found = file.read_bytes()
            content = found[:-_DIGEST]
            if len(content) == status.st_size and found[-_DIGEST:] == _digest(content):
                if time.time() - file.stat().st_mtime > _IDLE_WHOLE / 4:
                    os.utime(file)
                return content
        content = place.store.read(place.key)
        if len(content) == status.st_size and not self.full and self._has_room(len(content)):
            with contextlib.suppress(OSError), self.locked():
                if self.used + len(content) <= self.budget:
                    made = self.root / f".{os.urandom(8).hex()}"
                    made.write_bytes(content + _digest(content))
                    file.parent.mkdir(exist_ok=True)
                    self._note(self.used + made.stat().st_blocks * 512)
                    os.rename(made, file)
        return content

    @contextlib.contextmanager
    def locked(self, patience: float | None = None) -> Iterator[bool]:
        """Hold the tier's lock against threads and processes; yield False if it is not free within ``patience``."""
        if not self._thread.acquire(timeout=-1 if patience is None else patience):
            yield False
            return
        try:
            held = patience is None or _try_lock(self._lock)
            if patience is None:
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            try:
                yield held
            finally:
                if held:
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
        finally:
            self._thread.release()

    def _has_room(self, more: int) -> bool:
        """Return whether ``more`` bytes fit. If the tier is nearly full, start eviction."""
        used = self.used + more
        late = time.monotonic() > self._next_look
        if used > self.budget * _FULL and late and self._evicting.acquire(blocking=False):
            self._next_look = time.monotonic() + _LOOK_EVERY  # another process may be evicting
            goal = int(self.budget * _FREED)

            def work() -> None:
                with contextlib.suppress(OSError):  # a later read or write will report the disk's error
                    self._evict(goal)
                self._evicting.release()

            threading.Thread(target=work, name="evicting", daemon=True).start()
        return used <= self.budget

    def _evict(self, goal: int) -> None:
        """Evict segment by segment until at most ``goal`` bytes are used. One process does it for all."""
        with open(self.root / "hand", "a+b") as hand:
            try:
                fcntl.flock(hand, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            with self.locked():
                self._drop_idle()
                self._note(self._measured())
            folders = [one.parent for one in sorted(self.root.glob(f"*/{EXTENTS}"))]
            name, at = _position(hand.fileno())
            start = next((number for number, folder in enumerate(folders) if folder.name >= name), 0)
            at = at if folders and folders[start].name == name else 0
            # Three laps: the first evicts only pages that are requested less often than average.
            for number, folder in enumerate((folders[start:] + folders[:start]) * 3):
                going, lap = True, number // len(folders)
                while going and self.used > goal:
                    with self.locked(), contextlib.suppress(FileNotFoundError):
                        freed, at, going = self._swept(folder, at, lap)
                        self._note(self.used - freed)
                        os.ftruncate(hand.fileno(), 0)
                        os.pwrite(hand.fileno(), json.dumps([folder.name, at]).encode(), 0)
                if self.used <= goal:
                    return
                at = 0

    def _swept(self, folder: Path, begin: int, lap: int) -> tuple[int, int, bool]:
        """Advance the hand in one mirror; return the bytes freed, the hand's page, and whether more pages follow."""
        name = next((file.name for file in folder.iterdir() if file.name != EXTENTS), None)
        pages = (folder / EXTENTS).stat().st_size
        if name is None or pages == 0:
            return 0, 0, False
        mirror = Mirror(folder, name, pages, (folder / name).stat().st_size // pages)
        try:
            freed, at = mirror.sweep(begin, 1 if mirror.is_idle() else lap)
            return freed, at, at < pages
        finally:
            mirror.close()

    def _drop_idle(self) -> None:
        """Remove small objects that were not requested lately, and empty mirrors that no process has open."""
        for folder in [one for one in self.root.iterdir() if one.is_dir()]:
            with contextlib.suppress(OSError):
                if not (folder / EXTENTS).exists():
                    for file in folder.iterdir():
                        if time.time() - file.stat().st_mtime > _IDLE_WHOLE:
                            file.unlink()
                    folder.rmdir()
                    continue
                with open(folder / EXTENTS, "rb") as extents:
                    if any(extents.read()):
                        continue
                    fcntl.flock(extents, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)

    def _measured(self) -> int:
        used = 0
        for folder in self.root.iterdir():
            with contextlib.suppress(OSError):
                if folder.is_dir():
                    used += sum(one.stat().st_blocks * 512 for one in folder.iterdir())
        return used

    def _folder(self, place: StorePath, status: ObjectStatus) -> Path:
        named = f"{place} {status.identity}".encode()
        return self.root / hashlib.blake2b(named, digest_size=_DIGEST).hexdigest()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"the local tier {self.root} cannot be used ({error.strerror}); set SEMISTREAM_LOCAL_DIR to another "
                "directory, or do without a tier (local=None)", number=error.errno, path=self.root,
            ) from error  # fmt: skip


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _position(hand: int) -> tuple[str, int]:
    """Return the saved position of the clock's hand: a mirror and a page."""
    try:
        name, at = json.loads(os.pread(hand, 1000, 0))
        return str(name), int(at)
    except (ValueError, TypeError):
        return "", 0


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST).digest()
