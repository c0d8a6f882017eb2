"""Keeps requests in flight through kernel queues, threads or readahead, for any number of reading threads.

A device reads its files with a `PageReader`, which owns the state that belongs to the running process. The loops
themselves are compiled: `semistream.relation.devices.page_ring`, `semistream.relation.devices.transfers`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Ints
from semistream.core.compiled import frozen
from semistream.relation.devices import transfers
from semistream.relation.devices.device import DeviceError, Frames
from semistream.relation.devices.page_ring import Places, read_pages
from semistream.relation.devices.request_queue import LONGEST_REQUEST, SHORTEST_REQUEST, Queue, keep_queue, take_queue
from semistream.relation.devices.ring_reader import RingReader

__all__ = ["Method", "PageReader"]

Method = Literal["queue", "threads", "readahead"]
"""How requests are kept in flight: see `semistream.relation.devices.file_device.FileDevice`."""

_SLOTS = 4
"""Slots of a queue, relative to the requests that a call keeps in flight. A ring releases requests in order, so a late
request must not block others. A join that reads through a ring uses all slots; otherwise it would use threads."""
LONG_REQUESTS = 3
"""Requests of the longest size that must be in flight to keep a device busy."""


class _Process:
    """State of one process. It must be recreated after a fork, because the child has no queue and no thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.condition = threading.Condition()
        self.reading = 0
        self.idle_queues: list[Queue] = []
        self.workers: ThreadPoolExecutor | None = None


