"""R's files as a device: runs of pages, several in flight, each page verified.

How the ways to read compare, measured: ``docs/device.md``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from semistream.core.compiled import frozen
from semistream.core.errors import CorruptPageError
from semistream.relation import transfers
from semistream.relation.checksum import page_checksum
from semistream.relation.device_base import (
    Device,
    DeviceCounters,
    DeviceError,
    DeviceProfile,
    Frames,
    Ints,
)

__all__ = ["Device", "DeviceCounters", "DeviceError", "DeviceProfile", "FileDevice", "Method"]

Method = Literal["queue", "threads", "readahead"]
"""How requests are kept in flight: see `FileDevice`."""

REQUEST_BYTES = 256 * 1024
"""A longer run becomes several requests: checking one overlaps with reading the next."""

_REMEDY = "restore the file from a copy, or build the relation again"
_libc = ctypes.CDLL(None, use_errno=True)


class _Queue:
    """One context of Linux's asynchronous I/O, and the memory that its requests are described in."""

    def __init__(self, depth: int) -> None:
        handle = ctypes.c_ulong(0)
        if _libc.syscall(transfers.IO_SETUP, depth, ctypes.byref(handle)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"io_setup: {os.strerror(number)}")
        self.handle = int(handle.value)
        self.control = np.zeros((depth, 8), np.uint64)
        self.pointers = np.zeros(depth, np.uint64)
        self.events = np.zeros((depth, 4), np.int64)
        self.slots = np.zeros((7, depth), np.int64)

    def destroy(self) -> None:
        """Give the context back; waits for what is in flight."""
        _libc.syscall(transfers.IO_DESTROY, ctypes.c_ulong(self.handle))


