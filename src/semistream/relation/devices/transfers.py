"""Compiled loops that read pages from files into memory, without the GIL.

Each takes a list of page ids and makes one request of each run of consecutive ids. It verifies the checksum of every
page while the page is still in the processor's cache:

* `read_queued` keeps many requests in flight from one thread through Linux's native asynchronous I/O
  (``io_submit``, ``io_getevents``). It fills free slots of the queue *before* it checks the pages that just arrived,
  so the device and the processor work in parallel. It needs ``O_DIRECT``: on a buffered file ``io_submit`` blocks.
* `read_simple` reads one request after the other with ``pread``. On a buffered file it advises the kernel of the next
  requests (``POSIX_FADV_WILLNEED``); the kernel starts them, so several are in flight. On a direct file several
  threads run it in parallel, each with its share.

Both return one of the outcomes below and store details in ``report``: the index of the page concerned, the system's
error number, and the number of runs of consecutive pages.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Ints
from semistream.core.compiled import Int, kernel
from semistream.relation.devices.system_calls import (
    EINTR,
    EIO,
    IO_GETEVENTS,
    IO_SUBMIT,
    WILL_NEED,
    advise,
    error_place,
    pread,
    system,
)
from semistream.relation.storage.checksum import checksum_words

__all__ = [
    "BAD_CHECKSUM",
    "DONE",
    "ENDED",
    "FAILED",
    "NO_QUEUE",
    "NO_SUCH_PAGE",
    "SECTOR",
    "first_bad_frame",
    "read_queued",
    "read_simple",
]

DONE = 0
NO_SUCH_PAGE = 1
"""``report[0]`` is the index of an id outside the files; nothing was read."""
BAD_CHECKSUM = 2
"""Page ``report[0]`` is not what was written."""
ENDED = 3
"""The file ended before page ``report[0]`` did."""
FAILED = 4
"""Reading page ``report[0]`` failed with error ``report[1]``."""
NO_QUEUE = 5
"""The queue refused with error ``report[1]``. Nothing is in flight, and another read method may work."""

# A direct read can continue only at a sector boundary. A partial sector at the end of a truncated file is read again,
# and then the file ends.
SECTOR = 512

Words = NDArray[np.uint64]


@kernel
def _file_of(starts: Ints, page: int) -> int:
    low, high = 0, starts.size - 1
    while high - low > 1:
        middle = (low + high) // 2
        if starts[middle] <= page:
            low = middle
        else:
            high = middle
    return low


@kernel
def _run_length(pages: Ints, first: Int, stop: int, most: int, end: int) -> int:
    """Return how many pages from index ``first`` on have consecutive ids below ``end``, ``most`` at most."""
    length = 1
    while (
        length < most
        and first + length < stop
        and pages[first + length] == pages[first] + length
        and pages[first] + length < end
    ):
        length += 1
    return length


@kernel
def _is_new_run(pages: Ints, at: Int, file_start: int) -> bool:
    """Whether index ``at`` begins a run, rather than continuing one that was split into several requests."""
    return at == 0 or pages[at] != pages[at - 1] + 1 or pages[at] == file_start


@kernel
def _first_absent(pages: Ints, first: Int, stop: int, count: int) -> int:
    for i in range(first, stop):
        if pages[i] < 0 or pages[i] >= count:
            return i
    return -1


@kernel
def first_bad_frame(frames: Words, first: int, count: int, first_id: int, seed: np.uint64) -> int:
    """Return the first of ``count`` frames that fails its checksum, or -1. Page ids count up from ``first_id``."""
    for i in range(count):
        if checksum_words(frames[first + i], first_id + i, seed) != frames[first + i, 0]:
            return first + i
    return -1


@kernel
def read_simple(
    files: NDArray[np.int32],
    starts: Ints,
    seeds: Words,
    pages: Ints,
    frames: Words,
    first: int,
    stop: int,
    most: int,
    ahead: int,
    verify: bool,
    report: Ints,
) -> int:
    """Read the pages of indexes ``first..stop`` one request at a time.

    Parameters
    ----------
    files, starts, seeds
        File descriptors; the global id of the first page of each file, then the number of all pages; and the checksum
        seed of each file, which is combined with the page id.
    pages, frames
        Global ids, and one row of words for each.
    most
        Maximum pages of a request.
    ahead
        Number of requests that the kernel is advised of in advance; 0 for direct files.
    verify
        False only to measure what checking costs.
    report
        Output, three numbers: index, error number, runs.
    """
    absent = _first_absent(pages, first, stop, starts[-1])
    if absent >= 0:
        report[0] = absent
        return NO_SUCH_PAGE
    page_bytes = frames.shape[1] * 8
    address = frames.ctypes.data
    told, told_requests = first, 0
    requests, runs = 0, 0
    at = first
    while at < stop:
        while ahead > 0 and told < stop and told_requests - requests < ahead:
            file = _file_of(starts, pages[told])
            length = _run_length(pages, told, stop, most, starts[file + 1])
            advise(files[file], (pages[told] - starts[file]) * page_bytes, length * page_bytes, WILL_NEED)
            told += length
            told_requests += 1
        file = _file_of(starts, pages[at])
        length = _run_length(pages, at, stop, most, starts[file + 1])
        first_id = pages[at] - starts[file]
        size = length * page_bytes
        done = 0
        while done < size:
            got = pread(files[file], address + at * page_bytes + done, size - done, first_id * page_bytes + done)
            if got < 0:
                error = error_place()[0]
                if error == EINTR:
                    continue
                report[0], report[1] = at + done // page_bytes, error
                return FAILED
            if got < size - done and ahead == 0:
                got -= got % SECTOR
            if got == 0:
                report[0] = at + done // page_bytes
                return ENDED
            done += got
        requests += 1
        runs += _is_new_run(pages, at, starts[file])
        report[2] = runs
        if verify:
            bad = first_bad_frame(frames, at, length, first_id, seeds[file])
            if bad >= 0:
                report[0] = bad
                return BAD_CHECKSUM
        at += length
    return DONE


@kernel
def read_queued(
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
    slots: Ints,
    report: Ints,
) -> int:
    """Read all pages with up to ``depth`` requests in flight. Other parameters are as in `read_simple`.

    Parameters
    ----------
    queue
        The context from ``io_setup``. No other thread may use it meanwhile.
    window
        Maximum bytes in flight, in addition to ``depth``. With too many, long requests all complete together, and
        checking them no longer overlaps with reading.
    control, pointers, events, slots
        Buffers for ``depth`` control blocks (8 words: data, key, operation and file, address, size, offset, 2
        unused), their addresses, events (4 words: data, block, result, 0), and 7 × ``depth`` numbers for this loop.
    """
    count = pages.size
    at: Int = np.int64(0)  # with a plain int, Numba would also compile every callee for the constant 0
    absent = _first_absent(pages, at, count, starts[-1])
    if absent >= 0:
        report[0] = absent
        return NO_SUCH_PAGE
    page_bytes = frames.shape[1] * 8
    address = frames.ctypes.data
    # Per slot, for its request: index of the first page, number of pages, bytes that have arrived.
    begin, length, arrived = slots[0], slots[1], slots[2]
    # `ready` holds slots to submit; `check_first` and `check_length` hold complete requests to check.
    free, ready, check_first, check_length = slots[3], slots[4], slots[5], slots[6]
    free_count, ready_count, check_count = depth, 0, 0
    for i in range(depth):
        free[i] = i
    in_flight, runs = 0, 0
    waiting_bytes = 0
    outcome = DONE

    while True:
        # Fill free slots. After a failure, only wait for requests in flight: the device still writes into memory
        # that the caller may free after we return.
        while outcome == DONE and free_count > 0 and at < count:
            file = _file_of(starts, pages[at])
            run = _run_length(pages, at, count, most, starts[file + 1])
            if waiting_bytes > 0 and waiting_bytes + run * page_bytes > window:
                break
            waiting_bytes += run * page_bytes
            free_count -= 1
            slot = free[free_count]
            begin[slot], length[slot], arrived[slot] = at, run, 0
            ready[ready_count] = slot
            ready_count += 1
            runs += _is_new_run(pages, at, starts[file])
            at += run
        if outcome != DONE:
            ready_count = 0
        for i in range(ready_count):
            slot = ready[i]
            page = pages[begin[slot]]
            file = _file_of(starts, page)
            done = arrived[slot]
            block = control[slot]
            block[0] = np.uint64(slot)
            block[1] = np.uint64(0)
            block[2] = np.uint64(files[file]) << np.uint64(32)
            block[3] = np.uint64(address + begin[slot] * page_bytes + done)
            block[4] = np.uint64(length[slot] * page_bytes - done)
            block[5] = np.uint64((page - starts[file]) * page_bytes + done)
            block[6] = np.uint64(0)
            block[7] = np.uint64(0)
            pointers[i] = np.uint64(control.ctypes.data + slot * 64)
        submitted = 0
        while submitted < ready_count:
            taken = system(IO_SUBMIT, queue, ready_count - submitted, pointers.ctypes.data + submitted * 8, 0, 0)
            if taken <= 0:
                error = error_place()[0] if taken < 0 else EIO
                if error == EINTR:
                    continue
                if in_flight == 0 and outcome == DONE:
                    report[1] = error
                    outcome = NO_QUEUE
                break
            submitted += taken
            in_flight += taken
        # Requests that the queue did not accept are submitted again after some completions.
        for i in range(submitted, ready_count):
            ready[i - submitted] = ready[i]
        ready_count -= submitted

        if verify and outcome == DONE:
            for i in range(check_count):
                first = check_first[i]
                page = pages[first]
                file = _file_of(starts, page)
                bad = first_bad_frame(frames, first, check_length[i], page - starts[file], seeds[file])
                if bad >= 0:
                    report[0] = bad
                    outcome = BAD_CHECKSUM
                    break
        check_count = 0

        if in_flight == 0:
            if outcome != DONE or (at == count and ready_count == 0):
                report[2] = runs
                return outcome
            continue
        happened = system(IO_GETEVENTS, queue, 1, depth, events.ctypes.data, 0)
        if happened < 0:
            error = error_place()[0]
            if error == EINTR:
                continue
            # The caller must destroy the queue, which waits for requests in flight.
            report[1] = error
            return NO_QUEUE
        in_flight -= happened
        for i in range(happened):
            slot, got = events[i, 0], events[i, 2]
            wanted = length[slot] * page_bytes - arrived[slot]
            if got == wanted:
                check_first[check_count], check_length[check_count] = begin[slot], length[slot]
                check_count += 1
                waiting_bytes -= length[slot] * page_bytes
                free[free_count] = slot
                free_count += 1
                continue
            got -= got % SECTOR if got > 0 else 0
            if got > 0 or got == -EINTR:
                arrived[slot] += max(got, 0)
                ready[ready_count] = slot
                ready_count += 1
            elif outcome == DONE:
                report[0] = begin[slot] + arrived[slot] // page_bytes
                report[1] = -got
                outcome = ENDED if got == 0 else FAILED
