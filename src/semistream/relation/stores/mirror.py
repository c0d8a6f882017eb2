"""The mirror of an object on this machine's disk: a sparse file of its size, and for each page whether it is there.

::

    <tier>/<hash of the object's identity>/
        shard-0000-….pages     the pages that are there in their places, holes elsewhere
        extents                a byte a page: 1 if it is there, and twice how often it was asked for lately

A page is marked after it was written, so a process that is killed leaves a page that is not marked. Whatever else goes
wrong, a page that another process takes away meanwhile or a loss of power, the page's own checksum tells, which is
looked at on every read: then the store is asked. Mirrors are never of another object: the store's mark of the contents
is in their name.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import math
import mmap
import os
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Bools, Bytes, Ints

__all__ = ["EXTENTS", "Mirror", "punch"]

EXTENTS = "extents"
THERE = np.uint8(1)
_MOST_ASKED = 127
_AGE = 8
"""A page that was asked for twice as often as others is so until each was asked for as often as this, on average."""
_LOOK_EVERY = 0.25
_IDLE = 600.0
_BLOCK = 4096
_SEGMENT = 512 << 10
_KEEP_SIZE_PUNCH_HOLE = 3
_START_WRITING = 2

_libc = ctypes.CDLL(None, use_errno=True)


def punch(descriptor: int, offset: int, size: int) -> None:
    """Give a part of a file back to the file system; it reads as zeros from then on."""
    done = _libc.fallocate(descriptor, _KEEP_SIZE_PUNCH_HOLE, ctypes.c_long(offset), ctypes.c_long(size))
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Mirror:
    """A mirror, open; while it is, nobody removes it.

    Parameters
    ----------
    folder
        Its directory. Made if it is not there.
    name, pages, page_bytes
        Name of the object, and what is in it.
    """

    def __init__(self, folder: Path, name: str, pages: int, page_bytes: int) -> None:
        self.path = folder / name
        self.page_bytes = page_bytes
        self._extents = -1
        while self._extents < 0:
            _make(folder, name, pages, page_bytes)
            self._extents = _held(folder / EXTENTS)
        self._data = -1
        try:
            self._data = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            sizes = os.fstat(self._data).st_size, os.fstat(self._extents).st_size
            if sizes != (pages * page_bytes, max(1, pages)):  # somebody was at it: nothing of it is known
                os.ftruncate(self._extents, 0)
                os.ftruncate(self._extents, max(1, pages))
                os.ftruncate(self._data, pages * page_bytes)
            # a mark that the disk has no room for would be the end of this process
            os.posix_fallocate(self._extents, 0, max(1, pages))
        except OSError:
            self.close()
            raise
        room = mmap.mmap(self._extents, max(1, pages))
        self.state: NDArray[np.uint8] = np.frombuffer(room, np.uint8)[:pages]
        self._asked = 0
        self._clearly_more, self._next_look = 0.0, 0.0

    def there(self, pages: Ints) -> Bools:
        """Say which pages are there, and note that all of them were asked for."""
        state = self.state[pages]
        self.state[pages] = np.where(state < 2 * _MOST_ASKED, state + np.uint8(2), state)
        self._asked += len(pages)
        if self._asked > _AGE * self.state.size:
            self._asked = 0
            self.state[:] = self.state & THERE | self.state >> 2 << 1
        found: Bools = state & THERE != 0
        return found

    def worth(self, pages: Ints) -> Bools:
        """Say which pages were asked for clearly more often than those that are there.

        Of pages that are asked for evenly, some always were a little more often lately, and next time others: by chance
        a count is rarely three deviations, of Poisson's law, above what is usual.
        """
        if time.monotonic() > self._next_look:
            usual = self._usual_count()
            self._clearly_more, self._next_look = usual + 3 * math.sqrt(usual) + 1, time.monotonic() + _LOOK_EVERY
        better: Bools = self.state[pages] >> 1 > self._clearly_more
        return better

    def _usual_count(self) -> float:
        """Return how often pages that are there were asked for, on average."""
        there = self.state[self.state & THERE != 0]
        return float((there >> 1).mean()) if there.size else 0.0

    def put(self, first: int, frames: Bytes) -> int:
        """Keep a run of pages; return by how many bytes the mirror has grown. The tier is locked meanwhile."""
        before = self.nbytes
        offset, rest = first * self.page_bytes, frames.reshape(-1).data
        while rest.nbytes:
            done = os.pwrite(self._data, rest, offset)
            offset, rest = offset + done, rest[done:]
        # or the first direct read of it would wait for the disk
        _libc.sync_file_range(
            self._data, ctypes.c_long(first * self.page_bytes), ctypes.c_long(frames.nbytes), _START_WRITING
        )
        self.state[first : first + len(frames)] |= THERE
        return self.nbytes - before

    def forget(self, pages: Ints) -> None:
        """Take pages for missing."""
        self.state[pages] &= ~THERE

    @property
    def nbytes(self) -> int:
        """Bytes of the disk that it takes."""
        return os.fstat(self._data).st_blocks * 512

    def sweep(self, begin: int, lap: int) -> tuple[int, int]:
        """Let the clock's hand go on from page ``begin`` to the end of the first segment in which something is evicted.

        Evicted are pages that were asked for less often than is usual, on a later ``lap`` others too. To give back part
        of a file takes milliseconds, however much it is. So a segment is given back whole, and its other pages are
        written again; a segment that has few to evict is left for the next time. Where the hand has been, what was
        asked counts less. Returns the bytes freed, and the page to go on from. The tier is locked meanwhile.
        """
        unit = _BLOCK // math.gcd(self.page_bytes, _BLOCK)
        step = max(1, _SEGMENT // (unit * self.page_bytes)) * unit
        usual = self._usual_count() if lap == 0 else _MOST_ASKED
        for first in range(begin - begin % step, self.state.size, step):
            state = self.state[first : first + step].copy()
            asked, there = state >> 1, state & THERE != 0
            self.state[first : first + step] = (asked - (asked >> 2)) << 1 | state & THERE
            kept = np.flatnonzero(there & (asked > usual))
            if kept.size * 4 > np.count_nonzero(there) * 3 or not there.any():
                continue
            before, width = self.nbytes, self.page_bytes
            contents = [(first + int(page), os.pread(self._data, width, (first + int(page)) * width)) for page in kept]
            # before the hole: who reads meanwhile finds a wrong checksum, and asks
            self.state[first : first + step] &= ~THERE
            punch(self._data, first * width, len(state) * width)
            for page, content in contents:
                os.pwrite(self._data, content, page * width)
                self.state[page] |= THERE
            return before - self.nbytes, first + step
        return 0, self.state.size

    def is_idle(self) -> bool:
        """Whether nobody else has it open, nor had lately: of an old version, or of a relation that is not joined."""
        if time.time() - self.opened_at < _IDLE:
            return False
        try:
            fcntl.flock(self._extents, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._extents, fcntl.LOCK_SH)
        return True

    @property
    def opened_at(self) -> float:
        """When somebody last opened it to read, as `note_opened` was told."""
        return os.fstat(self._data).st_atime

    def note_opened(self) -> None:
        """Note that somebody reads from it."""
        os.utime(self._data, (time.time(), os.fstat(self._data).st_mtime))

    def close(self) -> None:
        """Close the files."""
        for descriptor in (self._data, self._extents):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._data = self._extents = -1


def _make(folder: Path, name: str, pages: int, page_bytes: int) -> None:
    """Make an empty mirror, wholly, unless there is one."""
    if (folder / EXTENTS).exists():
        return
    made = folder.with_name(f".{os.urandom(8).hex()}")
    made.mkdir(parents=True)
    try:
        for file, size in ((name, pages * page_bytes), (EXTENTS, max(1, pages))):
            with open(made / file, "wb") as opened:
                opened.truncate(size)
        with contextlib.suppress(OSError):  # another was first
            os.rename(made, folder)
    finally:
        for file in (name, EXTENTS):
            with contextlib.suppress(FileNotFoundError):
                (made / file).unlink()
        with contextlib.suppress(OSError):
            made.rmdir()


def _held(file: Path) -> int:
    """Open a file and hold a shared lock on it; -1 if it was removed meanwhile."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        if os.path.samestat(os.fstat(descriptor), os.stat(file)):
            return descriptor
    except FileNotFoundError:
        pass
    os.close(descriptor)
    return -1
