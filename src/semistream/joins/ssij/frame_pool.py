"""Frames that pages of R and stream tuples share: each takes a frame when it needs memory, and frees it when done.

One block of memory is divided into frames of a page each. A frame holds a cached page, or a part of a *log*: records
that are appended, read in this order, and freed together. The use of a frame changes constantly, so memory moves
between pages and tuples without being allocated or copied (SSIJ §IV-A). Records begin at multiples of eight bytes and
never cross a frame boundary. An *address* is a record's position in the block, in words of eight bytes.
"""

from __future__ import annotations

import mmap
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.core.compiled import Int, inner_kernel, kernel

__all__ = ["FrameLog", "FramePool", "Pool", "reserve", "reserve_bytes", "walk"]


# Places in the state of a pool.
FREE, LOGGED, LIMIT, BYTES = 0, 1, 2, 3
# Places in the state of a log.
FRONT, BACK, COUNT, FRAMES, OFFSET = 0, 1, 2, 3, 4


class Pool(NamedTuple):
    """The arrays of a pool, as kernels see them."""

    flat: Bytes
    words: Ints  # the same memory as 64-bit numbers
    halves: NDArray[np.uint32]  # and as 32-bit ones
    reals: NDArray[np.float64]  # and as floats
    free: Slots  # a stack of free frames
    after: Slots  # the next frame of the same log
    used: Slots  # bytes that a log has written into the frame
    state: Ints


# Kernels take the arrays that they need, not the whole pool: getting an array from a tuple counts references, which in
# a loop costs more than the work itself.


@inner_kernel
def frames_left(state: Ints) -> Int:
    """Return how many frames logs may still take."""
    left: Int = min(state[FREE], state[LIMIT] - state[LOGGED])
    return left


@inner_kernel
def fits(used: Slots, state: Ints, log: Ints, size: Int) -> bool:
    """Return whether a record of ``size`` bytes fits into the last frame of a log."""
    fitting: bool = log[FRAMES] > 0 and used[log[BACK]] + size <= state[BYTES]
    return fitting


@inner_kernel
def reserve_bytes(free: Slots, after: Slots, used: Slots, state: Ints, log: Ints, size: Int, spare: Int) -> Int:
    """Make room for a record of ``size`` bytes at the end of a log; return its first byte.

    Returns -1 if this needs a new frame and at most ``spare`` frames are left.
    """
    if not fits(used, state, log, size):
        if frames_left(state) <= spare:
            return np.int64(-1)
        state[FREE] -= 1
        state[LOGGED] += 1
        new = free[state[FREE]]
        after[new] = -1
        used[new] = 0
        if log[FRAMES] == 0:
            log[FRONT] = new
            log[OFFSET] = 0
        else:
            after[log[BACK]] = new
        log[BACK] = new
        log[FRAMES] += 1
    frame = log[BACK]
    at: Int = frame * state[BYTES] + used[frame]
    used[frame] += size
    log[COUNT] += 1
    return at


@inner_kernel
def reserve(free: Slots, after: Slots, used: Slots, state: Ints, log: Ints, size: Int, spare: Int) -> Int:
    """Same as `reserve_bytes`, for a multiple of eight bytes; return the record's address, or -1."""
    address: Int = reserve_bytes(free, after, used, state, log, size, spare) >> 3
    return address


@inner_kernel
def walk(after: Slots, used: Slots, frame: Int, offset: Int) -> tuple[Int, Int]:
    """Return frame and offset of the record at a position, which may be past the end of its frame; -1 is the end."""
    while frame >= 0 and offset >= used[frame]:
        frame = np.int64(after[frame])
        offset = np.int64(0)
    return frame, offset


@inner_kernel
def free_up_to(free: Slots, after: Slots, state: Ints, log: Ints, frame: Int) -> None:
    """Free the frames of a log from its front up to ``frame``, which is not freed (-1: free all)."""
    front = log[FRONT] if log[FRAMES] > 0 else np.int64(-1)
    while front != frame:
        free[state[FREE]] = front
        state[FREE] += 1
        state[LOGGED] -= 1
        log[FRAMES] -= 1
        front = np.int64(after[front])
    log[FRONT] = front


@kernel
def _clear(free: Slots, after: Slots, state: Ints, log: Ints) -> None:
    free_up_to(free, after, state, log, np.int64(-1))
    log[COUNT] = 0
    log[OFFSET] = 0


