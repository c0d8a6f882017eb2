"""The content of a lease: the writer, its machine, and the version from which it began."""

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
"""Seconds without a heartbeat after which a writer on another machine is considered dead."""


@dataclass(frozen=True)
class Lease:
    """A registered writer."""

    file: Place
    run: str
    floor: int
    alive: bool


def named_after(path: Place, floor: int) -> set[str]:
    """Return the names of all files that versions after ``floor`` list."""
    numbers = (number for number in manifests.versions(path) if number > floor)
    return {name for number in numbers for name in manifests.load(path, number).files}


def this_machine() -> dict[str, str]:
    """Return what identifies this machine and its current boot."""

    def text(file: str) -> str:
        with contextlib.suppress(OSError):
            return Path(file).read_text().strip()
        return ""

    boot = text("/proc/sys/kernel/random/boot_id")
    return {"host": socket.gethostname(), "machine": text("/etc/machine-id"), "boot": boot}
