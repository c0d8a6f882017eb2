"""Queues of the kernel for requests in flight, and how those that are done with are kept for others."""

from __future__ import annotations

import ctypes
import os
import threading

import numpy as np

from semistream.relation.devices import system_calls

__all__ = ["LONGEST_REQUEST", "SHORTEST_REQUEST", "Queue", "keep_queue", "take_queue"]

SHORTEST_REQUEST, LONGEST_REQUEST = 64 << 10, 256 << 10
"""A run that is longer than a request may be becomes several: an eighth of what a call asks for, in these limits.
Longer requests are submitted more cheaply, but a request is checked while others are read, so there must be others."""

_libc = ctypes.CDLL(None, use_errno=True)


class Queue:
    """One context of Linux's asynchronous I/O, and the memory that its requests are described in."""

    def __init__(self, depth: int) -> None:
        handle = ctypes.c_ulong(0)
        if _libc.syscall(system_calls.IO_SETUP, depth, ctypes.byref(handle)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"io_setup: {os.strerror(number)}")
        self.handle = int(handle.value)
        self.control = np.zeros((depth, 8), np.uint64)
        self.pointers = np.zeros(depth, np.uint64)
        self.events = np.zeros((depth, 4), np.int64)
        self.slots = np.zeros((7, depth), np.int64)

    def destroy(self) -> None:
        """Give the context back; waits for what is in flight."""
        _libc.syscall(system_calls.IO_DESTROY, ctypes.c_ulong(self.handle))


class _Spares:
    """Queues that closed readers leave to new ones.

    Giving a queue back to the kernel waits until all processors have passed a quiet point: tens of milliseconds, and
    on a busy machine a second. Who opens relations often, as a Spark task does, would wait longer than it reads.
    """

    MOST = 16

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: list[tuple[int, Queue]] = []

    def take(self, depth: int) -> Queue | None:
        """Return a queue of ``depth``, if there is one."""
        with self._lock:
            for at, (of_depth, queue) in enumerate(self._queues):
                if of_depth == depth:
                    del self._queues[at]
                    return queue
        return None

    def put(self, depth: int, queue: Queue) -> None:
        """Keep a queue in which nothing is in flight, or the one that was kept longest goes."""
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
    """Return a queue, kept or new; None if there is none to be had."""
    if not system_calls.HAS_QUEUE:
        return None
    try:
        return _spares.take(depth) or Queue(depth)
    except OSError:  # not in this kernel, forbidden here, or all taken by others
        return None


def keep_queue(depth: int, queue: Queue) -> None:
    """Keep a queue in which nothing is in flight for the next who takes one."""
    _spares.put(depth, queue)
