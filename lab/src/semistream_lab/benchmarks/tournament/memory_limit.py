"""One memory limit for every contestant: a memory cgroup where there is one to use, else a limit of its own data.

A cgroup counts what a process takes *and* the pages of files that the kernel caches for it. It can be used where

* a directory of one is given (``--cgroup``): an empty one of yours, in which groups can be made; or
* this process's own group lies in one that belongs to this user, as systemd arranges it for everyone who logs in. What
  belongs to root is somebody else's, even for root, and is left alone unless it is given.

Elsewhere ``RLIMIT_DATA`` bounds what the process reserves, which is more than it uses: stacks of threads, arenas of
allocators. So it is set wider, what the process really takes is watched, and who took more is named. The page cache is
emptied of a contestant's files before each batch. Within a batch it may then help, which is in favour of those who
read through it; results say so.
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
"""Bytes that a process may reserve beyond those it may take."""


class CgroupError(SemistreamError, ValueError):
    """A directory that groups cannot be made in."""


@dataclass
class MemoryGroup:
    """A group of processes with one limit, of version 1 or 2 of cgroups."""

    path: Path

    @classmethod
    def make(cls, parent: Path, name: str) -> MemoryGroup:
        """Make a group below ``parent``."""
        if not any((parent / file).exists() for file in ("cgroup.controllers", "memory.limit_in_bytes")):
            raise CgroupError(f"{parent} is no memory cgroup; give one that groups can be made in, or none")
        try:
            if (parent / "cgroup.controllers").exists() and "memory" not in _read(parent / "cgroup.subtree_control"):
                (parent / "cgroup.subtree_control").write_text("+memory")
            path = parent / name
            path.mkdir()
        except OSError as error:
            raise CgroupError(f"no group can be made in {parent}: {error.strerror}; give another, or none") from error
        return cls(path)

    @property
    def _second(self) -> bool:
        return (self.path.parent / "cgroup.controllers").exists()

    def add(self, process: int) -> None:
        """Let a process be in it, and all that it starts."""
        (self.path / "cgroup.procs").write_text(str(process))

    def limit(self, more: int) -> int:
        """Allow ``more`` bytes than are taken now; return how many that are in all."""
        total = int(_read(self.path / ("memory.current" if self._second else "memory.usage_in_bytes"))) + more
        (self.path / ("memory.max" if self._second else "memory.limit_in_bytes")).write_text(str(total))
        if self._second:
            with contextlib.suppress(OSError):  # there need not be any swap
                (self.path / "memory.swap.max").write_text("0")
        return total

    def remove(self) -> None:
        """Remove it, once its processes have ended."""
        with contextlib.suppress(OSError):
            self.path.rmdir()


def own_parent(process: Path = Path("/proc/self/cgroup"), root: Path = ROOT, user: int | None = None) -> Path | None:
    """Return the nearest group above this process that this user owns and that hands memory on, if there is one."""
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
    """Return what the machine can give without swapping: free memory, and the page cache."""
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def limit_data(more: int) -> int:
    """Allow this process to reserve so much that it can take ``more`` bytes; return how many that are in all."""
    total = data_bytes() + more + RESERVED
    resource.setrlimit(resource.RLIMIT_DATA, (total, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    return total


def drop_page_cache(files: Iterable[Path]) -> None:
    """Let the kernel forget what it caches of these files; what they hold is on disk already."""
    for path in files:
        file = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def said(parent: Path | None) -> str:
    """Say how memory is limited, for the result."""
    if parent is not None:
        return "memory cgroup, page cache included"
    return (
        "RLIMIT_DATA, and resident memory watched; the page cache emptied before each batch but not limited within it: "
        "there is no memory cgroup to use here (give one by --cgroup)"
    )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
