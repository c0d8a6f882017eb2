"""Where the arrays of a structure live: in this process, or in files that other processes can map.

A structure that keeps all of its state in arrays asked for here can be left by one process and taken up by the
next without copying.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["ArraySource", "Arrays", "MappedArrays", "coarse", "in_memory"]


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


def coarse(size: int, *, up: bool = False) -> int:
    """Return a size that is at most a 16th less, or more, and the same for sizes that differ by little.

    Arrays that are left to others have such sizes, or a few rows more in R would make theirs of another layout.

    >>> coarse(1000), coarse(1005), coarse(1005, up=True)
    (992, 992, 1024)
    """
    step = 1 << max(0, size.bit_length() - 5)
    return (size // step + up) * step


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
        path = os.path.join(self._directory, f"{name}.array")
        size = count * kind.itemsize
        # not np.memmap, which takes longer to resolve the name of the file than all else takes here
        mapped = self._mapped(path, size)
        if mapped is None:
            if self._existing:
                raise FileNotFoundError(f"{path} with {size:,} bytes was expected")
            mapped = self._made(path, size)
        return np.frombuffer(mapped, kind)

    @staticmethod
    def _mapped(path: str, size: int) -> mmap.mmap | None:
        """Map a file if it is there and has so many bytes."""
        try:
            with open(path, "r+b", buffering=0) as file:
                return mmap.mmap(file.fileno(), size) if os.fstat(file.fileno()).st_size == size else None
        except (FileNotFoundError, ValueError):  # or cut meanwhile
            return None

    @staticmethod
    def _made(path: str, size: int) -> mmap.mmap:
        """Make a file of zeros and map it; one that is there is not emptied but goes, as others may have it mapped."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        with open(path, "x+b", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return mmap.mmap(file.fileno(), size)
