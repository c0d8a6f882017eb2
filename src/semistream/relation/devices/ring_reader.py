"""A ring of frames over open files, for loops that search pages as they arrive."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import frozen
from semistream.relation.devices import page_ring as at
from semistream.relation.devices.page_ring import Places
from semistream.relation.devices.request_queue import LONGEST_REQUEST, SHORTEST_REQUEST, Queue
from semistream.relation.devices.transfers import BAD_CHECKSUM, DONE, NO_QUEUE

__all__ = ["RingReader"]

_PARTS = 8
"""A request gets at most 1/8 of the frames, so that other requests are in flight while its pages are searched."""

_NONE = np.empty(0, np.int64)
_AS_THEY_ARE = Places(np.zeros(1, np.int64), np.zeros(1, np.int64), _NONE, _NONE)


class RingReader:
    """The state with which a compiled loop reads pages into frames, with requests in flight.

    Parameters
    ----------
    queue
        Belongs to the ring until `leave`.
    files, starts, seeds
        As in `PageReader`.
    frames
        Where pages are read to.
    places
        Where pages are stored in the files, if not in the order of their ids.
    home
        The list of idle queues to which `leave` returns the queue.
    """

    def __init__(
        self,
        queue: Queue,
        files: NDArray[np.int32],
        starts: Ints,
        seeds: NDArray[np.uint64],
        frames: Bytes,
        places: Places | None,
        home: list[Queue],
    ) -> None:
        words = frames.view(np.uint64)
        self.flat: Bytes = frames.reshape(-1)
        self.words: Ints = self.flat.view(np.int64)
        self.seconds = 0.0
        """Seconds spent in loops that read through the ring."""
        pages = min(max(frames.nbytes // _PARTS, SHORTEST_REQUEST), LONGEST_REQUEST) // frames.shape[1]
        self.most = max(1, min(pages, len(frames) // 2))
        """Maximum pages of a request."""
        state = np.zeros(at.STATE_WORDS, np.int64)
        state[at.QUEUE] = queue.handle
        state[at.CONTROL], state[at.POINTERS] = queue.control.ctypes.data, queue.pointers.ctypes.data
        state[at.EVENTS], state[at.FRAMES] = queue.events.ctypes.data, words.ctypes.data
        requests = np.zeros((at.REQUEST_WORDS, len(queue.control)), np.int64)
        self._queue, self._frames, self._home = queue, frames, home
        given = Places(*(frozen(array) for array in places or _AS_THEY_ARE))
        self.ring = at.Ring(
            files, starts, seeds, given, words, queue.control, queue.pointers, queue.events, requests, state
        )

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Measure the time of a loop that reads through the ring."""
        begin, self.ring.state[at.BEHIND] = time.perf_counter(), -1
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - begin

    @property
    def runs(self) -> int:
        """Runs of pages that have arrived."""
        return int(self.ring.state[at.RUNS])

    @property
    def pages(self) -> int:
        """Pages that have arrived."""
        return int(self.ring.state[at.PAGES])

    def finish(self) -> None:
        """Wait for requests in flight."""
        at.drain(self.ring)

    def leave(self) -> None:
        """Wait for requests in flight, and return the queue for reuse unless it failed."""
        self.finish()
        if self.refused:
            self._queue.destroy()
        else:
            self._home.append(self._queue)

    @property
    def refused(self) -> bool:
        """Whether the system refused requests. Another read method may still work."""
        return int(self.ring.state[at.OUTCOME]) == NO_QUEUE

    @property
    def failed(self) -> bool:
        """Whether a page could not be read, or is not what was written."""
        return int(self.ring.state[at.OUTCOME]) not in (DONE, NO_QUEUE)

    def failure(self) -> tuple[int, Ints, Ints, Bytes]:
        """Return the failure: outcome and report as from `PageReader.transfer`, pages and frames of the request."""
        state, requests = self.ring.state, self.ring.requests
        slot, outcome, reason = int(state[at.CULPRIT]), int(state[at.OUTCOME]), int(state[at.REASON])
        first, frame, pages = (int(requests[field, slot]) for field in (at.PLACE, at.FRAME, at.LENGTH))
        arrived = int(requests[at.ARRIVED, slot]) // self._frames.shape[1]
        report = np.array([reason, 0, 0] if outcome == BAD_CHECKSUM else [min(arrived, pages - 1), reason, 0])
        return outcome, report, frozen(np.arange(first, first + pages)), self._frames[frame : frame + pages]
