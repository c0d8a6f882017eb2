"""The mirror of an object on the local disk: a sparse file of the same size, and for each page whether it is present.

::

    <tier>/<hash of the object's identity>/
        shard-0000-….pages     present pages in their places, holes elsewhere
        extents                one byte per page: 1 if it is present, plus twice its recent number of requests

A page is marked after it was written, so a killed process leaves an unmarked page. Every other failure, such as an
eviction by another process or a power failure, is detected by the page's checksum, which is verified on every read.
The page is then fetched from the store. A mirror never belongs to another object: its name includes the store's mark
of the content.
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
_MOST_ASKED = 127  # largest request count that fits into the byte of a page
_AGE = 8
"""Average requests per page after which all request counts are halved."""
_LOOK_EVERY = 0.25  # seconds between updates of the average request count
_IDLE = 600.0  # seconds after its last opening until a mirror counts as idle
_BLOCK = 4096  # bytes of a file system block
_SEGMENT = 512 << 10  # bytes that one eviction frees together
_KEEP_SIZE_PUNCH_HOLE = 3  # mode of fallocate: FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE
_START_WRITING = 2  # flag of sync_file_range: SYNC_FILE_RANGE_WRITE

_libc = ctypes.CDLL(None, use_errno=True)


def punch(descriptor: int, offset: int, size: int) -> None:
    """Free a part of a file in the file system. It reads as zeros from then on."""
    done = _libc.fallocate(descriptor, _KEEP_SIZE_PUNCH_HOLE, ctypes.c_long(offset), ctypes.c_long(size))
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Mirror:
    """An open mirror. No process removes it while it is open.

    Parameters
    ----------
    folder
        Its directory. Created if missing.
    name, pages, page_bytes
        Name of the object, its number of pages, and the bytes of a page.
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
            if sizes != (pages * page_bytes, max(1, pages)):  # changed from outside: treat all pages as missing
                os.ftruncate(self._extents, 0)
                os.ftruncate(self._extents, max(1, pages))
                os.ftruncate(self._data, pages * page_bytes)
            # Allocate the marks now: writing a mark to a full disk through the mapping would kill this process.
            os.posix_fallocate(self._extents, 0, max(1, pages))
        except OSError:
            self.close()
            raise
        room = mmap.mmap(self._extents, max(1, pages))
        self.state: NDArray[np.uint8] = np.frombuffer(room, np.uint8)[:pages]
        self._asked = 0
        self._clearly_more, self._next_look = 0.0, 0.0

    def there(self, pages: Ints) -> Bools:
        """Return which pages are present, and count a request for each of them."""
        state = self.state[pages]
        self.state[pages] = np.where(state < 2 * _MOST_ASKED, state + np.uint8(2), state)
        self._asked += len(pages)
        if self._asked > _AGE * self.state.size:
            self._asked = 0
            self.state[:] = self.state & THERE | self.state >> 2 << 1
        found: Bools = state & THERE != 0
        return found

    def worth(self, pages: Ints) -> Bools:
        """Return which pages were requested clearly more often than the present pages.

        If pages are requested evenly, some always have slightly higher counts by chance, and others next time. A count
        is rarely three standard deviations (of a Poisson distribution) above the mean by chance, so that is the limit.
        """
        if time.monotonic() > self._next_look:
            usual = self._usual_count()
            self._clearly_more, self._next_look = usual + 3 * math.sqrt(usual) + 1, time.monotonic() + _LOOK_EVERY
        better: Bools = self.state[pages] >> 1 > self._clearly_more
        return better

    def _usual_count(self) -> float:
        """Return the average number of requests of the present pages."""
        there = self.state[self.state & THERE != 0]
        return float((there >> 1).mean()) if there.size else 0.0

    def put(self, first: int, frames: Bytes) -> int:
        """Keep a run of pages; return by how many bytes the mirror has grown. The caller holds the tier's lock."""
        before = self.nbytes
        offset, rest = first * self.page_bytes, frames.reshape(-1).data
        while rest.nbytes:
            done = os.pwrite(self._data, rest, offset)
            offset, rest = offset + done, rest[done:]
        # Start writing to disk now. Otherwise the first direct read of the pages would wait for it.
        _libc.sync_file_range(
            self._data, ctypes.c_long(first * self.page_bytes), ctypes.c_long(frames.nbytes), _START_WRITING
        )
        self.state[first : first + len(frames)] |= THERE
        return self.nbytes - before

    def forget(self, pages: Ints) -> None:
        """Mark pages as missing."""
        self.state[pages] &= ~THERE

    @property
    def nbytes(self) -> int:
        """Bytes of the mirror on disk."""
        return os.fstat(self._data).st_blocks * 512

    def sweep(self, begin: int, lap: int) -> tuple[int, int]:
        """Advance the clock's hand from page ``begin`` to the end of the first segment in which something is evicted.

        It evicts pages that were requested less often than average, and on a later ``lap`` other pages too. To free
        part of a file takes milliseconds, whatever its size. So a whole segment is freed, and its other pages are
        written again. A segment with few pages to evict is left for the next time. The hand lowers the request counts
        that it passes. Returns the bytes freed, and the page to continue from. The caller holds the tier's lock.
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
            # Unmark before punching the hole: a concurrent reader finds a wrong checksum and fetches from the store.
            self.state[first : first + step] &= ~THERE
            punch(self._data, first * width, len(state) * width)
            for page, content in contents:
                os.pwrite(self._data, content, page * width)
                self.state[page] |= THERE
            return before - self.nbytes, first + step
        return 0, self.state.size

    def is_idle(self) -> bool:
        """Whether no other process has it open or had it open lately, as for an old version or an unused relation."""
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
        """When the mirror was last opened for reading, as recorded by `note_opened`."""
        return os.fstat(self._data).st_atime

    def note_opened(self) -> None:
        """Record that the mirror is being read."""
        os.utime(self._data, (time.time(), os.fstat(self._data).st_mtime))

    def close(self) -> None:
        """Close the files."""
        for descriptor in (self._data, self._extents):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._data = self._extents = -1


def _make(folder: Path, name: str, pages: int, page_bytes: int) -> None:
    """Create an empty mirror atomically, unless there is one."""
    if (folder / EXTENTS).exists():
        return
    made = folder.with_name(f".{os.urandom(8).hex()}")
    made.mkdir(parents=True)
    try:
        for file, size in ((name, pages * page_bytes), (EXTENTS, max(1, pages))):
            with open(made / file, "wb") as opened:
                opened.truncate(size)
        with contextlib.suppress(OSError):  # another process was first
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