class PageReader:
    """Reads pages of open files, and closes the files at the end.

    Parameters
    ----------
    descriptors
        Open files, which the reader now owns.
    starts, seeds
        ``starts``: global id of the first page of each file, then the number of all pages. ``seeds``: the checksum
        seed of each file.
    page_bytes, depth
        As in `semistream.relation.devices.file_device.FileDevice`.
    method
        None chooses between queue and threads.
    request_bytes
        Maximum size of a request in bytes. A longer run is split into several requests, of which ``depth`` are in
        flight. By default both limits are chosen for each call, so that checking pages overlaps with reading.
    """

    def __init__(
        self,
        descriptors: Sequence[int],
        starts: Ints,
        seeds: NDArray[np.uint64],
        page_bytes: int,
        depth: int,
        method: Method | None,
        *,
        request_bytes: int | None = None,
    ) -> None:
        self.depth = depth
        self._queue_depth = min(_SLOTS * depth, 1024)
        self._descriptors = list(descriptors)
        self._files = frozen(np.array(descriptors, np.int32))
        self._starts = frozen(starts)
        self._seeds = frozen(seeds)
        self._page_bytes = page_bytes
        self._request_bytes = request_bytes
        self._closed = False
        self._process = _Process()
        self.method: Method = method or self._best()

    def _best(self) -> Method:
        queue = self._take_queue()
        if queue is None:
            return "threads"
        self._process.idle_queues.append(queue)
        return "queue"

    def _here(self) -> _Process:
        if self._process.pid != os.getpid():
            self._process = _Process()
        return self._process

    @contextlib.contextmanager
    def in_use(self) -> Iterator[threading.Condition]:
        """Keep the files open while a thread reads. Every call of `transfer` must be inside this context.

        Yields a lock that no other process, parent or child, can hold.
        """
        process = self._here()
        with process.condition:
            if self._closed:
                raise DeviceError("the relation's files are closed; open the relation again")
            process.reading += 1
        try:
            yield process.condition
        finally:
            with process.condition:
                process.reading -= 1
                process.condition.notify_all()

    def take_ring(self, frames: Frames, places: Places | None) -> RingReader | None:
        """Return a ring over frames, or None if the system has no queue for it.

        Call it inside `in_use`, and return the ring with `RingReader.leave`.
        """
        if self.method != "queue":
            return None
        queue = self._take_queue()
        if queue is None:
            return None
        idle = self._process.idle_queues
        return RingReader(queue, self._files, self._starts, self._seeds, frames, places, idle)

    def transfer(
        self, pages: Ints, frames: Frames, *, depth: int | None = None, verify: bool = True
    ) -> tuple[int, Ints]:
        """Return one of the outcomes of `semistream.relation.devices.transfers`, and its report."""
        ids, words, report = frozen(pages), frames.view(np.uint64), np.zeros(3, np.int64)
        depth = self.depth if depth is None else depth
        most, window = self._limits(len(ids), depth)
        if self.method == "readahead":
            outcome = transfers.read_simple(
                self._files, self._starts, self._seeds, ids, words, 0, len(ids), most, depth, verify, report
            )
            return outcome, report
        outcome = transfers.NO_QUEUE
        if self.method == "queue":
            outcome = self._queued(ids, words, most, depth, window, verify, report)
        if outcome == transfers.NO_QUEUE:
            outcome = self._threaded(ids, words, most, depth, verify, report)
        return outcome, report

    def _limits(self, pages: int, depth: int) -> tuple[int, int]:
        """Return the maximum pages of a request, and the maximum bytes in flight, for a call that reads ``pages``."""
        size = self._request_bytes
        if size is not None:
            return max(1, size // self._page_bytes), depth * max(size, self._page_bytes)
        size = min(max(pages * self._page_bytes // 8, SHORTEST_REQUEST), LONGEST_REQUEST)
        most = max(1, size // self._page_bytes)
        return most, self._page_bytes * max(depth, LONG_REQUESTS * most)

    def _queued(
        self, ids: Ints, words: NDArray[np.uint64], most: int, depth: int, window: int, verify: bool, report: Ints
    ) -> int:
        queue = self._take_queue()
        if queue is None:
            return transfers.NO_QUEUE
        outcome = read_pages(
            queue.handle, self._files, self._starts, self._seeds, ids, words, most, depth, window, verify,
            queue.control, queue.pointers, queue.events, queue.requests, queue.state, report,
        )  # fmt: skip
        if outcome == transfers.NO_QUEUE:
            queue.destroy()
        else:
            self._process.idle_queues.append(queue)
        return outcome

    def _take_queue(self) -> Queue | None:
        with contextlib.suppress(IndexError):
            return self._process.idle_queues.pop()  # a list's pop and append need no lock
        return take_queue(self._queue_depth)

    def _threaded(self, ids: Ints, words: NDArray[np.uint64], most: int, depth: int, verify: bool, report: Ints) -> int:
        shares = min(depth, len(ids))
        ends = [len(ids) * share // shares for share in range(shares + 1)]
        reports = np.zeros((shares, 3), np.int64)

        def part(share: int) -> int:
            return transfers.read_simple(
                self._files, self._starts, self._seeds, ids, words, ends[share], ends[share + 1],
                most, 0, verify, reports[share],
            )  # fmt: skip

        if shares == 1:
            outcomes = [part(0)]
        else:
            process = self._process
            with process.condition:
                if process.workers is None:
                    process.workers = ThreadPoolExecutor(self.depth, "semistream-read")
            outcomes = list(process.workers.map(part, range(shares)))
        report[2] = reports[:, 2].sum()
        for outcome, of_share in zip(outcomes, reports, strict=True):
            if outcome != transfers.DONE:
                report[:2] = of_share[:2]
                return outcome
        return transfers.DONE

    def close(self) -> None:
        """Wait for reads in progress, then release everything. Closing twice is harmless."""
        process = self._here()
        with process.condition:
            self._closed = True
            process.condition.wait_for(lambda: process.reading == 0)
            queues, process.idle_queues = process.idle_queues, []
            workers, process.workers = process.workers, None
            while self._descriptors:
                os.close(self._descriptors.pop())
        for queue in queues:
            keep_queue(self._queue_depth, queue)
        if workers is not None:
            workers.shutdown()
