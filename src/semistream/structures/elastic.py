"""Arrays that can grow or shrink without being copied: the operating system moves their pages, not their bytes."""

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
"""How often to check whether a thread has dropped a task that it finished."""


class ElasticArrays:
    """Arrays of zeros in this process, each of which can be resized.

    A shrunk array returns its memory to the system at once. The added part of a grown array takes memory only when it
    is written; its contents are undefined until then.

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
        """Arrays that were copied because a view of them existed: their memory was not returned at once."""

    def __call__(self, name: str, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return a new array ``name`` of ``count`` zeros."""
        kind = np.dtype(dtype)
        room = mmap.mmap(-1, max(1, count * kind.itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if count * kind.itemsize >= _LARGE:
            # random look-ups in a large array are faster with huge pages
            with contextlib.suppress(AttributeError, OSError):
                room.madvise(mmap.MADV_HUGEPAGE)
        self._rooms[name] = room, kind
        return np.frombuffer(room, kind, count)

    def resize(self, name: str, count: int) -> NDArray[Any]:
        """Return the array with another length; it is copied only if a view of the old one still exists."""
        room, kind = self._rooms[name]
        size = max(1, count * kind.itemsize)
        if not self._resized(room, size):
            # the view keeps its contents, and its memory is freed with it
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
                    gc.collect()  # views that an old exception still references
                # A thread that returned its result references its arrays until it drops the task.
                time.sleep(0.0005)
            else:
                return True
        return False
