"""Leases of writers to a relation in a store, where nothing can be locked or renamed.

::

    .writers/3f2a…         a lease: written again every minute, while its writer lives
    .writers/3f2a….fate    "committing" or "dead", put if absent: by the writer before it commits, or by a `vacuum` that
                           takes it for dead; only one of them can

A writer is dead if its process is gone, which is known on its own machine, or if it gave no sign of life for a day by
the store's clock. The fate of a dead one is kept for a week, so that it finds it should it wake up.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from pathlib import Path

from semistream.core.errors import CommitConflictError, StorageError
from semistream.relation.storage import files
from semistream.relation.storage import manifest as manifests
from semistream.relation.stores.object_store import ObjectStatus
from semistream.relation.stores.store_path import StorePath
from semistream.relation.versions.lease_record import SILENT_MACHINE, WRITERS, Lease, this_machine

__all__ = ["StoreLease", "leases_in_store"]

_HEARTBEAT = 60.0
_FATE_KEPT = 7 * 86_400.0
_RUN = re.compile(r"[0-9a-f]{16}")


class StoreLease:
    """A lease of this process; as a context manager it ends its signs of life."""

    def __init__(self, path: StorePath) -> None:
        path.store.require_conditional(f"{path.key}/{WRITERS}")
        self.floor = manifests.latest(path) or 0
        self.run = os.urandom(8).hex()
        self._path = path
        self._lease = path / WRITERS / self.run
        self._fate = path / WRITERS / f"{self.run}.fate"
        self._committing = False
        self._ended, self._beating = threading.Event(), threading.Lock()
        self._record = json.dumps({"floor": self.floor, **_this_process()}).encode()
        files.write_file(self._lease, self._record)
        threading.Thread(target=self._beat, name="writer's lease", daemon=True).start()

    def about_to_commit(self) -> None:
        """Make sure that nobody has taken this writer for dead, nor will."""
        if self._committing:
            return
        if not files.put_if_absent(self._fate, b"committing") or not self._lease.is_file():
            raise CommitConflictError(
                f"this writer to {self._path} gave no sign of life for a day and was taken for dead, so its files were "
                "removed; write again"
            )
        self._committing = True

    def give_up(self) -> None:
        """Remove the lease, when nothing is left that is in no version."""
        self._ended.set()
        with self._beating:  # or a last sign of life might bring it back
            files.remove(self._lease)
        if self._committing:
            files.remove(self._fate)

    def __enter__(self) -> StoreLease:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _beat(self) -> None:
        while not self._ended.wait(_HEARTBEAT):
            with contextlib.suppress(StorageError), self._beating:
                if self._ended.is_set() or not self._lease.is_file():  # given up, or taken for dead
                    return
                files.write_file(self._lease, self._record)


def leases_in_store(path: StorePath, now: float) -> list[Lease]:
    """Return all writers; those that are dead can commit no more. ``now`` is by the store's clock."""
    found = (path / WRITERS).entries()
    for name, status in found.items():
        run = name.partition(".")[0]
        if name.endswith(".fate") and run not in found and now - status.st_mtime > _FATE_KEPT:
            files.remove(path / WRITERS / name)
    judged = [_judged(path / WRITERS / name, status, now) for name, status in found.items() if _RUN.fullmatch(name)]
    return [lease for lease in judged if lease is not None]


def _judged(file: StorePath, status: ObjectStatus, now: float) -> Lease | None:
    try:
        record = json.loads(file.read_bytes())
        floor = int(record["floor"])
    except FileNotFoundError:  # ended meanwhile
        return None
    except (ValueError, KeyError, TypeError):
        record, floor = {}, 0
    dead = _is_gone(record) or now - status.st_mtime > SILENT_MACHINE
    if dead:
        fate = file.with_name(f"{file.name}.fate")
        with contextlib.suppress(FileNotFoundError):
            # one that is about to commit has woken up, unless that is long ago, or its process is gone
            dead = files.put_if_absent(fate, b"dead") or _is_gone(record) or now - fate.stat().st_mtime > SILENT_MACHINE
    return Lease(file, file.name, floor, alive=not dead)


def _this_process() -> dict[str, str]:
    """Return what tells this process from all others; an empty text is not known."""
    space = ""
    with contextlib.suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return {**this_machine(), "space": space, "process": str(os.getpid()), "started": _started(str(os.getpid()))}


def _is_gone(record: dict[str, object]) -> bool:
    """Whether a process was of this machine, and is there no more."""
    here = _this_process()
    alike = all(here[name] and record.get(name) == here[name] for name in ("host", "boot", "space"))
    return alike and record.get("started") != _started(str(record.get("process")))


def _started(process: str) -> str:
    try:
        return Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
