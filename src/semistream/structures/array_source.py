"""Where the arrays of a structure live: in this process, or in files that other processes can map.

A structure that keeps all of its state in arrays asked for here can be left by one process and taken up by the
next without copying.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["ArraySource", "Arrays", "MappedArrays", "in_memory"]


class Arrays(Protocol):
    """Gives out an array of zeros, or the one that was given out under this name before."""

    def __call__(self, name: str, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return the array ``name`` of ``count`` items."""
        ...


class ArraySource(Protocol):
    """Gives out arrays to a structure that says how they will be laid out."""

    def __call__(self, layout: str) -> Arrays:
        """Return arrays that were left under the same layout, or empty ones; never those of another."""
        ...


def in_memory(name: str, count: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return a new array of zeros in this process."""
    return np.zeros(count, dtype)


class MappedArrays:
    """Arrays in files of a directory, mapped shared: what one process writes, the next one finds.

    Only one process may write at a time; a lock is the caller's business. Files on a memory file system are
    memory: count them. All of a file's room is taken when it is made; later there might be none, and a process that
    writes to a mapped file then is killed.

    Parameters
    ----------
    directory
        Where the files are, or will be.
    existing
        Only files that are there: one that is missing, or of another size, raises `FileNotFoundError`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     MappedArrays(folder)("counts", 3, np.int64)[1] = 7
    ...     MappedArrays(folder)("counts", 3, np.int64).tolist()
    [0, 7, 0]
    """

    def __init__(self, directory: str | os.PathLike[str], *, existing: bool = False) -> None:
        self._directory = Path(directory)
        self._existing = existing
        if not existing:
            self._directory.mkdir(parents=True, exist_ok=True)

    def __call__(self, name: str, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """Map the array ``name``; a file of another size is replaced by zeros. Only a new file takes time and room."""
        kind = np.dtype(dtype)
        if count == 0:
            return np.zeros(0, kind)
        path = self._directory / f"{name}.array"
        size = count * kind.itemsize
        if not path.exists() or path.stat().st_size != size:
            if self._existing:
                raise FileNotFoundError(f"{path} with {size:,} bytes was expected")
            path.unlink(missing_ok=True)  # not emptied in place: another process may have it mapped
            with open(path, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
        return np.asarray(np.memmap(path, dtype=kind, mode="r+", shape=(count,)))
