"""The interface through which a join reads pages of R.

A join sees pages only through `Device`: it allocates frames, requests page ids, and gets verified pages. A run of
consecutive ids is read as one request. Several requests are in flight at the same time, and the GIL is free meanwhile.
`file_device` reads real files, `store_device` reads objects of a store, and `simulated_device` runs on virtual time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Ints
from semistream.core.errors import SemistreamError
from semistream.relation.devices.page_ring import Places
from semistream.relation.devices.ring_reader import RingReader

__all__ = ["Device", "DeviceCounters", "DeviceError", "DeviceProfile"]

Frames = NDArray[np.uint8]


class DeviceError(SemistreamError):
    """The system refused to read, or the device was closed."""


@dataclass
class DeviceCounters:
    """Totals of what a device has delivered, summed over all threads.

    >>> later = DeviceCounters(reads=5, pages=20)
    >>> (later - DeviceCounters(reads=2, pages=10)).pages
    10
    """

    reads: int = 0
    """Runs of consecutive pages of one file. Each run costs one seek."""
    pages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """Time in `Device.read` and in loops over a ring, summed over threads. Ring loops also search pages, and that time
    is included. Virtual time for a simulated device."""
    requests: int = 0
    """Requests to an object store."""
    fetched_bytes: int = 0
    """Bytes fetched from an object store, including bytes between requested pages."""
    local_pages: int = 0
    """How many of `pages` came from the local tier of a store."""

    def snapshot(self) -> DeviceCounters:
        """Return a copy that later reads do not change."""
        return dataclasses.replace(self)

    def __add__(self, other: DeviceCounters) -> DeviceCounters:
        return DeviceCounters(
            self.reads + other.reads,
            self.pages + other.pages,
            self.bytes + other.bytes,
            self.seconds + other.seconds,
            self.requests + other.requests,
            self.fetched_bytes + other.fetched_bytes,
            self.local_pages + other.local_pages,
        )

    def __sub__(self, earlier: DeviceCounters) -> DeviceCounters:
        return DeviceCounters(
            self.reads - earlier.reads,
            self.pages - earlier.pages,
            self.bytes - earlier.bytes,
            self.seconds - earlier.seconds,
            self.requests - earlier.requests,
            self.fetched_bytes - earlier.fetched_bytes,
            self.local_pages - earlier.local_pages,
        )


@dataclass(frozen=True)
class DeviceProfile:
    """The cost of reads, in the terms of the papers' cost models.

    A single random page costs ``seek_seconds + transfer_seconds``, and a run of n pages costs
    ``seek_seconds + n * transfer_seconds``. If many random pages are requested together, the device overlaps them.
    Each then costs ``1 / random_reads_per_second``, which may be far less.
    """

    seek_seconds: float
    """Time from a request to its first page, with one request at a time (``S``)."""
    transfer_seconds: float
    """Time per page of a long run (``T``)."""
    random_reads_per_second: float
    """Single random pages per second, with ``depth`` requests in flight."""
    sequential_bytes_per_second: float
    depth: int
    direct: bool
    """If False, reads went through the page cache, and a warm cache makes all of these numbers too good."""

    @property
    def queued_seek_seconds(self) -> float:
        """The seek time per page that remains when ``depth`` requests are in flight."""
        return max(0.0, 1 / self.random_reads_per_second - self.transfer_seconds)


class Device(ABC):
    """Reads pages by number. The module docstring describes the contract.

    Attributes
    ----------
    page_bytes
        Size of a page on the device, which is what a read transfers.
    frame_bytes
        Size of a page in memory. Only a device that generates its pages may have smaller frames.
    page_count
        Page ids run from 0 to ``page_count - 1``.
    counters
        What has been read so far.
    simulated
        Whether its time is virtual. Such a device knows what reads cost, and reading ahead gains nothing.
    merges
        Whether the device itself fetches nearby pages in one request, including the bytes between them. A read plan
        must not merge them as well: the device would then exceed its limit and fetch pages that it already holds.
    """

    page_bytes: int
    frame_bytes: int
    page_count: int
    counters: DeviceCounters
    simulated: bool = False
    merges: bool = False
    _profile: DeviceProfile | None = None

    def allocate(self, frames: int) -> Frames:
        """Return zeroed frames, one page per row, aligned as direct reads require.

        The system provides memory only when something is read into it, in blocks of up to 2 MiB.
        """
        if frames < 0:
            raise ValueError(f"cannot allocate {frames} frames")
        if frames == 0:
            return np.empty((0, self.frame_bytes), np.uint8)
        # Private: a forked child must not write into its parent's pages.
        room = mmap.mmap(-1, frames * self.frame_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # Huge pages make a direct read several times cheaper to submit, and its checksum cheaper to compute.
        with contextlib.suppress(AttributeError, OSError):
            room.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(room, np.uint8).reshape(frames, self.frame_bytes)

    @abstractmethod
    def read(self, pages: Ints, frames: Frames) -> None:
        """Read page ``pages[i]`` into row i of ``frames``; return when all pages have arrived and are verified.

        Parameters
        ----------
        pages
            Ids in any order. Adjacent consecutive ids share a request, so sorted ids are cheaper.
        frames
            Rows from `allocate`, at least one per page.

        Raises
        ------
        semistream.core.errors.CorruptPageError
            A page is not what was written. Nothing that was read may be used; the frames are zeroed.
        """

    def ring(self, frames: Frames, places: Places | None = None) -> AbstractContextManager[RingReader | None]:
        """Open a ring over frames for a compiled loop that reads and searches pages; None if the device has no ring.

        ``places`` says where pages are stored, if not in the order of their ids. Only existing pages may be requested.
        On exit, the ring waits for requests in flight and counts the pages that arrived. If a page could not be read,
        it raises the error that `read` would raise.
        """
        return nullcontext()

    @abstractmethod
    def measure(self) -> DeviceProfile:
        """Measure what reads cost, by reading."""

    @property
    def profile(self) -> DeviceProfile:
        """What reads cost, measured once, on first use."""
        if self._profile is None:
            self._profile = self._measure_briefly()
        return self._profile

    def _measure_briefly(self) -> DeviceProfile:
        return self.measure()

    @abstractmethod
    def close(self) -> None:
        """Release files and queues after reads in progress have ended. Closing twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _checked(self, pages: Ints, frames: Frames) -> tuple[Ints, Frames]:
        """Return the ids as int64 and their frames, or raise ValueError."""
        pages = np.ascontiguousarray(pages, np.int64)
        if pages.ndim != 1:
            raise ValueError(f"page ids must be one-dimensional, not of shape {pages.shape}")
        if frames.ndim != 2 or frames.shape[1] != self.frame_bytes or frames.dtype != np.uint8:
            raise ValueError(
                f"frames must be uint8 of shape (n, {self.frame_bytes}), not {frames.dtype} of shape"
                f" {frames.shape}; use Device.allocate"
            )
        if len(frames) < len(pages):
            raise ValueError(f"{len(pages)} pages do not fit into {len(frames)} frames")
        if not (frames.flags.c_contiguous and frames.flags.writeable):
            raise ValueError("frames must be contiguous and writable; use rows of what Device.allocate returned")
        return pages, frames[: len(pages)]

    def _no_such_page(self, page: int) -> IndexError:
        return IndexError(f"page {page} is not among the {self.page_count} pages 0..{self.page_count - 1}")
