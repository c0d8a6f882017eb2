"""A ring of frames: requests are in flight at one end while the pages at the other end are searched.

A request occupies adjacent frames, directly after those of the previous request. Pages are handed over in the order of
their requests. So the device is busy until the last page is requested, and a search sees pages in order. Everything
here is compiled, for kernels that request pages and search them in one loop. The state of a ring is in arrays, so a
kernel can return and be entered again with requests in flight. `read_pages` is the loop for callers that want all pages
in memory first.

Requests go through Linux's native asynchronous I/O (``io_submit``, ``io_getevents``), which needs ``O_DIRECT``: on a
buffered file ``io_submit`` blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Ints
from semistream.core.compiled import Int, inner_kernel, kernel
from semistream.relation.devices.system_calls import EINTR, EIO, IO_GETEVENTS, IO_SUBMIT, error_place, system
from semistream.relation.devices.transfers import (
    BAD_CHECKSUM,
    DONE,
    ENDED,
    FAILED,
    NO_QUEUE,
    NO_SUCH_PAGE,
    SECTOR,
    first_absent,
    first_bad_frame,
    run_length,
)

__all__ = [
    "FIRST", "FRAME", "IN_FLIGHT", "LAST", "LENGTH", "OUTCOME", "PAGE", "PREPARED", "Places", "Ring",
    "arrive", "ask", "drain", "is_right", "oldest", "place_of", "read_pages", "release", "room_for", "submit",
]  # fmt: skip

Words = NDArray[np.uint64]

PAGE, PLACE, FRAME, LENGTH, ARRIVED, _END, _IS_RUN = 0, 1, 2, 3, 4, 5, 6
"""Fields of a request: first page; that page's place in the files; first frame; number of pages; bytes that have
arrived; head of the ring after the request; whether the request begins a run."""
REQUEST_WORDS = 7
QUEUE, CONTROL, POINTERS, EVENTS, FRAMES = 0, 1, 2, 3, 4
FIRST, LAST, _HEAD, _TAIL, PREPARED, IN_FLIGHT, BEHIND, _CHECKED = 5, 6, 7, 8, 9, 10, 11, 12
OUTCOME, CULPRIT, REASON, RUNS, PAGES = 13, 14, 15, 16, 17
STATE_WORDS = 18
"""Fields of a ring's state: the queue and memory addresses; numbers of the oldest and of the next request; frames
allocated and released since the start; requests not submitted yet, and requests in flight; the place after the last
requested page; requests checked so far. Then the outcome, the request that failed, and the error; and the runs and
pages that have arrived."""


class Places(NamedTuple):
    """Where pages are in the files: from each of ``bases`` on, at id + ``shift``, except the pages in ``changed``."""

    bases: Ints
    shift: Ints
    changed: Ints
    moved_to: Ints


class Ring(NamedTuple):
    """The arrays of a ring."""

    files: NDArray[np.int32]
    starts: Ints
    seeds: Words
    map: Places
    frames: Words
    control: Words
    pointers: Words
    events: Ints
    requests: Ints
    state: Ints


@inner_kernel
def _count_below(values: Ints, value: Int) -> Int:
    """Return how many of the ascending values are less than ``value``."""
    low: Int = 0
    high: Int = values.size
    while low < high:
        middle = (low + high) // 2
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@inner_kernel
def room_for(ring: Ring, pages: Int) -> Int:
    """Return how many frames to skip so that ``pages`` adjacent frames follow; -1 if there is no room now."""
    s, count = ring.state, ring.frames.shape[0]
    if s[LAST] - s[FIRST] == ring.control.shape[0]:
        return -1
    at = s[_HEAD] % count
    skipped = count - at if at + pages > count else 0
    return skipped if s[_HEAD] + skipped + pages - s[_TAIL] <= count else -1


@inner_kernel
def _lies_behind(pages: Places, at: Int, page: Int, place: Int) -> bool:
    """Whether entry ``at`` of the changed pages is ``page``, stored at ``place``."""
    return bool(at < pages.changed.size and pages.changed[at] == page and pages.moved_to[at] == place)


@inner_kernel
def place_of(ring: Ring, page: Int, most: Int) -> tuple[Int, Int]:
    """Return the place of a page, and how many pages from it on are adjacent in its file, ``most`` at most."""
    bases, changed, starts = ring.map.bases, ring.map.changed, ring.starts
    shard = _count_below(bases, page + 1) - 1
    place = np.int64(page + ring.map.shift[shard])
    pages: Int = most
    if shard + 1 < bases.size:
        pages = min(most, np.int64(bases[shard + 1]) - page)
    at = _count_below(changed, page)
    if at < changed.size:
        if changed[at] == page:
            place, pages = np.int64(ring.map.moved_to[at]), 1
            while pages < most and _lies_behind(ring.map, at + pages, page + pages, place + pages):
                pages += 1
        else:
            pages = min(pages, np.int64(changed[at]) - page)
    return place, min(pages, np.int64(starts[_count_below(starts, place + 1)]) - place)


@inner_kernel
def ask(ring: Ring, page: Int, place: Int, pages: Int, skipped: Int) -> None:
    """Request adjacent pages; the caller has checked that there is room. `submit` then starts the request."""
    s, r = ring.state, ring.requests
    slot = s[LAST] % ring.control.shape[0]
    s[_HEAD] += skipped
    r[PAGE, slot], r[PLACE, slot], r[FRAME, slot] = page, place, s[_HEAD] % ring.frames.shape[0]
    s[_HEAD] += pages
    r[LENGTH, slot], r[ARRIVED, slot], r[_END, slot] = pages, 0, s[_HEAD]
    r[_IS_RUN, slot] = place != s[BEHIND] or ring.starts[_count_below(ring.starts, place)] == place
    s[BEHIND] = place + pages
    s[LAST] += 1
    _prepare(ring, slot)


@inner_kernel
def _prepare(ring: Ring, slot: Int) -> None:
    s, r, block = ring.state, ring.requests, ring.control[slot]
    page_bytes, done = ring.frames.shape[1] * 8, r[ARRIVED, slot]
    file = _count_below(ring.starts, r[PLACE, slot] + 1) - 1
    block[0] = np.uint64(slot)
    block[1] = np.uint64(0)
    block[2] = np.uint64(ring.files[file]) << np.uint64(32)
    block[3] = np.uint64(s[FRAMES] + r[FRAME, slot] * page_bytes + done)
    block[4] = np.uint64(r[LENGTH, slot] * page_bytes - done)
    block[5] = np.uint64((r[PLACE, slot] - ring.starts[file]) * page_bytes + done)
    block[6] = np.uint64(0)
    block[7] = np.uint64(0)
    ring.pointers[s[PREPARED]] = np.uint64(s[CONTROL] + slot * 64)
    s[PREPARED] += 1


@inner_kernel
def submit(ring: Ring) -> None:
    """Submit all prepared requests, or as many as the queue accepts now."""
    s = ring.state
    taken: Int = 0
    while taken < s[PREPARED]:
        got = system(IO_SUBMIT, s[QUEUE], s[PREPARED] - taken, s[POINTERS] + taken * 8, 0, 0)
        if got <= 0:
            error = error_place()[0] if got < 0 else EIO
            if error == EINTR:
                continue
            if s[IN_FLIGHT] == 0:
                _fail(ring, np.int64(NO_QUEUE), s[FIRST] % ring.control.shape[0], np.int64(error))
            break
        taken += got
        s[IN_FLIGHT] += got
    for i in range(taken, s[PREPARED]):
        ring.pointers[i - taken] = ring.pointers[i]
    s[PREPARED] -= taken


@inner_kernel
def _fail(ring: Ring, outcome: Int, slot: Int, error: Int) -> None:
    """Record what went wrong with a request, unless an earlier failure is recorded.

    All callers pass int64: Numba would compile another version for each constant argument.
    """
    s = ring.state
    if s[OUTCOME] == DONE:
        s[OUTCOME], s[CULPRIT], s[REASON] = outcome, slot, error


@inner_kernel
def arrive(ring: Ring) -> bool:
    """Wait until something has arrived; return False if nothing has: a signal interrupted the wait, or it failed."""
    s, r, page_bytes = ring.state, ring.requests, ring.frames.shape[1] * 8
    happened = system(IO_GETEVENTS, s[QUEUE], 1, ring.control.shape[0], s[EVENTS], 0)
    if happened < 0:
        error = error_place()[0]
        if error != EINTR:
            # This overwrites an earlier failure. Destroying the queue will wait for the requests in flight.
            s[OUTCOME], s[REASON], s[IN_FLIGHT] = NO_QUEUE, error, 0
        return False
    s[IN_FLIGHT] -= happened
    for i in range(happened):
        slot, got = ring.events[i, 0], ring.events[i, 2]
        if got == r[LENGTH, slot] * page_bytes - r[ARRIVED, slot]:
            r[ARRIVED, slot] += got
            s[RUNS] += r[_IS_RUN, slot]
            s[PAGES] += r[LENGTH, slot]
        elif got > 0 or got == -EINTR:
            # A direct read can continue only at a sector boundary. A partial sector at the end of a file is read
            # again, and then the file ends.
            r[ARRIVED, slot] += max(got - got % SECTOR, 0)
            if got >= SECTOR or got == -EINTR:
                _prepare(ring, slot)
            else:
                _fail(ring, np.int64(ENDED), slot, np.int64(0))
        else:
            _fail(ring, np.int64(ENDED if got == 0 else FAILED), slot, -got)
    return True


@inner_kernel
def oldest(ring: Ring) -> Int:
    """Return the oldest request if all of it has arrived, else -1."""
    s, r = ring.state, ring.requests
    slot = s[FIRST] % ring.control.shape[0]
    whole = s[FIRST] < s[LAST] and r[ARRIVED, slot] == r[LENGTH, slot] * ring.frames.shape[1] * 8
    return slot if whole else -1


@inner_kernel
def is_right(ring: Ring, slot: Int) -> bool:
    """Check the pages of the oldest request, which has arrived, and record a failure."""
    s, r, starts = ring.state, ring.requests, ring.starts
    if s[_CHECKED] > s[FIRST]:
        return True
    frame, place = r[FRAME, slot], r[PLACE, slot]
    file = _count_below(starts, place + 1) - 1
    bad = first_bad_frame(ring.frames, frame, r[LENGTH, slot], place - starts[file], np.uint64(ring.seeds[file]))
    if bad >= 0:
        _fail(ring, np.int64(BAD_CHECKSUM), slot, bad - frame)
        return False
    s[_CHECKED] = s[FIRST] + 1
    return True


@inner_kernel
def release(ring: Ring) -> None:
    """Release the frames of the oldest request."""
    s = ring.state
    s[_TAIL] = ring.requests[_END, s[FIRST] % ring.control.shape[0]]
    s[FIRST] += 1


@kernel
def drain(ring: Ring) -> None:
    """Wait for requests in flight: they write into memory that will be reused."""
    while ring.state[IN_FLIGHT] > 0:
        arrive(ring)


@kernel
def read_pages(
    queue: int,
    files: NDArray[np.int32],
    starts: Ints,
    seeds: Words,
    pages: Ints,
    frames: Words,
    most: int,
    depth: int,
    window: int,
    verify: bool,
    control: Words,
    pointers: Words,
    events: Ints,
    requests: Ints,
    state: Ints,
    report: Ints,
) -> int:
    """Read each page into the frame of the same index, through a new ring over these frames; return an outcome.

    Free slots of the queue are filled *before* arrived pages are checked, so device and processor work in parallel.

    Parameters
    ----------
    queue
        The context that ``io_setup`` returned. No other thread may use it during the call.
    files, starts, seeds
        As in `semistream.relation.devices.transfers.read_simple`.
    pages
        Places of the pages in the files.
    most
        Maximum pages of a request.
    depth, window
        Maximum requests, and bytes, in flight. With too many bytes, long requests all complete together, and no read is
        left that checking could overlap with.
    verify
        False only to measure what checking costs.
    control, pointers, events, requests, state
        Memory for the system's request descriptors and for the state of the ring.
    report
        Receives three numbers, as in `semistream.relation.devices.transfers`: index, error number, runs.
    """
    at: Int = np.int64(0)  # with a plain int, Numba would also compile every callee for the constant 0
    absent = first_absent(pages, at, pages.size, starts[-1])
    if absent >= 0:
        report[0] = absent
        return NO_SUCH_PAGE
    nothing = np.zeros(1, np.int64)
    as_they_are = Places(nothing, nothing, nothing[:0], nothing[:0])
    ring = Ring(files, starts, seeds, as_they_are, frames, control, pointers, events, requests, state)
    s, r, count = state, requests, pages.size
    s[:] = 0
    s[QUEUE], s[CONTROL], s[POINTERS] = queue, control.ctypes.data, pointers.ctypes.data
    s[EVENTS], s[FRAMES], s[BEHIND] = events.ctypes.data, frames.ctypes.data, -1
    page_bytes, slots = frames.shape[1] * 8, control.shape[0]
    while s[OUTCOME] == DONE:
        while at < count and s[IN_FLIGHT] + s[PREPARED] < depth and s[LAST] - s[FIRST] < slots:
            file_end = starts[_count_below(starts, pages[at] + 1)]
            length = run_length(pages, at, count, most, file_end)
            if at > s[PAGES] and (at - s[PAGES] + length) * page_bytes > window:
                break
            ask(ring, pages[at], pages[at], length, 0)
            at += length
        submit(ring)
        slot = oldest(ring)
        if slot >= 0:
            if not verify or is_right(ring, slot):
                release(ring)
        elif s[IN_FLIGHT] > 0:
            arrive(ring)
        elif at == count:
            break
    while s[IN_FLIGHT] > 0:  # the device still writes into memory that the caller may free
        arrive(ring)
    outcome = s[OUTCOME]
    if outcome == BAD_CHECKSUM:
        report[0] = r[FRAME, s[CULPRIT]] + s[REASON]
    elif outcome != DONE:
        report[0], report[1] = r[FRAME, s[CULPRIT]] + r[ARRIVED, s[CULPRIT]] // page_bytes, s[REASON]
    report[2] = s[RUNS]
    return int(outcome)
