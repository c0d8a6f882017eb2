"""Where the arrays of a structure live: in this process, or in files that other processes can map.

A structure that keeps all of its state in arrays from here can be left by one process and attached by the next, without
copying.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["ArraySource", "Arrays", "MappedArrays", "Notes", "coarse", "in_memory"]


class Arrays(Protocol):
    """Returns an array of zeros, or the array that was created under this name before."""

    def __call__(self, name: str, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return the array ``name`` of ``count`` items."""
        ...


class ArraySource(Protocol):
    """Provides the arrays of a structure, which describes their layout."""

    def __call__(self, layout: str) -> Arrays:
        """Return the arrays that were left with the same layout, or empty ones, but never those of another layout."""
        ...


@runtime_checkable
class Notes(Protocol):
    """A source that also keeps short texts, which do not depend on the layout of the arrays."""

    def note(self, name: str) -> str:
        """Return the text that was left last under this name; empty if there is none."""
        ...

    def leave_note(self, name: str, text: str) -> None:
        """Keep a text for the next process."""
        ...


def in_memory(name: str, count: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return a new array of zeros in this process."""
    return np.zeros(count, dtype)


def coarse(size: int, *, up: bool = False) -> int:
    """Round a size down (or up) by at most a sixteenth, so that sizes that differ little become equal.

    Arrays that outlive a process have such sizes. Otherwise a few more rows in R would change their layout.

    >>> coarse(1000), coarse(1005), coarse(1005, up=True)
    (992, 992, 1024)
    """
    step = 1 << max(0, size.bit_length() - 5)
    return (size // step + up) * step


class MappedArrays:
    """Arrays in files of a directory, mapped shared: the next process finds what this one wrote.

    Only one process may write at a time; the caller holds the lock. Files on a memory file system use memory and must
    be counted. A file's space is allocated when it is created: if space ran out later, writing to the mapped file would
    kill the process.

    Parameters
    ----------
    directory
        Where the files are, or will be.
    existing
        Accept only existing files: a missing file, or one of another size, raises `FileNotFoundError`.

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
        """Map the array ``name``; a file of another size is replaced by zeros.

        Only a new file takes time and space.
        """
        kind = np.dtype(dtype)
        if count == 0:
            return np.zeros(0, kind)
        path = os.path.join(self._directory, f"{name}.array")
        size = count * kind.itemsize
        # not np.memmap: resolving the file's name takes it longer than everything else here
        mapped = self._mapped(path, size)
        if mapped is None:
            if self._existing:
                raise FileNotFoundError(f"{path} with {size:,} bytes was expected")
            mapped = self._made(path, size)
        return np.frombuffer(mapped, kind)

    @staticmethod
    def _mapped(path: str, size: int) -> mmap.mmap | None:
        """Map a file if it exists and has ``size`` bytes."""
        try:
            with open(path, "r+b", buffering=0) as file:
                return mmap.mmap(file.fileno(), size) if os.fstat(file.fileno()).st_size == size else None
        except (FileNotFoundError, ValueError):  # or truncated in between
            return None

    @staticmethod
    def _made(path: str, size: int) -> mmap.mmap:
        """Create a file of zeros and map it.

        An existing file is replaced, not emptied: others may have it mapped.
        """
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        with open(path, "x+b", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return mmap.mmap(file.fileno(), size)
