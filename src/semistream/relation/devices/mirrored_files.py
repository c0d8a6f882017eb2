"""The local tier's copies of a store's objects: pages that are cached on disk are read as from any file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Bools, Ints
from semistream.core.compiled import frozen, kernel
from semistream.core.errors import CorruptPageError, SemistreamError
from semistream.relation.devices.device import DeviceError, DeviceProfile, Frames
from semistream.relation.devices.file_device import FileDevice
from semistream.relation.storage.checksum import checksum_words, file_seed, seal
from semistream.relation.stores.local_tier import LocalTier
from semistream.relation.stores.mirror import Mirror
from semistream.relation.stores.object_store import ObjectStatus
from semistream.relation.stores.store_path import StorePath

__all__ = ["MirroredFiles", "bad_pages"]

_FILL_BYTES = 1 << 20  # bytes per request while the tier is filled
_FILL_AT_ONCE = 4  # concurrent requests while the tier is filled
_PROBED_PAGES = 1024  # maximum pages of the temporary file that measures the disk
_READ_AT_ONCE = 64
"""Pages read per step if a call has some pages that are not cached. They are read into a separate buffer, because
pages from the store arrive in the caller's frames meanwhile."""
_LATER = 64
"""Most pages that wait to be written to the tier."""

_probed: dict[tuple[int, int, int], DeviceProfile] = {}
"""Profiles measured in this process, by disk, page size and depth."""

Brought = Callable[[int, int], Frames]
"""Fetches a run of pages from the store, given the first page and the number of pages."""


