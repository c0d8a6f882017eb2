"""Arrays that can become longer or shorter without being copied: the system moves their pages, not their bytes."""

from __future__ import annotations

import contextlib
import mmap
import time
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["ElasticArrays"]

_LARGE = 8 << 20
_PATIENCE = 2.0
"""Seconds that a thread may take to put a task away that it has done."""


class ElasticArrays:
    """Arrays of zeros in this process, each of which can be resized.

    Memory that a shorter array does not need goes back to the system at once. What a longer one has more takes memory
    only when it is written to; what it holds until then is not said.

    Examples
    --------
    >>> arrays = ElasticArrays()
    >>> counts = arrays("counts", 4, np.int64)
    >>> counts[3] = 7
    >>> del counts  # no view of the old length may be left
    >>> arrays.resize("counts", 6)[:4].tolist()
    [0, 0, 0, 7]
    """

    def __init__(self) -> None:
        self._rooms: dict[str, tuple[mmap.mmap, np.dtype[Any]]] = {}

    def __call__(self, name: str, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return a new array ``name`` of ``count`` zeros."""
        kind = np.dtype(dtype)
        room = mmap.mmap(-1, max(1, count * kind.itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if count * kind.itemsize >= _LARGE:
            # who looks rows up all over a large array finds them sooner in large pages
            with contextlib.suppress(AttributeError, OSError):
                room.madvise(mmap.MADV_HUGEPAGE)
        self._rooms[name] = room, kind
        return np.frombuffer(room, kind, count)

    def resize(self, name: str, count: int) -> NDArray[Any]:
        """Return the array with another length, without a copy; nobody may hold a view of it any more."""
        room, kind = self._rooms[name]
        patience = time.monotonic() + _PATIENCE
        while True:
            try:
                room.resize(max(1, count * kind.itemsize))
                break
            except BufferError:
                # A thread that has given its answer holds the arrays it worked on until it has put its task away.
                if time.monotonic() > patience:
                    raise
                time.sleep(0.0005)
        return np.frombuffer(room, kind, count)
