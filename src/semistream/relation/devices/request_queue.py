"""Kernel queues for requests in flight, and a pool of idle queues for reuse."""

from __future__ import annotations

import ctypes
import os
import threading

import numpy as np

from semistream.relation.devices import system_calls
from semistream.relation.devices.page_ring import REQUEST_WORDS, STATE_WORDS

__all__ = ["LONGEST_REQUEST", "SHORTEST_REQUEST", "Queue", "keep_queue", "take_queue"]

SHORTEST_REQUEST, LONGEST_REQUEST = 64 << 10, 256 << 10
"""Bytes. A run that exceeds the maximum request is split. The maximum is an eighth of what a call reads, within these
limits. Longer requests are cheaper to submit, but each is checked while others are read, so several are needed."""

_libc = ctypes.CDLL(None, use_errno=True)


class Queue:
    """One context of Linux's asynchronous I/O, and the memory for its request descriptors."""

    def __init__(self, depth: int) -> None:
        handle = ctypes.c_ulong(0)
        if _libc.syscall(system_calls.IO_SETUP, depth, ctypes.byref(handle)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"io_setup: {os.strerror(number)}")
        self.handle = int(handle.value)
        self.control = np.zeros((depth, 8), np.uint64)
        self.pointers = np.zeros(depth, np.uint64)
        self.events = np.zeros((depth, 4), np.int64)
        self.requests = np.zeros((REQUEST_WORDS, depth), np.int64)
        self.state = np.zeros(STATE_WORDS, np.int64)

    def destroy(self) -> None:
        """Return the context to the kernel; waits for requests in flight."""
        _libc.syscall(system_calls.IO_DESTROY, ctypes.c_ulong(self.handle))


class _Spares:
    """Queues of closed readers, kept for new readers.

    Returning a queue to the kernel waits until all processors have passed a quiescent state: tens of milliseconds, and
    up to a second on a busy machine. A program that opens relations often, such as a Spark task, would wait longer
    than it reads.
    """

    MOST = 16

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: list[tuple[int, Queue]] = []

    def take(self, depth: int) -> Queue | None:
        """Return a kept queue of ``depth``, or None."""
        with self._lock:
            for at, (of_depth, queue) in enumerate(self._queues):
                if of_depth == depth:
                    del self._queues[at]
                    return queue
        return None

    def put(self, depth: int, queue: Queue) -> None:
        """Keep an idle queue. If there are too many, destroy the one kept longest."""
        with self._lock:
            self._queues.append((depth, queue))
            gone = self._queues.pop(0)[1] if len(self._queues) > self.MOST else None
        if gone is not None:
            gone.destroy()


_spares = _Spares()


def _forget_spares() -> None:
    global _spares
    _spares = _Spares()


os.register_at_fork(after_in_child=_forget_spares)  # a child has none of its parent's queues


def take_queue(depth: int) -> Queue | None:
    """Return a queue, kept or new; None if none is available."""
    if not system_calls.HAS_QUEUE:
        return None
    try:
        return _spares.take(depth) or Queue(depth)
    except OSError:  # not supported by this kernel, forbidden here, or the system's limit is reached
        return None


def keep_queue(depth: int, queue: Queue) -> None:
    """Keep an idle queue for the next call of `take_queue`."""
    _spares.put(depth, queue)
