"""A device over objects of a store: it reads ranges of pages, with many requests in flight, and verifies each page.

A request to a store takes milliseconds however little it fetches. So nearby pages are fetched together with the bytes
between them, if the store transfers those bytes in less time than another request would take, as measured. The total
never exceeds four times the bytes requested.

With a local tier, fetched pages are kept in mirrors on the local disk. They are read from there as from any file, with
direct reads and many requests in flight. Pages that are missing or damaged there come from the store. If the whole
relation fits into the tier, the rest is fetched while the first pages are in use.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

import numpy as np

from semistream.core.arrays import Ints
from semistream.core.compiled import frozen, kernel
from semistream.core.errors import CorruptPageError, StorageError
from semistream.relation.devices.device import Device, DeviceCounters, DeviceError, DeviceProfile, Frames
from semistream.relation.devices.mirrored_files import MirroredFiles, bad_pages
from semistream.relation.storage.checksum import file_seed
from semistream.relation.stores.local_tier import NO_ROOM, LocalTier
from semistream.relation.stores.object_store import ObjectStatus
from semistream.relation.stores.store_path import StorePath

__all__ = ["CALLS", "ON_THE_WAY", "StoreDevice"]

CALLS = 32
"""Concurrent calls of one process to stores. A call consists of several requests."""
_CALL_BYTES = 1 << 20
"""Maximum bytes of a call with more than one request."""
ON_THE_WAY = CALLS * _CALL_BYTES
"""Maximum bytes in flight from stores per process."""
LONGEST_REQUEST = 512 << 10  # maximum bytes of a request
_MEASURED_BYTES = 16 << 20  # bytes read to measure long runs
MOST_FETCHED = 4
"""Maximum bytes fetched per byte requested."""
_SAMPLE = 3  # repetitions of each measurement, of which the best counts
_GUESSED_GAP = 64 << 10  # largest gap, in bytes, to fetch before the store is measured
_REMEDY = "run semistream repair with a copy of the relation or the data it was built from, or build it again"

_measured: dict[tuple[str, int], DeviceProfile] = {}


class StoreDevice(Device):
    """Pages in objects of a store. Page ids continue from one object to the next.

    Any number of threads may read concurrently. All threads of a process share its requests in flight, about 320.
    Bytes in flight are held in addition to the frames: up to 32 MiB per process.

    Parameters
    ----------
    objects
        Place, status and number of pages of each object.
    page_bytes
        Size of a page.
    bound
        For each object, whether its pages were sealed with a seed derived from its name.
    depth
        Reads in flight on the local tier.
    tier
        Where pages are kept on the local disk; None to keep none.
    """

    def __init__(
        self,
        objects: Sequence[tuple[StorePath, ObjectStatus, int]],
        page_bytes: int,
        *,
        bound: Sequence[bool],
        depth: int = 64,
        tier: LocalTier | None = None,
    ) -> None:
        self.page_bytes = self.frame_bytes = page_bytes
        self.places = [place for place, _, _ in objects]
        self.depth = CALLS * max(1, *(place.store.at_once for place in self.places), 1)
        self.counters = DeviceCounters()
        self._starts = np.cumsum([0, *(pages for _, _, pages in objects)], dtype=np.int64)
        self.page_count = int(self._starts[-1])
        names = zip(self.places, bound, strict=True)
        self._seeds = np.array([file_seed(place.name) if is_bound else 0 for place, is_bound in names], np.uint64)
        self._lock = threading.Lock()
        self._closed = False
        self._tier: MirroredFiles | None = None
        if tier is not None:
            try:
                self._tier = MirroredFiles(tier, objects, page_bytes, bound, depth)
            except StorageError as error:
                if error.errno not in NO_ROOM:  # without room for a tier, all pages come from the store
                    raise
        # If the tier can hold the whole relation, reads are planned as for a disk.
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
        there = np.zeros(len(pages), bool) if self._tier is None else self._tier.there(pages)
        try:
            # Pages from the store are in flight while cached pages are read.
            coming = self._fetch(pages, frames, np.flatnonzero(~there))
            try:
                found = self._tier.read(pages, frames, there) if self._tier is not None and there.any() else there
            finally:
                coming.wait()
            lost = self._fetch(pages, frames, np.flatnonzero(there & ~found))
            lost.wait()
            if not found.all() or self._tier is None:
                self._verify(pages, frames)
        except BaseException:
            frames[:] = 0
            raise
        with self._lock:
            self.counters.reads += 1 + int(np.count_nonzero(np.diff(pages) != 1))
            self.counters.pages += len(pages)
            self.counters.bytes += len(pages) * self.page_bytes
            self.counters.requests += coming.requests + lost.requests
            self.counters.fetched_bytes += coming.fetched_bytes + lost.fetched_bytes
            self.counters.local_pages += int(np.count_nonzero(found))
            self.counters.seconds += time.perf_counter() - begin
        if coming.requests and self._tier is not None:
            self._tier.fill(self._brought_run, self._count)

    def _count(self, requests: int, fetched: int) -> None:
        with self._lock:
            self.counters.requests += requests
            self.counters.fetched_bytes += fetched

    def _fetch(self, pages: Ints, frames: Frames, which: Ints, *, gap: int | None = None, keep: bool = True) -> _Coming:
        """Start fetching some pages into their frames, unverified."""
        if not which.size:
            return _Coming([], 0, 0)
        order = which[np.argsort(pages[which], kind="stable")]
        ordered = pages[order]
        most = max(1, LONGEST_REQUEST // self.page_bytes)
        gap = self._gap() if gap is None else gap
        bounds = _requests(ordered, self._starts, *_widest_gap(ordered, gap // self.page_bytes), most)
        firsts, lasts = ordered[bounds[:-1]], ordered[bounds[1:] - 1]

        tier = self._tier if keep else None
        kept = None if tier is None else tier.wanted(ordered)

        def bring(begin: int, end: int) -> None:
            for number, brought in enumerate(self._brought(firsts[begin:end], lasts[begin:end]), begin):
                mine = slice(int(bounds[number]), int(bounds[number + 1]))
                places = ordered[mine] - firsts[number]
                frames[order[mine]] = brought[places]
                if tier is not None and kept is None:
                    tier.keep(int(firsts[number]), brought)
                elif tier is not None and kept is not None and kept[mine].any():
                    tier.keep_later(ordered[mine][kept[mine]], brought[places[kept[mine]]])

        calls = [_pool().submit(bring, *call) for call in self._calls(firsts, lasts)]
        return _Coming(calls, int(firsts.size), int((lasts - firsts + 1).sum()) * self.page_bytes)

    def _calls(self, firsts: Ints, lasts: Ints) -> list[tuple[int, int]]:
        """Group requests into calls: one object per call, within the limits of requests and bytes per call."""
        files = np.searchsorted(self._starts, firsts, side="right") - 1
        sizes = (lasts - firsts + 1) * self.page_bytes
        calls, begin, held = [], 0, 0
        for number, size in enumerate(sizes.tolist()):
            most = self.places[files[begin]].store.at_once
            if number > begin and (
                files[number] != files[begin] or number - begin >= most or held + size > _CALL_BYTES
            ):
                calls.append((begin, number))
                begin, held = number, 0
            held += size
        return [*calls, (begin, firsts.size)]

    def _brought(self, firsts: Ints, lasts: Ints) -> list[Frames]:
        """Fetch runs of pages of one object."""
        number = int(np.searchsorted(self._starts, firsts[0], side="right")) - 1
        place, size = self.places[number], self.page_bytes
        starts, counts = (firsts - self._starts[number]).tolist(), (lasts - firsts + 1).tolist()
        try:
            if len(starts) == 1:
                found = [place.store.read_range(place.key, starts[0] * size, counts[0] * size)]
            else:
                lengths = [count * size for count in counts]
                found = place.store.read_ranges(place.key, [start * size for start in starts], lengths)
        except FileNotFoundError:
            raise DeviceError(
                f"{place} is gone, although this relation is open: a vacuum removed its version, or the object was "
                "deleted; open the relation again, and have vacuum keep versions longer (older_than)"
            ) from None
        for start, count, run in zip(starts, counts, found, strict=True):
            if run.nbytes != count * size:
                page = start + run.nbytes // size
                raise CorruptPageError(
                    f"{place} is truncated: page {page} is not whole; {_REMEDY}", file=str(place), page=page
                )
        return [np.frombuffer(run, np.uint8).reshape(-1, size) for run in found]

    def _brought_run(self, first: int, count: int) -> Frames:
        return self._brought(np.array([first]), np.array([first + count - 1]))[0]

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
        """Return the largest gap, in bytes, that is cheaper to fetch than to skip with another request."""
        known = _measured.get(self._measured_as())
        if known is None:
            return _GUESSED_GAP
        return int(known.queued_seek_seconds * known.sequential_bytes_per_second)

    def _measured_as(self) -> tuple[str, int]:
        return self.places[0].store.address, self.page_bytes

    def measure(self, *, seed: int = 0) -> DeviceProfile:
        """Time single-page requests, one at a time and many together, and long runs: some hundreds of requests."""
        generator = np.random.default_rng(seed)
        most = min(self.page_count, max(2 * self.depth, _MEASURED_BYTES // self.page_bytes))
        frames = self.allocate(max(1, most))
        many = min(len(frames), 2 * self.depth)

        def seconds(pages: Ints) -> float:
            begin = time.perf_counter()
            self._fetch(pages, frames[: pages.size], np.arange(pages.size), gap=0, keep=False).wait()
            return time.perf_counter() - begin

        seconds(np.zeros(1, np.int64))  # the first request connects
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


class _Coming(NamedTuple):
    """Calls in flight, and the requests and bytes they amount to."""

    calls: list[Future[None]]
    requests: int
    fetched_bytes: int

    def wait(self) -> None:
        """Wait for all calls, then raise the error of the first that failed."""
        wait(self.calls)
        for call in self.calls:
            call.result()


def _widest_gap(pages: Ints, gap: int) -> tuple[int, int, int]:
    """Return which gaps between ascending pages to fetch, so that the total stays within `MOST_FETCHED`.

    Returns three numbers of pages: all gaps up to the first are fetched; gaps up to the second (``gap``) are fetched
    while the third, the remaining allowance, lasts.
    """
    steps = np.diff(pages)
    between = steps[(steps > 1) & (steps <= gap + 1)] - 1
    extra = np.cumsum(np.bincount(between, minlength=1) * np.arange(int(between.max(initial=0)) + 1))
    wanted = 1 + int(np.count_nonzero(steps))
    room = (MOST_FETCHED - 1) * wanted
    widest = int(np.searchsorted(extra, room, side="right")) - 1
    return widest, gap, room - int(extra[widest])


@kernel
def _requests(pages: Ints, starts: Ints, gap: int, wider: int, left: int, most: int) -> Ints:
    """Return the bounds of requests in ascending page ids. No request covers two objects."""
    bounds = np.empty(pages.size + 1, np.int64)
    bounds[0], count = 0, 1
    end = starts[np.searchsorted(starts, pages[0], side="right")]
    first = pages[0]
    for i in range(1, pages.size):
        page = pages[i]
        between = page - pages[i - 1] - 1
        apart = between > gap and (between > wider or between > left)
        if between >= 0 and (apart or page >= end or page - first + 1 > most):
            bounds[count] = i
            count += 1
            first = page
            end = starts[np.searchsorted(starts, page, side="right")]
        elif between > gap:
            left -= between
    bounds[count] = pages.size
    return bounds[: count + 1]


_threads: tuple[int, ThreadPoolExecutor] | None = None
_making = threading.Lock()


def _pool() -> ThreadPoolExecutor:
    """Return the threads of this process that wait for stores."""
    global _threads
    with _making:
        if _threads is None or _threads[0] != os.getpid():
            _threads = os.getpid(), ThreadPoolExecutor(CALLS, "semistream-store")
        return _threads[1]
