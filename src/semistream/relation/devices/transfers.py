"""A compiled loop that reads pages from files into memory with ``pread``, without the GIL, and outcomes of all reads.

`read_simple` takes a list of page ids and makes one request of each run of consecutive ids. It verifies the checksum of
every page while the page is still in the processor's cache. It reads one request after the other. On a buffered file
it advises the kernel of the next requests (``POSIX_FADV_WILLNEED``); the kernel starts them, so several are in flight.
On a direct file several threads run it in parallel, each with its share. `semistream.relation.devices.page_ring` has
the loop that keeps many requests in flight from one thread.

Both return one of the outcomes below and store details in ``report``: the index of the page concerned, the system's
error number, and the number of runs of consecutive pages.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Ints
from semistream.core.compiled import Int, kernel
from semistream.relation.devices.system_calls import EINTR, WILL_NEED, advise, error_place, pread
from semistream.relation.storage.checksum import checksum_words

__all__ = [
    "BAD_CHECKSUM",
    "DONE",
    "ENDED",
    "FAILED",
    "NO_QUEUE",
    "NO_SUCH_PAGE",
    "SECTOR",
    "first_absent",
    "first_bad_frame",
    "read_simple",
    "run_length",
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
def run_length(pages: Ints, first: Int, stop: int, most: int, end: int) -> int:
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
def first_absent(pages: Ints, first: Int, stop: int, count: int) -> int:
    """Return the first index in ``first..stop`` whose id is not one of ``count`` pages, or -1."""
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
    absent = first_absent(pages, first, stop, starts[-1])
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
            length = run_length(pages, told, stop, most, starts[file + 1])
            advise(files[file], (pages[told] - starts[file]) * page_bytes, length * page_bytes, WILL_NEED)
            told += length
            told_requests += 1
        file = _file_of(starts, pages[at])
        length = run_length(pages, at, stop, most, starts[file + 1])
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
