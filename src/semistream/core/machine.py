"""A description of the machine on which a number was measured, without identifying its owner."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

__all__ = ["describe_machine", "file_system_of", "stolen_seconds"]


def describe_machine(path: Path | None = None) -> dict[str, str | int]:
    """Return processor, cores, memory, kernel and versions; with ``path`` also the file system it is on.

    >>> sorted(describe_machine())[:3]
    ['cores', 'cpu', 'kernel']
    """
    machine: dict[str, str | int] = {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    for package in ("numpy", "numba", "pyarrow", "semistream"):
        machine[package] = importlib.metadata.version(package)
    if path is not None:
        machine["file_system"] = file_system_of(path)
    return machine


def file_system_of(path: Path) -> str:
    """Return the type of the file system that holds ``path``, such as ``ext4``, or ``unknown``."""
    path = path.resolve()
    best, kind = Path(), "unknown"
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return kind
    for line in mounts.splitlines():
        fields = line.split()
        point = Path(fields[1].replace("\\040", " "))
        # A later mount on the same point hides the earlier one.
        if path.is_relative_to(point) and len(point.parts) >= len(best.parts):
            best, kind = point, fields[2]
    return kind


def stolen_seconds() -> float:
    """Return the CPU steal time in seconds, summed over all processors.

    0 if it is not reported, for example on a physical machine.
    """
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
        return int(fields[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    for line in text.splitlines():
        if line.lower().startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