class _Process:
    """What of a device belongs to one process and must be made anew after a fork."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.condition = threading.Condition()
        self.reading = 0
        self.idle_queues: list[_Queue] = []
        self.workers: ThreadPoolExecutor | None = None


class FileDevice(Device):
    """Pages in files, numbered through: page ids go on from one file to the next.

    Any number of threads may read at once; each has a queue of its own while it does. A device survives a
    fork: the child makes its own queues (it inherits neither queues nor threads) and shares only the open
    files.

    Parameters
    ----------
    files
        Path and number of pages of each file. A file that is too short is refused at once.
    page_bytes
        Size of a page, a multiple of 8 from 64 on. Small pages waste less of a random read, large ones cost
        fewer requests. Direct reads need a multiple of 512.
    direct
        Read past the page cache (``O_DIRECT``): memory stays what the budget says, and costs stay what was
        measured. Where the file system or the page size does not allow it, reads are buffered and `direct` is
        False.
    depth
        Requests in flight for each reading thread. More make random reads faster up to what the device can
        do.
    method
        For tests and measurements; by default the best that works here:
        ``"queue"`` (asynchronous I/O of the kernel, one thread; direct files), ``"threads"`` (``depth``
        threads, each waiting for its own reads; direct files where the kernel has no queue to give),
        ``"readahead"`` (the kernel is told ``depth`` requests in advance; buffered files).

    Examples
    --------
    >>> import tempfile
    >>> from semistream.relation.checksum import seal
    >>> written = np.zeros((100, 4096), np.uint8)
    >>> seal(written, first_id=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "shard.pages"
    ...     written.tofile(path)
    ...     with FileDevice([(path, 100)], 4096) as device:
    ...         frames = device.allocate(4)
    ...         device.read(np.array([7, 8, 9, 50]), frames)
    ...         bool((frames == written[[7, 8, 9, 50]]).all()), device.counters.reads, device.counters.pages
    (True, 2, 4)
    """

    def __init__(
        self,
        files: Sequence[tuple[Path, int]],
        page_bytes: int,
        *,
        direct: bool = True,
        depth: int = 16,
        method: Method | None = None,
    ) -> None:
        if page_bytes < 64 or page_bytes % 8:
            raise ValueError(f"page_bytes must be a multiple of 8 from 64 on, not {page_bytes}")
        if not 1 <= depth <= 1024:
            raise ValueError(f"depth must be 1 to 1024 requests in flight, not {depth}")
        self.paths = [Path(path) for path, _ in files]
        self.page_bytes = self.frame_bytes = page_bytes
        self.depth = depth
        self.counters = DeviceCounters()
        self._starts = frozen(np.cumsum([0, *(pages for _, pages in files)], dtype=np.int64))
        self.page_count = int(self._starts[-1])
        self._most = max(1, REQUEST_BYTES // page_bytes)
        self._closed = False
        self._process = _Process()
        self._descriptors: list[int] = []
        try:
            self.direct = direct and self._open(os.O_DIRECT)
            if not self.direct:
                self._close_files()
                self._open(0)
            self._files = frozen(np.array(self._descriptors, np.int32))
            self.method: Method = self._choose(method)
        except BaseException:
            self._close_files()
            raise

    def _open(self, flags: int) -> bool:
        """Open all files; False if direct reads were asked for and are not to be had."""
        for i, path in enumerate(self.paths):
            try:
                self._descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags))
            except OSError as error:
                if flags and error.errno == errno.EINVAL:
                    return False
                raise
            size, pages = os.fstat(self._descriptors[i]).st_size, int(self._starts[i + 1] - self._starts[i])
            if size < pages * self.page_bytes:
                raise self._truncated(i, size // self.page_bytes, size)
            if flags and not self._direct_works(self._descriptors[i], pages):
                return False
            if not flags:
                # Requests are announced in advance; guesses of the kernel would only read what nobody asked
                # for.
                os.posix_fadvise(self._descriptors[i], 0, 0, os.POSIX_FADV_RANDOM)
        return True

    def _direct_works(self, descriptor: int, pages: int) -> bool:
        """Try the first two pages: they have the least alignment, on disk and in memory, that any page
        has.
        """
        if self.page_bytes % 512:
            return False
        frames = self.allocate(2)
        try:
            for page in range(min(pages, 2)):
                os.preadv(descriptor, [frames[page]], page * self.page_bytes)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return False
            raise
        return True

    def _choose(self, method: Method | None) -> Method:
        if method == "readahead" and self.direct:
            raise ValueError("readahead works through the page cache; open the device with direct=False")
        if method is not None:
            return method
        if not self.direct:
            return "readahead"
        queue = self._take_queue(self._process)
        if queue is None:
            return "threads"
        self._process.idle_queues.append(queue)
        return "queue"

    def read(self, pages: Ints, frames: Frames) -> None:
        pages, frames = self._checked(pages, frames)
        if not len(pages):
            return
        begin = time.perf_counter()
        with self._in_use() as process:
            reads = self._transfer(process, pages, frames, self.depth)
            seconds = time.perf_counter() - begin
            with process.condition:
                self.counters.reads += reads
                self.counters.pages += len(pages)
                self.counters.bytes += len(pages) * self.page_bytes
                self.counters.seconds += seconds

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[_Process]:
        """Keep files open while someone reads."""
        if self._process.pid != os.getpid():
            self._process = _Process()
        process = self._process
        with process.condition:
            if self._closed:
                raise DeviceError(f"the device of {self.paths[0]} is closed; open the relation again")
            process.reading += 1
        try:
            yield process
        finally:
            with process.condition:
                process.reading -= 1
                process.condition.notify_all()

    def _transfer(
        self, process: _Process, pages: Ints, frames: Frames, depth: int, verify: bool = True
    ) -> int:
        """Read, verify and return the number of requests; not counted."""
        ids, words, report = frozen(pages), frames.view(np.uint64), np.zeros(3, np.int64)
        outcome = transfers.NO_QUEUE
        if self.method == "queue":
            outcome = self._transfer_queued(process, ids, words, depth, verify, report)
        elif self.method == "readahead":
            outcome = transfers.read_simple(
                self._files, self._starts, ids, words, 0, len(ids), self._most, depth, verify, report
            )
        if outcome == transfers.NO_QUEUE:
            outcome = self._transfer_threaded(process, ids, words, depth, verify, report)
        if outcome != transfers.DONE:
            raise self._error(outcome, report, pages, frames)
        return int(report[2])

    def _transfer_queued(
        self, process: _Process, ids: Ints, words: NDArray[np.uint64], depth: int, verify: bool, report: Ints
    ) -> int:
        queue = self._take_queue(process)
        if queue is None:
            return transfers.NO_QUEUE
        outcome = transfers.read_queued(
            queue.handle, self._files, self._starts, ids, words, self._most, depth, verify,
            queue.control, queue.pointers, queue.events, queue.slots, report,
        )  # fmt: skip
        if outcome == transfers.NO_QUEUE:
            queue.destroy()
        else:
            process.idle_queues.append(queue)
        return outcome

    def _take_queue(self, process: _Process) -> _Queue | None:
        with contextlib.suppress(IndexError):
            return process.idle_queues.pop()  # a list's pop and append need no lock
        if not transfers.HAS_QUEUE:
            return None
        try:
            return _Queue(self.depth)
        except OSError:  # not in this kernel, forbidden here, or all taken by others
            return None

    def _transfer_threaded(
        self, process: _Process, ids: Ints, words: NDArray[np.uint64], depth: int, verify: bool, report: Ints
    ) -> int:
        shares = min(depth, len(ids))
        ends = [len(ids) * share // shares for share in range(shares + 1)]
        reports = np.zeros((shares, 3), np.int64)

        def part(share: int) -> int:
            return transfers.read_simple(
                self._files, self._starts, ids, words, ends[share], ends[share + 1],
                self._most, 0, verify, reports[share],
            )  # fmt: skip

        if shares == 1:
            outcomes = [part(0)]
        else:
            with process.condition:
                if process.workers is None:
                    process.workers = ThreadPoolExecutor(self.depth, "semistream-read")
            outcomes = list(process.workers.map(part, range(shares)))
        report[:] = reports[0]
        report[2] = reports[:, 2].sum()
        for outcome, of_share in zip(outcomes, reports, strict=True):
            if outcome != transfers.DONE:
                report[:2] = of_share[:2]
                return outcome
        return transfers.DONE

    def _error(self, outcome: int, report: Ints, pages: Ints, frames: Frames) -> Exception:
        """Return the error to raise, and leave nothing unverified in the frames."""
        index, number = int(report[0]), int(report[1])
        page = int(pages[index])
        if outcome == transfers.NO_SUCH_PAGE:
            return self._no_such_page(page)
        file = int(np.searchsorted(self._starts, page, side="right")) - 1
        local = page - int(self._starts[file])
        bad = frames[index].copy()
        aligned = frames.ctypes.data % 512 == 0
        frames[:] = 0
        if outcome == transfers.ENDED:
            return self._truncated(file, local, self.paths[file].stat().st_size)
        if outcome == transfers.BAD_CHECKSUM:
            path = self.paths[file]
            return CorruptPageError(
                f"page {local} of {path} is corrupt: {_what_is_wrong(bad, local)}; {_REMEDY}",
                file=path,
                page=local,
            )
        if number == errno.EINVAL and not aligned:
            return ValueError("direct reads need aligned frames; use rows of what Device.allocate returned")
        reason = os.strerror(number) if number else "no reason given"
        return DeviceError(
            f"reading page {local} of {self.paths[file]} failed: {reason}; check the disk, then retry"
        )

    def _truncated(self, file: int, page: int, size: int) -> CorruptPageError:
        path, pages = self.paths[file], int(self._starts[file + 1] - self._starts[file])
        return CorruptPageError(
            f"{path} is truncated: it has {size} bytes where {pages} pages of {self.page_bytes} bytes need"
            f" {pages * self.page_bytes}, so page {page} is not whole; {_REMEDY}",
            file=path,
            page=page,
        )

    def measure(self, seconds: float = 0.1, *, seed: int = 0) -> DeviceProfile:
        """Read single random pages, one at a time and ``depth`` at once, and long runs, for about ``seconds``
        each.

        Counters are left alone. Through the page cache (`direct` false) the numbers are those of a warm cache
        for whatever part of the files is in it.
        """
        if self.page_count == 0:
            raise ValueError(f"a device without pages cannot be measured; {len(self.paths)} files are empty")
        generator = np.random.default_rng(seed)
        frames = self.allocate(max(1, min(self.page_count, (16 << 20) // self.page_bytes)))

        def rate(depth: int, batch: int, sequential: bool) -> float:
            """Return pages a second."""
            pages_read, begin = 0, time.perf_counter()
            while True:
                if sequential:
                    first = int(generator.integers(0, self.page_count - batch + 1))
                    pages = np.arange(first, first + batch)
                else:
                    pages = generator.integers(0, self.page_count, batch)
                self._transfer(process, pages, frames, depth)
                pages_read += batch
                elapsed = time.perf_counter() - begin
                if elapsed >= seconds:
                    return pages_read / elapsed

        with self._in_use() as process:
            self._transfer(process, np.zeros(1, np.int64), frames, 1)  # compile, warm up
            one = rate(1, min(16, len(frames)), sequential=False)
            queued = rate(self.depth, min(16 * self.depth, len(frames)), sequential=False)
            long = rate(self.depth, len(frames), sequential=True)
        return DeviceProfile(
            seek_seconds=max(0.0, 1 / one - 1 / long),
            transfer_seconds=1 / long,
            random_reads_per_second=queued,
            sequential_bytes_per_second=long * self.page_bytes,
            depth=self.depth,
            direct=self.direct,
        )

    def close(self) -> None:
        if self._process.pid != os.getpid():
            self._process = _Process()
        process = self._process
        with process.condition:
            self._closed = True
            process.condition.wait_for(lambda: process.reading == 0)
            queues, process.idle_queues = process.idle_queues, []
            workers, process.workers = process.workers, None
            self._close_files()
        for queue in queues:
            queue.destroy()
        if workers is not None:
            workers.shutdown()

    def _close_files(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # half made, or the interpreter is going down
            self.close()

    def __repr__(self) -> str:
        way = "direct" if self.direct else "buffered"
        return (
            f"FileDevice({len(self.paths)} files, {self.page_count} pages of {self.page_bytes} B,"
            f" {way}, {self.method} of {self.depth})"
        )


def _what_is_wrong(page: Frames, expected: int) -> str:
    """Say what a page that failed its checksum looks like."""
    if not page.any():
        return "it holds only zeros, as if it was never written"
    found = int(page[8:12].view(np.uint32)[0])
    if found != expected and page_checksum(page, found) == page[:8].view(np.uint64)[0]:
        return f"it is page {found}, misplaced"
    return "its checksum does not match its bytes"