class MirroredFiles:
    """Mirrors of the objects of a device. Page ids are those of the device."""

    def __init__(
        self,
        tier: LocalTier,
        objects: Sequence[tuple[StorePath, ObjectStatus, int]],
        page_bytes: int,
        bound: Sequence[bool],
        depth: int,
    ) -> None:
        self._tier, self._page_bytes = tier, page_bytes
        self._starts = np.cumsum([0, *(pages for _, _, pages in objects)], dtype=np.int64)
        names = zip(objects, bound, strict=True)
        self._seeds = np.array([file_seed(one[0].name) if is_bound else 0 for one, is_bound in names], np.uint64)
        self._mirrors: list[Mirror] = []
        with contextlib.ExitStack() as undo:
            for place, status, pages in objects:
                self._mirrors.append(tier.mirror(place, status, pages, page_bytes))
                undo.callback(self._mirrors[-1].close)
            files = [(mirror.path, pages) for mirror, (_, _, pages) in zip(self._mirrors, objects, strict=True)]
            self._files = FileDevice(files, page_bytes, bound=bound, depth=depth)
            undo.pop_all()
        self._ended = threading.Event()
        self._filling: threading.Thread | None = None
        self._keeping: threading.Thread | None = None
        self._starting = threading.Lock()
        self._later: queue.Queue[tuple[int, Frames] | None] = queue.Queue(_LATER)

    def there(self, pages: Ints) -> Bools:
        """Return which pages are marked as cached, and record that all of them were requested."""
        there = np.zeros(len(pages), bool)
        for number, mine in self._by_file(pages):
            there[mine] = self._mirrors[number].there(pages[mine] - self._starts[number])
        return there

    def read(self, pages: Ints, frames: Frames, there: Bools) -> Bools:
        """Read the pages marked as cached into their frames, and return which arrived intact; other frames stay."""
        if there.all():
            try:
                self._files.read(pages, frames)
                return there
            except (CorruptPageError, DeviceError):
                pass  # a page was evicted meanwhile, or is damaged: find out which
        found = np.zeros(len(pages), bool)
        here = np.flatnonzero(there)
        room = self._files.allocate(min(here.size, _READ_AT_ONCE))
        for begin in range(0, here.size, _READ_AT_ONCE):
            some = here[begin : begin + _READ_AT_ONCE]
            rows, ids = room[: some.size], pages[some]
            with self._files._reader.in_use():
                self._files._reader.transfer(ids, rows, verify=False)
            bad = bad_pages(frozen(rows.view(np.uint64)), frozen(ids), frozen(self._starts), frozen(self._seeds))
            frames[some[~bad]] = rows[~bad]
            found[some[~bad]] = True
            for number, mine in self._by_file(ids[bad]):
                self._mirrors[number].forget(ids[bad][mine] - self._starts[number])
        return found

    def wanted(self, pages: Ints) -> Bools | None:
        """Return which pages to keep when they arrive; None means keep all of them, because there is room."""
        if self._tier.has_room(self._page_bytes):
            return None
        worth = np.zeros(len(pages), np.bool_)
        for number, mine in self._by_file(pages):
            worth[mine] = self._tier.worth(self._mirrors[number], pages[mine] - self._starts[number])
        return worth

    def keep_later(self, pages: Ints, frames: Frames) -> None:
        """Queue pages for a background thread to keep. If the queue is full, drop them: reading has priority.

        The frames belong to that thread from then on.
        """
        for page, frame in zip(pages.tolist(), frames, strict=True):
            with contextlib.suppress(queue.Full):
                self._later.put_nowait((page, frame[None]))
        self._have_keeper()

    def _have_keeper(self) -> None:
        with self._starting:
            if self._keeping is None:
                self._keeping = threading.Thread(target=self._keep_later, name="keeping", daemon=True)
                self._keeping.start()

    def _keep_later(self) -> None:
        while (next_ := self._later.get()) is not None:
            with contextlib.suppress(OSError):  # a read will report the disk's error
                self.keep(*next_)

    def _forget_later(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._later.get_nowait()

    def keep(self, first: int, frames: Frames) -> bool:
        """Keep a run of pages of one object; return False if some are damaged or there is no room."""
        if self._bad(first, frames):
            return False
        number = int(np.searchsorted(self._starts, first, side="right")) - 1
        return self._tier.keep(self._mirrors[number], first - int(self._starts[number]), frames)

    def _bad(self, first: int, frames: Frames) -> bool:
        pages = np.arange(first, first + len(frames))
        return bool(bad_pages(frozen(frames.view(np.uint64)), pages, frozen(self._starts), frozen(self._seeds)).any())

    def blended(self, store: DeviceProfile) -> DeviceProfile:
        """Return what reads cost if the tier holds as much of R as its budget allows."""
        share = min(1.0, self._tier.budget / max(1, int(self._starts[-1]) * self._page_bytes))
        try:
            local = _disk_profile(self._tier.root, self._page_bytes, self._files.depth)
        except OSError:  # a disk without room for a probe has none for pages
            return store

        def mixed(here: float, there: float) -> float:
            return share * here + (1 - share) * there

        return replace(
            store,
            seek_seconds=mixed(local.seek_seconds, store.seek_seconds),
            transfer_seconds=mixed(local.transfer_seconds, store.transfer_seconds),
            random_reads_per_second=1 / mixed(1 / local.random_reads_per_second, 1 / store.random_reads_per_second),
            sequential_bytes_per_second=1
            / mixed(1 / local.sequential_bytes_per_second, 1 / store.sequential_bytes_per_second),
        )

    def fill(self, brought: Brought, count: Callable[[int, int], None]) -> None:
        """Start fetching all missing pages, if all of them fit without an eviction and this has not been started."""
        if self._filling is not None:
            return
        missing = sum(int(np.count_nonzero(mirror.state & 1 == 0)) for mirror in self._mirrors) * self._page_bytes
        if missing > self._tier.spare:
            return
        self._filling = threading.Thread(target=self._fill, args=(brought, count), name="filling", daemon=True)
        self._filling.start()

    def _fill(self, brought: Brought, count: Callable[[int, int], None]) -> None:
        with ThreadPoolExecutor(_FILL_AT_ONCE, "filling") as pool:
            for number, mirror in enumerate(self._mirrors):
                with contextlib.ExitStack() as stack:
                    stack.enter_context(contextlib.suppress(OSError, SemistreamError))  # a later read reports it
                    turn = os.open(mirror.path.parent, os.O_RDONLY | os.O_CLOEXEC)
                    stack.callback(os.close, turn)
                    fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if another process is filling
                    work = partial(self._fill_run, brought, count, number)
                    most = max(1, _FILL_BYTES // self._page_bytes)
                    list(pool.map(work, range(0, mirror.state.size, most)))

    def _fill_run(self, brought: Brought, count: Callable[[int, int], None], number: int, first: int) -> None:
        """Fetch what is missing of a range of pages, unless this device is closed or there is no room left."""
        most = max(1, _FILL_BYTES // self._page_bytes)
        absent = first + np.flatnonzero(self._mirrors[number].state[first : first + most] & 1 == 0)
        if not absent.size or self._ended.is_set() or self._tier.spare < absent.size * self._page_bytes:
            return
        begin, length = int(absent[0]), int(absent[-1] - absent[0] + 1)
        base = int(self._starts[number])
        frames = brought(base + begin, length)
        count(1, length * self._page_bytes)
        if self._bad(base + begin, frames):  # a read of the page will report it
            return
        while not (self._ended.is_set() or self._tier.keep(self._mirrors[number], begin, frames)):
            if self._tier.full or self._tier.spare < frames.nbytes:
                return
            time.sleep(0.001)  # others are writing to the tier just now

    def _by_file(self, pages: Ints) -> list[tuple[int, Ints]]:
        """Return (object, indexes of its pages) for each object that has some of the pages."""
        if len(self._mirrors) == 1:
            return [(0, np.arange(len(pages)))]
        files = np.searchsorted(self._starts, pages, side="right") - 1
        return [(int(number), np.flatnonzero(files == number)) for number in np.unique(files)]

    def close(self) -> None:
        """Close the files after pages in flight have arrived."""
        self._ended.set()
        if self._filling is not None and self._filling is not threading.current_thread():
            self._filling.join()
        if self._keeping is not None:
            self._forget_later()  # pages that wait to be kept are dropped: not worth the delay
            self._later.put(None)
            self._keeping.join()
        self._files.close()
        for mirror in self._mirrors:
            mirror.close()


def _disk_profile(root: Path, page_bytes: int, depth: int) -> DeviceProfile:
    """Return what direct reads cost on the disk of a tier, measured once per process on a temporary file."""
    known = root.stat().st_dev, page_bytes, depth
    if known not in _probed:
        frames = np.zeros((min(_PROBED_PAGES, (16 << 20) // page_bytes), page_bytes), np.uint8)
        seal(frames, 0)
        with tempfile.NamedTemporaryFile(dir=root, prefix=".probe-") as file:
            file.write(frames.reshape(-1).data)
            file.flush()
            os.fsync(file.fileno())
            with FileDevice([(Path(file.name), len(frames))], page_bytes, depth=depth) as device:
                _probed[known] = device.measure(0.04)
    return _probed[known]


@kernel
def bad_pages(words: NDArray[np.uint64], pages: Ints, starts: Ints, seeds: NDArray[np.uint64]) -> Bools:
    """Return which rows of ``words`` fail the checksum of their page."""
    bad = np.zeros(pages.size, np.bool_)
    for i in range(pages.size):
        file = np.searchsorted(starts, pages[i], side="right") - 1
        bad[i] = checksum_words(words[i], pages[i] - starts[file], seeds[file]) != words[i, 0]
    return bad
