"""Objects of a store as a device: runs of pages in ranges, many requests in flight, each page verified.

A request to a store takes milliseconds whatever it brings, so pages that are near each other are brought together with
what lies between: as much as the store transfers in the time that one more request would take, by what was measured of
it, and never more than four times what is wanted.

With a local tier, what came once is kept in mirrors on this machine's disk and read from there as any file is, direct
and with many reads in flight; what is not there, or is not what it should be, comes from the store. If all of it fits,
the rest is brought while the first pages are in use.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from semistream.core.arrays import Ints
from semistream.core.compiled import frozen, kernel
from semistream.core.errors import CorruptPageError
from semistream.relation.devices.device import Device, DeviceCounters, DeviceError, DeviceProfile, Frames
from semistream.relation.devices.mirrored_files import MirroredFiles, bad_pages
from semistream.relation.storage.checksum import file_seed
from semistream.relation.stores.local_tier import LocalTier
from semistream.relation.stores.object_store import ObjectStatus
from semistream.relation.stores.store_path import StorePath

__all__ = ["StoreDevice"]

IN_FLIGHT = 64
"""Requests of one process at once."""
LONGEST_REQUEST = 256 << 10
MOST_FETCHED = 4
"""Bytes brought for each byte that is wanted, at most."""
_SAMPLE = 3
_GUESSED_GAP = 64 << 10
_REMEDY = "run semistream repair with a copy of the relation or the data it was built from, or build it again"

_measured: dict[tuple[str, int], DeviceProfile] = {}


class StoreDevice(Device):
    """Pages in objects of a store, numbered through: page ids go on from one object to the next.

    Any number of threads may read at once; all of a process share its requests in flight. Bytes on their way are held
    beside the frames: up to 16 MiB in a process.

    Parameters
    ----------
    objects
        Place, status and number of pages of each object.
    page_bytes
        Size of a page.
    bound
        For each object, whether its pages were sealed with the seed of its name.
    depth
        What a `semistream.relation.devices.file_device.FileDevice` has of them.
    tier
        Where pages are kept on this machine, if they are.
    """

    def __init__(
        self,
        objects: Sequence[tuple[StorePath, ObjectStatus, int]],
        page_bytes: int,
        *,
        bound: Sequence[bool],
        depth: int = IN_FLIGHT,
        tier: LocalTier | None = None,
    ) -> None:
        self.page_bytes = self.frame_bytes = page_bytes
        self.places = [place for place, _, _ in objects]
        self.depth = min(depth, IN_FLIGHT)
        self.counters = DeviceCounters()
        self._starts = np.cumsum([0, *(pages for _, _, pages in objects)], dtype=np.int64)
        self.page_count = int(self._starts[-1])
        names = zip(self.places, bound, strict=True)
        self._seeds = np.array([file_seed(place.name) if is_bound else 0 for place, is_bound in names], np.uint64)
        self._lock = threading.Lock()
        self._closed = False
        self._tier = None if tier is None else MirroredFiles(tier, objects, page_bytes, bound, depth)
        # what is all on the disk is read as from a disk
        self.merges = tier is None or tier.budget < self.page_count * page_bytes

    def read(self, pages: Ints, frames: Frames) -> None:
        pages, frames = self._checked(pages, frames)
        if self._closed:
            raise DeviceError("the relation's files are closed; open the relation again")
        if not len(pages):
            return
        if int(pages.min()) < 0 or int(pages.max()) >= self.page_count:
            raise self._no_such_page(int(pages.max()) if pages.max() >= self.page_count else int(pages.min()))
        begin = time.perf_counter()
        there = np.zeros(len(pages), bool) if self._tier is None else self._tier.read(pages, frames)
        requests = fetched = 0
        try:
            missing = np.flatnonzero(~there)
            if missing.size:
                requests, fetched = self._fetch(pages, frames, missing, self._gap())
            if not (self._tier is not None and there.all()):
                self._verify(pages, frames)
        except BaseException:
            frames[:] = 0
            raise
        with self._lock:
            self.counters.reads += 1 + int(np.count_nonzero(np.diff(pages) != 1))
            self.counters.pages += len(pages)
            self.counters.bytes += len(pages) * self.page_bytes
            self.counters.requests += requests
            self.counters.fetched_bytes += fetched
            self.counters.local_pages += int(np.count_nonzero(there))
            self.counters.seconds += time.perf_counter() - begin
        if missing.size and self._tier is not None:
            self._tier.fill(self._brought, self._count)

    def _count(self, requests: int, fetched: int) -> None:
        with self._lock:
            self.counters.requests += requests
            self.counters.fetched_bytes += fetched

    def _fetch(self, pages: Ints, frames: Frames, which: Ints, gap: int, *, keep: bool = True) -> tuple[int, int]:
        """Bring some pages into their frames, unverified; return the requests it took, and the bytes they brought."""
        order = which[np.argsort(pages[which], kind="stable")]
        ordered = pages[order]
        most = max(1, LONGEST_REQUEST // self.page_bytes)
        bounds = _requests(ordered, self._starts, gap // self.page_bytes, most, MOST_FETCHED)
        firsts, lasts = ordered[bounds[:-1]], ordered[bounds[1:] - 1]

        def bring(number: int) -> None:
            first, last = int(firsts[number]), int(lasts[number])
            mine = order[bounds[number] : bounds[number + 1]]
            brought = self._brought(first, last - first + 1)
            frames[mine] = brought[ordered[bounds[number] : bounds[number + 1]] - first]
            if self._tier is not None and keep:
                self._tier.keep(first, brought)

        if firsts.size == 1:
            bring(0)
        else:
            list(_pool().map(bring, range(firsts.size)))
        return int(firsts.size), int((lasts - firsts + 1).sum()) * self.page_bytes

    def _brought(self, first: int, count: int) -> Frames:
        """Bring a run of pages of one object."""
        number = int(np.searchsorted(self._starts, first, side="right")) - 1
        place, local = self.places[number], first - int(self._starts[number])
        try:
            found = place.store.read_range(place.key, local * self.page_bytes, count * self.page_bytes)
        except FileNotFoundError:
            raise DeviceError(
                f"{place} is gone, and this relation was open with it: a vacuum has removed its version, or somebody "
                "the object; open the relation again, and have vacuum leave versions for longer (older_than)"
            ) from None
        if found.nbytes != count * self.page_bytes:
            page = local + found.nbytes // self.page_bytes
            raise CorruptPageError(
                f"{place} is truncated: page {page} is not whole; {_REMEDY}", file=str(place), page=page
            )
        return np.frombuffer(found, np.uint8).reshape(count, self.page_bytes)

    def _verify(self, pages: Ints, frames: Frames) -> None:
        bad = bad_pages(frozen(frames.view(np.uint64)), frozen(pages), frozen(self._starts), frozen(self._seeds))
        if bad.any():
            page = int(pages[int(np.argmax(bad))])
            number = int(np.searchsorted(self._starts, page, side="right")) - 1
            place, local = self.places[number], page - int(self._starts[number])
            raise CorruptPageError(
                f"page {local} of {place} is corrupt: its checksum does not match its bytes, or they are those of "
                f"another file; {_REMEDY}", file=str(place), page=local,
            )  # fmt: skip

    def _gap(self) -> int:
        """Return how many bytes nobody wants are brought sooner than another request is made."""
        known = _measured.get(self._measured_as())
        if known is None:
            return _GUESSED_GAP
        return int(known.queued_seek_seconds * known.sequential_bytes_per_second)

    def _measured_as(self) -> tuple[str, int]:
        return self.places[0].store.address, self.page_bytes

    def measure(self, *, seed: int = 0) -> DeviceProfile:
        """Time requests of a page, one at a time and many at once, and long runs: some tens of requests."""
        generator = np.random.default_rng(seed)
        most = min(self.page_count, IN_FLIGHT * LONGEST_REQUEST // self.page_bytes)
        frames = self.allocate(max(1, most))
        many = min(len(frames), 2 * self.depth)

        def seconds(pages: Ints) -> float:
            begin = time.perf_counter()
            self._fetch(pages, frames[: pages.size], np.arange(pages.size), 0, keep=False)
            return time.perf_counter() - begin

        seconds(np.zeros(1, np.int64))  # the first connects
        one = min(seconds(generator.integers(0, self.page_count, 1)) for _ in range(_SAMPLE))
        random = np.unique(generator.integers(0, self.page_count, many))
        queued = min(seconds(random) for _ in range(_SAMPLE)) / random.size
        first = int(generator.integers(0, self.page_count - len(frames) + 1))
        long = min(seconds(np.arange(first, first + len(frames))) for _ in range(_SAMPLE)) / len(frames)
        return DeviceProfile(
            seek_seconds=max(0.0, one - long),
            transfer_seconds=long,
            random_reads_per_second=1 / max(queued, long),
            sequential_bytes_per_second=self.page_bytes / long,
            depth=self.depth,
            direct=True,
        )

    def _measure_briefly(self) -> DeviceProfile:
        place = self._measured_as()
        if place not in _measured:
            _measured[place] = self.measure()
        return _measured[place] if self._tier is None else self._tier.blended(_measured[place])

    def close(self) -> None:
        self._closed = True
        if self._tier is not None:
            self._tier.close()

    def __repr__(self) -> str:
        return f"StoreDevice({len(self.places)} objects, {self.page_count} pages of {self.page_bytes} B)"


@kernel
def _requests(pages: Ints, starts: Ints, gap: int, most: int, times: int) -> Ints:
    """Return the bounds of requests in ascending page ids: see `StoreDevice`; no request is for two objects."""
    bounds = np.empty(pages.size + 1, np.int64)
    bounds[0], count = 0, 1
    end = starts[np.searchsorted(starts, pages[0], side="right")]
    first, wanted = pages[0], 1
    for i in range(1, pages.size):
        page, last = pages[i], pages[i - 1]
        if page == last:
            continue
        length = page - first + 1
        if page >= end or page - last - 1 > gap or length > most or length > times * (wanted + 1):
            bounds[count] = i
            count += 1
            first, wanted = page, 1
            end = starts[np.searchsorted(starts, page, side="right")]
        else:
            wanted += 1
    bounds[count] = pages.size
    return bounds[: count + 1]


_threads: tuple[int, ThreadPoolExecutor] | None = None
_making = threading.Lock()


def _pool() -> ThreadPoolExecutor:
    """Return the threads of this process that wait for stores."""
    global _threads
    with _making:
        if _threads is None or _threads[0] != os.getpid():
            _threads = os.getpid(), ThreadPoolExecutor(IN_FLIGHT, "semistream-store")
        return _threads[1]
