"""A device over R's files: it reads runs of pages, with several requests in flight, and verifies each page.

``docs/device.md`` compares the read methods with measurements.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from semistream.core.arrays import Ints
from semistream.core.errors import CorruptPageError
from semistream.relation.devices import transfers
from semistream.relation.devices.device import Device, DeviceCounters, DeviceError, DeviceProfile, Frames
from semistream.relation.devices.page_ring import Places
from semistream.relation.devices.reader import Method, PageReader
from semistream.relation.devices.ring_reader import RingReader
from semistream.relation.storage.checksum import file_seed, page_checksum

__all__ = ["Device", "DeviceCounters", "DeviceError", "DeviceProfile", "FileDevice"]

_ROUNDS = 8  # repetitions of each measurement, of which the best counts
_SAMPLED_PAGES = 1 << 16  # relations of more pages than this share one measured profile

_measured: dict[tuple[object, ...], DeviceProfile] = {}
"""Profiles measured in this process."""
_read_directly: set[tuple[int, int, int]] = set()
"""File systems (device and file system id) and page sizes for which direct reads worked in this process. Failures are
not remembered: they may pass, and cost no read."""
_REMEDY = "run semistream repair with a copy of the relation or the data it was built from, or build it again"


class FileDevice(Device):
    """Pages in files. Page ids continue from one file to the next.

    Any number of threads may read concurrently; each has its own queue while it reads. A device survives a fork: the
    child shares only the open files and makes its own queues, because it inherits neither queues nor threads.

    Parameters
    ----------
    files
        Path and number of pages of each file. A file that is too short is rejected on opening.
    bound
        For each file, whether its pages were sealed with a seed derived from the file name. Default: none were.
    page_bytes
        Size of a page in bytes, a multiple of 8 and at least 64. Small pages waste less of a random read; large pages
        need fewer requests. Direct reads require a multiple of 512.
    direct
        Bypass the page cache (``O_DIRECT``), so that memory stays within the budget and reads cost what was measured.
        If the file system or the page size does not allow it, reads are buffered and `direct` is False.
    depth
        Requests in flight per reading thread; a ring has four times this number. More requests make random reads
        faster, up to the limit of the device.
    method
        For tests and measurements. By default the best method that works on this system:
        ``"queue"`` (the kernel's asynchronous I/O, one thread; direct files), ``"threads"`` (``depth`` threads, each
        waiting for its own reads; direct files if the kernel provides no queue), ``"readahead"`` (the kernel is
        advised of the next ``depth`` requests; buffered files).

    Examples
    --------
    >>> import tempfile
    >>> from semistream.relation.storage.checksum import seal
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
        bound: Sequence[bool] | None = None,
        direct: bool = True,
        depth: int = 16,
        method: Method | None = None,
    ) -> None:
        if page_bytes < 64 or page_bytes % 8:
            raise ValueError(f"page_bytes must be a multiple of 8, at least 64, not {page_bytes}")
        if not 1 <= depth <= 1024:
            raise ValueError(f"depth must be 1 to 1024 requests in flight, not {depth}")
        if direct and method == "readahead":
            raise ValueError("readahead works through the page cache; open the device with direct=False")
        self.paths = [Path(path) for path, _ in files]
        self.page_bytes = self.frame_bytes = page_bytes
        self.depth = depth
        self.counters = DeviceCounters()
        self._starts = np.cumsum([0, *(pages for _, pages in files)], dtype=np.int64)
        bound = [False] * len(self.paths) if bound is None else bound
        self._seeds = [
            file_seed(path.name) if is_bound else 0 for path, is_bound in zip(self.paths, bound, strict=True)
        ]
        self.page_count = int(self._starts[-1])
        descriptors = self._open(os.O_DIRECT) if direct and page_bytes % 512 == 0 else None
        self.direct = descriptors is not None
        if descriptors is None:
            descriptors = self._open(0)
            assert descriptors is not None
            method = method or "readahead"
        self._reader = PageReader(
            descriptors, self._starts, np.array(self._seeds, np.uint64), page_bytes, depth, method
        )
        weakref.finalize(self, self._reader.close)  # closes the files of a device that was never closed

    def _open(self, flags: int) -> list[int] | None:
        """Open all files; return None if direct reads were requested and are not possible."""
        with contextlib.ExitStack() as undo:
            descriptors = []
            for i, path in enumerate(self.paths):
                try:
                    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
                except OSError as error:
                    if flags and error.errno == errno.EINVAL:
                        return None
                    raise
                undo.callback(os.close, descriptor)
                found, pages = os.fstat(descriptor), int(self._starts[i + 1] - self._starts[i])
                if found.st_size < pages * self.page_bytes:
                    raise self._truncated(i, found.st_size // self.page_bytes, found.st_size)
                if flags and not self._direct_works(descriptor, pages):
                    return None
                if not flags:
                    # We advise the kernel of every request; its own readahead would read pages that are not needed.
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
                descriptors.append(descriptor)
            undo.pop_all()
            return descriptors

    def _direct_works(self, descriptor: int, pages: int) -> bool:
        """Try to read the first two pages, once per file system: no page is less aligned, on disk or in memory."""
        tried = self._file_system(descriptor)
        if tried in _read_directly:
            return True
        frames = self.allocate(2)
        try:
            for page in range(min(pages, 2)):
                os.preadv(descriptor, [frames[page]], page * self.page_bytes)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return False
            raise
        if pages >= 2:
            _read_directly.add(tried)
        return True

    def _file_system(self, file: int | Path) -> tuple[int, int, int]:
        """Return what direct reads depend on; another file system may have the device number of one that is gone."""
        return os.stat(file).st_dev, os.statvfs(file).f_fsid, self.page_bytes

    @property
    def method(self) -> Method:
        """How requests are kept in flight."""
        return self._reader.method

    def read(self, pages: Ints, frames: Frames) -> None:
        pages, frames = self._checked(pages, frames)
        if not len(pages):
            return
        begin = time.perf_counter()
        with self._reader.in_use() as lock:
            reads = self._transfer(pages, frames)
            with lock:
                self._count(reads, len(pages), time.perf_counter() - begin)

    def _count(self, reads: int, pages: int, seconds: float) -> None:
        self.counters.reads += reads
        self.counters.pages += pages
        self.counters.bytes += pages * self.page_bytes
        self.counters.seconds += seconds

    @contextlib.contextmanager
    def ring(self, frames: Frames, places: Places | None = None) -> Iterator[RingReader | None]:
        self._checked(np.empty(0, np.int64), frames)
        with self._reader.in_use() as lock:
            ring = self._reader.take_ring(frames, places)
            if ring is None:
                yield None
                return
            try:
                yield ring
                if ring.failed:
                    ring.finish()
                    raise self._error(*ring.failure())
            finally:
                ring.leave()
                with lock:
                    self._count(ring.runs, ring.pages, ring.seconds)

    def _transfer(self, pages: Ints, frames: Frames, depth: int | None = None) -> int:
        """Read and verify without counting; return the number of runs."""
        outcome, report = self._reader.transfer(pages, frames, depth=depth)
        if outcome != transfers.DONE:
            raise self._error(outcome, report, pages, frames)
        return int(report[2])

    def _error(self, outcome: int, report: Ints, pages: Ints, frames: Frames) -> Exception:
        """Return the error to raise, after clearing unverified pages from the frames."""
        index, number = int(report[0]), int(report[1])
        page = int(pages[index])
        if outcome == transfers.NO_SUCH_PAGE:
            return self._no_such_page(page)
        file = int(np.searchsorted(self._starts, page, side="right")) - 1
        path, local = self.paths[file], page - int(self._starts[file])
        bad, aligned = frames[index].copy(), frames.ctypes.data % 512 == 0
        frames[:] = 0
        if outcome == transfers.ENDED:
            return self._truncated(file, local, path.stat().st_size)
        if outcome == transfers.BAD_CHECKSUM:
            what = _what_is_wrong(bad, local, self._seeds[file])
            return CorruptPageError(f"page {local} of {path} is corrupt: {what}; {_REMEDY}", file=path, page=local)
        if number == errno.EINVAL and not aligned:
            return ValueError("direct reads need aligned frames; use rows of what Device.allocate returned")
        if number in (errno.EINVAL, errno.EOPNOTSUPP):
            _read_directly.discard(self._file_system(path))  # not so for this file: opened again, it is tried
        return DeviceError(
            f"reading page {local} of {path} failed: {os.strerror(number)}; check the disk, then try again"
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
        """Read random pages one at a time, random pages ``depth`` at a time, and long runs, for ``seconds`` each.

        The three measurements alternate several times, and the best time of each counts: other load on the machine
        only makes reads look slower, and rarely slows all of them equally.
        Counters do not change. If reads go through the page cache (`direct` is False), the numbers are those of a warm
        cache for the part of the files that is cached.
        """
        if self.page_count == 0:
            raise ValueError(f"a device without pages cannot be measured; {len(self.paths)} files are empty")
        generator = np.random.default_rng(seed)
        frames = self.allocate(max(1, min(self.page_count, (16 << 20) // self.page_bytes)))
        frames[:] = 0  # so that no read waits for memory

        def rate(depth: int, batch: int, sequential: bool) -> float:
            """Return pages per second."""
            pages_read, begin = 0, time.perf_counter()
            while True:
                if sequential:
                    first = int(generator.integers(0, self.page_count - batch + 1))
                    pages = np.arange(first, first + batch)
                else:
                    pages = generator.integers(0, self.page_count, batch)
                self._transfer(pages, frames[:batch], depth)
                pages_read += batch
                elapsed = time.perf_counter() - begin
                if elapsed >= seconds / _ROUNDS:
                    return pages_read / elapsed

        with self._reader.in_use():
            self._transfer(np.zeros(1, np.int64), frames[:1])  # the first call may compile
            one = queued = long = 0.0
            for _ in range(_ROUNDS):
                one = max(one, rate(1, min(16, len(frames)), sequential=False))
                queued = max(queued, rate(self.depth, min(16 * self.depth, len(frames)), sequential=False))
                long = max(long, rate(self.depth, len(frames), sequential=True))
        return DeviceProfile(
            seek_seconds=max(0.0, 1 / one - 1 / long),
            transfer_seconds=1 / long,
            random_reads_per_second=queued,
            sequential_bytes_per_second=long * self.page_bytes,
            depth=self.depth,
            direct=self.direct,
        )

    def _measure_briefly(self) -> DeviceProfile:
        # Once for all relations of similar size on the same disk: a Spark task opens a relation for every micro-batch.
        size = min(self.page_count, _SAMPLED_PAGES).bit_length()
        place = self.paths[0].stat().st_dev, self.page_bytes, self.depth, self.direct, self.method, size
        if place not in _measured:
            _measured[place] = self.measure(0.04)
        return _measured[place]

    def close(self) -> None:
        self._reader.close()

    def __repr__(self) -> str:
        way = "direct" if self.direct else "buffered"
        return (
            f"FileDevice({len(self.paths)} files, {self.page_count} pages of {self.page_bytes} B,"
            f" {way}, {self.method} of {self.depth})"
        )


def _what_is_wrong(page: Frames, expected: int, seed: int) -> str:
    """Describe a page that failed its checksum."""
    if not page.any():
        return "it holds only zeros, as if it was never written"
    found = int(page[8:12].view(np.uint32)[0])
    if found != expected and page_checksum(page, found, seed) == page[:8].view(np.uint64)[0]:
        return f"it is page {found}, misplaced"
    return "its checksum does not match its bytes, or they are those of another file"
