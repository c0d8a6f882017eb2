"""What a device is: where pages of R come from.

A join sees pages only through `Device`: it allocates frames, asks for page ids, and gets verified pages. Runs
of consecutive ids are read as one request, several requests are in flight at once, and the GIL is free
meanwhile. `file_device` has the real one, `simulated_device` one whose time is virtual.
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
    """What a device has delivered, in all threads together.

    >>> later = DeviceCounters(reads=5, pages=20)
    >>> (later - DeviceCounters(reads=2, pages=10)).pages
    10
    """

    reads: int = 0
    """Runs of consecutive pages of one file, each of which pays one seek."""
    pages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """Time inside `Device.read`, virtual for a simulated device, and in loops over a ring, in which pages are searched
    too; threads add up."""
    requests: int = 0
    """Requests to an object store."""
    fetched_bytes: int = 0
    """Bytes that came from an object store, those between wanted pages included."""
    local_pages: int = 0
    """Of `pages`, those that came from the local tier of a store."""

    def snapshot(self) -> DeviceCounters:
        """Return a copy that later reads leave alone."""
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
    """What reads cost, in the terms of the papers' cost models.

    One random page costs ``seek_seconds + transfer_seconds`` when it is waited for, and a run of n pages
    ``seek_seconds + n * transfer_seconds``. Where many random pages are asked for together the device
    overlaps them, and each costs ``1 / random_reads_per_second``, which may be a small part of that.
    """

    seek_seconds: float
    """Time from a request to its first page, one at a time (``S``)."""
    transfer_seconds: float
    """Time of each page of a long run (``T``)."""
    random_reads_per_second: float
    """Single random pages, ``depth`` in flight."""
    sequential_bytes_per_second: float
    depth: int
    direct: bool
    """False: reads went through the page cache, and a warm one makes all of these numbers flattering."""

    @property
    def queued_seek_seconds(self) -> float:
        """The part of ``seek_seconds`` that is left of each page when ``depth`` requests are in flight."""
        return max(0.0, 1 / self.random_reads_per_second - self.transfer_seconds)


class Device(ABC):
    """Pages by number. See the module's description for the contract.

    Attributes
    ----------
    page_bytes
        Size of a page on the device: what a read transfers.
    frame_bytes
        Size of a page in memory. Only a device that makes up its pages may have smaller frames.
    page_count
        Pages have the ids 0 up to this.
    counters
        What has been read so far.
    simulated
        Whether its time is virtual: then it knows what reads cost, and nothing is gained by reading ahead.
    merges
        Whether it brings near pages together by itself, with what lies between: a plan that asks for that, too, would
        have it bring more than it may, and what it has at hand already.
    """

    page_bytes: int
    frame_bytes: int
    page_count: int
    counters: DeviceCounters
    simulated: bool = False
    merges: bool = False
    _profile: DeviceProfile | None = None

    def allocate(self, frames: int) -> Frames:
        """Return zeroed room for pages, one a row, aligned as direct reads need it.

        Memory is taken from the system only where something is read into it, in pieces of up to 2 MiB.
        """
        if frames < 0:
            raise ValueError(f"cannot allocate {frames} frames")
        if frames == 0:
            return np.empty((0, self.frame_bytes), np.uint8)
        # Private: a forked child must not write into its parent's pages.
        room = mmap.mmap(-1, frames * self.frame_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # Huge pages make a direct read several times cheaper to submit, and its bytes cheaper to check.
        with contextlib.suppress(AttributeError, OSError):
            room.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(room, np.uint8).reshape(frames, self.frame_bytes)

    @abstractmethod
    def read(self, pages: Ints, frames: Frames) -> None:
        """Read page ``pages[i]`` into row i of ``frames``, and return when all have arrived and been
        verified.

        Parameters
        ----------
        pages
            Ids in any order. Consecutive ids next to each other share a request, so sorted ids are cheaper.
        frames
            Rows from `allocate`, at least as many as pages.

        Raises
        ------
        semistream.core.errors.CorruptPageError
            A page is not what was written; nothing of what was read may be used, and the frames are zeroed.
        """

    def ring(self, frames: Frames, places: Places | None = None) -> AbstractContextManager[RingReader | None]:
        """Have a ring over frames, for who reads and searches pages in one compiled loop; None where there is none.

        Pages lie at ``places``, if not as they are numbered; none may be asked for that is not there. In the end it
        waits for what is in flight, counts what arrived, and raises what `read` would, if a page cannot be read.
        """
        return nullcontext()

    @abstractmethod
    def measure(self) -> DeviceProfile:
        """Find out what reads cost, by reading."""

    @property
    def profile(self) -> DeviceProfile:
        """What reads cost, measured once, when it is first asked for."""
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
        """Return ids as int64 and the frames for them, or raise ValueError."""
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
