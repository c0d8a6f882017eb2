"""Arrays that can become longer or shorter without being copied: the system moves their pages, not their bytes."""

from __future__ import annotations

import contextlib
import gc
import mmap
import time
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["ElasticArrays"]

_LARGE = 8 << 20
_ATTEMPTS = 200
"""How often it is looked whether a thread has put a task away that it has done."""


class ElasticArrays:
    """Arrays of zeros in this process, each of which can be resized.

    Memory that a shorter array does not need goes back to the system at once. What a longer one has more takes memory
    only when it is written to; what it holds until then is not said.

    Examples
    --------
    >>> arrays = ElasticArrays()
    >>> counts = arrays("counts", 4, np.int64)
    >>> counts[3] = 7
    >>> del counts  # a view of the old length would cost a copy
    >>> arrays.resize("counts", 6)[:4].tolist()
    [0, 0, 0, 7]
    """

    def __init__(self) -> None:
        self._rooms: dict[str, tuple[mmap.mmap, np.dtype[Any]]] = {}
        self.copies = 0
        """Arrays that were copied because somebody held a view: memory that was not given back at once."""

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
        """Return the array with another length, without a copy unless somebody still holds a view of the old one."""
        room, kind = self._rooms[name]
        size = max(1, count * kind.itemsize)
        if not self._resized(room, size):
            # what the view shows stays as it is, and its memory goes with it
            copied = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            kept = min(size, len(room))
            copied[:kept] = room[:kept]
            self._rooms[name] = copied, kind
            room = copied
            self.copies += 1
        return np.frombuffer(room, kind, count)

    @staticmethod
    def _resized(room: mmap.mmap, size: int) -> bool:
        for attempt in range(_ATTEMPTS):
            try:
                room.resize(size)
            except BufferError:
                if attempt == _ATTEMPTS // 2:
                    gc.collect()  # views that an error of long ago holds
                # A thread that has given its answer holds the arrays it worked on until it has put its task away.
                time.sleep(0.0005)
            else:
                return True
        return False
