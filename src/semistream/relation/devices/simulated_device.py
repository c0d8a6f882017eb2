"""A device on virtual time: it simulates the papers' disk on any machine, without waiting.

Pages come from a `PageSource`, which may hold them (`MemoryPages`) or generate them on request.
Each run of n consecutive pages costs ``seek + n * transfer`` of virtual time, as in the papers' cost models.
Nothing else takes virtual time. The defaults describe a disk with 8.5 ms average access time and 100 MB/s.
"""

from __future__ import annotations

import threading
from typing import Protocol

import numpy as np

from semistream.core.arrays import Ints
from semistream.core.clock import VirtualClock
from semistream.core.errors import CorruptPageError
from semistream.relation.devices.device import Device, DeviceCounters, DeviceError, DeviceProfile, Frames
from semistream.relation.storage.checksum import verify

__all__ = ["MemoryPages", "PageSource", "SimulatedDevice"]


class PageSource(Protocol):
    """Where a simulated device gets its pages from. Several threads may call `fill` concurrently."""

    page_bytes: int
    """Bytes that the transfer of a page is charged for."""
    frame_bytes: int
    """Bytes of a page in memory. Fewer than `page_bytes` if the source leaves out bytes that are never read."""
    page_count: int

    def fill(self, pages: Ints, frames: Frames) -> None:
        """Write page ``pages[i]`` into row i of ``frames``; ids are within range."""
        ...


class MemoryPages:
    """Sealed pages in an array, verified on every read like the pages of a file.

    Parameters
    ----------
    frames
        One page per row, sealed with ids from 0 on. Not copied.
    """

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.page_count = len(frames)
        self.page_bytes = self.frame_bytes = int(frames.shape[1])

    def fill(self, pages: Ints, frames: Frames) -> None:
        np.take(self.frames, pages, axis=0, out=frames)
        bad = verify(frames, pages)
        if bad >= 0:
            frames[:] = 0
            page = int(pages[bad])
            raise CorruptPageError(
                f"page {page} of the pages in memory is corrupt; seal it again", file="memory", page=page
            )


class SimulatedDevice(Device):
    """Reads that take virtual time.

    Parameters
    ----------
    source
        Where pages come from.
    seek_seconds
        Charged once for each run of consecutive ids (the papers' ``S``). With zero, the order of reads does not
        matter.
    transfer_seconds
        Charged for each page (``T``).
    clock
        Advanced by each read. Devices that are read one after the other share a clock; devices that are read
        concurrently need a clock each.

    Examples
    --------
    >>> from semistream.relation.storage.checksum import seal
    >>> pages = np.zeros((10, 4096), np.uint8)
    >>> seal(pages, first_id=0)
    >>> clock = VirtualClock()
    >>> device = SimulatedDevice(MemoryPages(pages), seek_seconds=1, transfer_seconds=0.25, clock=clock)
    >>> device.read(np.array([3, 4, 9]), device.allocate(3))
    >>> clock.now(), device.counters.reads
    (2.75, 2)
    """

    simulated = True

    def __init__(
        self,
        source: PageSource,
        *,
        seek_seconds: float = 0.0085,
        transfer_seconds: float = 8192 / 100e6,
        clock: VirtualClock,
    ) -> None:
        if seek_seconds < 0 or transfer_seconds <= 0:
            raise ValueError(
                f"a seek cannot take {seek_seconds} s or a transfer {transfer_seconds} s;"
                " give seek_seconds >= 0 and transfer_seconds > 0"
            )
        self.source = source
        self.page_bytes = source.page_bytes
        self.frame_bytes = source.frame_bytes
        self.page_count = source.page_count
        self.seek_seconds = seek_seconds
        self.transfer_seconds = transfer_seconds
        self.clock = clock
        self.longest_run: int | None = None
        """Pages after which consecutive pages cost another seek; None: a run of any length costs one."""
        self.counters = DeviceCounters()
        self._lock = threading.Lock()
        self._closed = False

    def read(self, pages: Ints, frames: Frames) -> None:
        pages, frames = self._checked(pages, frames)
        if self._closed:
            raise DeviceError("the simulated device is closed; create a new one")
        if not len(pages):
            return
        for page in (int(pages.min()), int(pages.max())):
            if not 0 <= page < self.page_count:
                raise self._no_such_page(page)
        self.source.fill(pages, frames)
        runs = self._runs(pages)
        seconds = runs * self.seek_seconds + len(pages) * self.transfer_seconds
        with self._lock:
            self.counters.reads += runs
            self.counters.pages += len(pages)
            self.counters.bytes += len(pages) * self.page_bytes
            self.counters.seconds += seconds
        self.clock.advance(seconds)

    def _runs(self, pages: Ints) -> int:
        """Return how many runs are charged for these pages."""
        begins = np.flatnonzero(np.diff(pages) != 1) + 1
        if self.longest_run is None:
            return 1 + begins.size
        lengths = np.diff(np.concatenate(([0], begins, [len(pages)])))
        return int(np.sum(-(-lengths // self.longest_run)))

    def measure(self) -> DeviceProfile:
        """Return the costs that reads are charged. It reads nothing, and no time passes."""
        return DeviceProfile(
            seek_seconds=self.seek_seconds,
            transfer_seconds=self.transfer_seconds,
            random_reads_per_second=1 / (self.seek_seconds + self.transfer_seconds),
            sequential_bytes_per_second=self.page_bytes / self.transfer_seconds,
            depth=1,
            direct=True,
        )

    def close(self) -> None:
        self._closed = True
