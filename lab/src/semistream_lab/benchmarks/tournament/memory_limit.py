"""One memory limit for every contestant: a memory cgroup if one can be used, else a limit on the data of the process.

A cgroup counts the memory of a process *and* the pages of files that the kernel caches for it. It can be used if

* the directory of a cgroup is given (``--cgroup``): your own, empty, and one in which groups can be created; or
* the cgroup of this process is inside one that this user owns, as systemd sets up for every login. A cgroup of root is
  not used unless it is given, even if this user is root.

Otherwise ``RLIMIT_DATA`` limits what the process reserves, which is more than it uses: thread stacks, arenas of
allocators. The limit is therefore set higher, the real use is sampled, and contestants that used more are reported.
The files of a contestant are dropped from the page cache before each batch. Within a batch the page cache may still
help, which favours contestants that read through it. The results say so.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from semistream.core.errors import SemistreamError

__all__ = [
    "CgroupError",
    "MemoryGroup",
    "available_bytes",
    "data_bytes",
    "drop_page_cache",
    "limit_data",
    "own_parent",
    "said",
]

ROOT = Path("/sys/fs/cgroup")
RESERVED = 1 << 30
"""Bytes that a process may reserve beyond the bytes that it may use."""


class CgroupError(SemistreamError, ValueError):
    """No groups can be created in the directory."""


@dataclass
class MemoryGroup:
    """A cgroup (version 1 or 2) of processes with one memory limit."""

    path: Path

    @classmethod
    def make(cls, parent: Path, name: str) -> MemoryGroup:
        """Create a group below ``parent``."""
        if not any((parent / file).exists() for file in ("cgroup.controllers", "memory.limit_in_bytes")):
            raise CgroupError(f"{parent} is not a memory cgroup; give one in which groups can be created, or none")
        try:
            if (parent / "cgroup.controllers").exists() and "memory" not in _read(parent / "cgroup.subtree_control"):
                (parent / "cgroup.subtree_control").write_text("+memory")
            path = parent / name
            path.mkdir()
        except OSError as error:
            raise CgroupError(f"cannot create groups in {parent}: {error.strerror}; give another, or none") from error
        return cls(path)

    @property
    def _second(self) -> bool:
        return (self.path.parent / "cgroup.controllers").exists()

    def add(self, process: int) -> None:
        """Add a process, and all processes that it will start."""
        (self.path / "cgroup.procs").write_text(str(process))

    def limit(self, more: int) -> int:
        """Allow ``more`` bytes beyond the current use; return the total limit."""
        total = int(_read(self.path / ("memory.current" if self._second else "memory.usage_in_bytes"))) + more
        (self.path / ("memory.max" if self._second else "memory.limit_in_bytes")).write_text(str(total))
        if self._second:
            with contextlib.suppress(OSError):  # the system may have no swap
                (self.path / "memory.swap.max").write_text("0")
        return total

    def remove(self) -> None:
        """Remove the group after its processes have ended."""
        with contextlib.suppress(OSError):
            self.path.rmdir()


def own_parent(process: Path = Path("/proc/self/cgroup"), root: Path = ROOT, user: int | None = None) -> Path | None:
    """Return the nearest cgroup above this process that this user owns and that delegates memory, or None."""
    user = os.geteuid() if user is None else user
    line = next((line for line in _read(process).splitlines() if line.startswith("0::/")), None)
    if user == 0 or line is None:
        return None
    for path in (root / line[len("0::/") :]).parents:
        if path == root or not path.is_relative_to(root):
            return None
        owned = path.exists() and path.stat().st_uid == user
        if owned and "memory" in _read(path / "cgroup.subtree_control").split():
            return path
    return None


def data_bytes() -> int:
    """Return the bytes that ``RLIMIT_DATA`` counts: private, writable memory, touched or not."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


def available_bytes() -> int:
    """Return the bytes available without swapping: free memory and the page cache."""
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def limit_data(more: int) -> int:
    """Limit this process to ``more`` additional bytes, plus `RESERVED`; return the total limit."""
    total = data_bytes() + more + RESERVED
    resource.setrlimit(resource.RLIMIT_DATA, (total, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    return total


def drop_page_cache(files: Iterable[Path]) -> None:
    """Drop these files, whose contents are already on disk, from the page cache."""
    for path in files:
        file = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def said(parent: Path | None) -> str:
    """Return how memory is limited, as text for the result."""
    if parent is not None:
        return "memory cgroup, page cache included"
    return (
        "RLIMIT_DATA, with resident memory sampled; the page cache is dropped before each batch but not limited within "
        "it, because no memory cgroup can be used here (give one with --cgroup)"
    )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
