"""What a lease says: who writes, where, and since which version."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from pathlib import Path

from semistream.relation.storage import manifest as manifests
from semistream.relation.stores.store_path import Place

__all__ = ["SILENT_MACHINE", "WRITERS", "Lease", "named_after", "this_machine"]

WRITERS = ".writers"
SILENT_MACHINE = 86_400.0
"""Seconds without a sign of life after which a writer on another machine is taken for dead."""


@dataclass(frozen=True)
class Lease:
    """A writer that is registered."""

    file: Place
    run: str
    floor: int
    alive: bool


def named_after(path: Place, floor: int) -> set[str]:
    """Return the names of all files of versions after ``floor``."""
    numbers = (number for number in manifests.versions(path) if number > floor)
    return {name for number in numbers for shard in manifests.load(path, number).shards for name in shard.files}


def this_machine() -> dict[str, str]:
    """Return what tells this machine, and this start of it, from others."""

    def text(file: str) -> str:
        with contextlib.suppress(OSError):
            return Path(file).read_text().strip()
        return ""

    boot = text("/proc/sys/kernel/random/boot_id")
    return {"host": socket.gethostname(), "machine": text("/etc/machine-id"), "boot": boot}