class FramePool:
    """A block of frames and their owners.

    Parameters
    ----------
    frames
        One frame per array row, from `Device.allocate`, so that pages can be read into them.
    log_limit
        Maximum frames that logs hold together; by default all.

    Notes
    -----
    Holds the frames and `bytes_per_frame` for each. A frame is taken or freed in constant time: free frames are a
    stack. This class does not read from R.
    """

    bytes_per_frame = 12
    """Bytes of a frame in addition to its page."""
    most_bytes = (1 << 34) - (1 << 20)
    """Maximum bytes of a pool: addresses have 31 bits, and a few values are reserved."""

    def __init__(self, frames: Bytes, log_limit: int | None = None) -> None:
        self.frames = frames
        self.count, self.frame_bytes = int(frames.shape[0]), int(frames.shape[1])
        flat = frames.reshape(-1)
        state = np.array([self.count, 0, self.count if log_limit is None else log_limit, self.frame_bytes], np.int64)
        self.arrays = Pool(
            flat=flat,
            words=flat.view(np.int64),
            halves=flat.view(np.uint32),
            reals=flat.view(np.float64),
            free=np.arange(self.count - 1, -1, -1, dtype=np.int32),
            after=np.full(self.count, -1, np.int32),
            used=np.zeros(self.count, np.int32),
            state=state,
        )
        self._lent: Slots = np.empty(0, np.int32)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, without lent frames."""
        bookkeeping = self.arrays.free.nbytes + self.arrays.after.nbytes + self.arrays.used.nbytes
        return int((self.count - self.lent) * self.frame_bytes + bookkeeping)

    @property
    def free(self) -> int:
        """Number of free frames."""
        return int(self.arrays.state[FREE])

    @property
    def logged(self) -> int:
        """Number of frames that logs hold."""
        return int(self.arrays.state[LOGGED])

    @property
    def left_for_logs(self) -> int:
        """Number of frames that logs may still take."""
        return int(frames_left(self.arrays.state))

    @property
    def lent(self) -> int:
        """Number of frames whose memory was lent to other parts of the budget."""
        return self._lent.size

    def limit_logs(self, frames: int) -> None:
        """Set the maximum frames that logs hold together; frames that they already hold stay. Constant time."""
        self.arrays.state[LIMIT] = frames

    def lend(self, count: int) -> None:
        """Return the memory of ``count`` free frames to the system, so that it can be used for something else.

        Takes ``n log n`` time for n frames, and one system call per run of adjacent frames.
        """
        assert 0 <= count <= self.free, f"{count} frames requested, {self.free} are free"
        state, free = self.arrays.state, self.arrays.free
        taken = np.sort(free[state[FREE] - count : state[FREE]])
        state[FREE] -= count
        self._lent = np.concatenate([self._lent, taken])
        for run in np.split(taken, np.flatnonzero(np.diff(taken) != 1) + 1):
            if run.size:
                _discard(self.frames, int(run[0]), int(run[-1]) + 1)

    def take_back(self, count: int) -> None:
        """Take ``count`` lent frames back, in time linear in all lent frames; writing allocates memory."""
        state = self.arrays.state
        self.arrays.free[state[FREE] : state[FREE] + count] = self._lent[:count]
        state[FREE] += count
        self._lent = self._lent[count:]

    def check(self, logs: list[FrameLog], others: Slots) -> None:
        """Assert that every frame is free, lent, in one of the logs, or in ``others``; ``n log n`` for n frames."""
        held = [self.arrays.free[: self.free], self._lent, others, *(log.frames() for log in logs)]
        everyone = np.sort(np.concatenate(held))
        assert np.array_equal(everyone, np.arange(self.count)), f"{everyone.size} frames accounted for of {self.count}"
        assert sum(log.frames().size for log in logs) == self.logged, "logs hold another number of frames than counted"


class FrameLog:
    """Records in frames of a pool, appended at the back.

    Holds five numbers in addition to its frames. Appending takes constant time; walking takes time linear in the
    records that it passes. A frame is filled until the next record does not fit, so less than one record's length of it
    remains empty.
    """

    def __init__(self, pool: FramePool) -> None:
        self.pool = pool
        self.state = np.array([-1, -1, 0, 0, 0], np.int64)

    def __len__(self) -> int:
        return int(self.state[COUNT])

    def frames(self) -> Slots:
        """Return the frames of the log, in order; loops in Python, so only for checks."""
        frames = np.empty(int(self.state[FRAMES]), np.int32)
        frame = int(self.state[FRONT])
        for i in range(frames.size):
            frames[i] = frame
            frame = int(self.pool.arrays.after[frame])
        return frames

    def clear(self) -> None:
        """Free all records, in time linear in the frames, not in the records."""
        pool = self.pool.arrays
        _clear(pool.free, pool.after, pool.state, self.state)


def _discard(frames: Bytes, first: int, last: int) -> None:
    """Release the memory of some frames; they read as zeros until they are written again."""
    owner: object = frames
    while isinstance(owner, np.ndarray):
        block, owner = owner, owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if not isinstance(owner, mmap.mmap):
        return
    start = frames.ctypes.data - block.ctypes.data
    begin = -(-(start + first * frames.shape[1]) // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (start + last * frames.shape[1]) // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < end:
        owner.madvise(mmap.MADV_DONTNEED, begin, end - begin)
