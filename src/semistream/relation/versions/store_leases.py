"""Leases of writers to a relation in a store, which has no locks and no renames.

::

    .writers/3f2a…         a lease: written again every minute, while its writer lives
    .writers/3f2a….fate    "committing" or "dead", put if absent: by the writer before it commits, or by a `vacuum` that
                           considers it dead; only one of them succeeds

A writer is dead if its process has ended, which only its own machine can tell, or if it had no heartbeat for a day by
the store's clock. The fate of a dead writer is kept for a week, so that the writer finds it if it wakes up.
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

_HEARTBEAT = 60.0  # seconds between heartbeats of a writer
_FATE_KEPT = 7 * 86_400.0  # seconds for which the fate of a dead writer is kept
_RUN = re.compile(r"[0-9a-f]{16}")


class StoreLease:
    """A lease of this process; as a context manager, it stops the heartbeat on exit."""

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
        """Ensure that no `vacuum` has considered this writer dead, and that none will."""
        if self._committing:
            return
        if not files.put_if_absent(self._fate, b"committing") or not self._lease.is_file():
            raise CommitConflictError(
                f"this writer to {self._path} had no heartbeat for a day and was considered dead, so its files were "
                "removed; write again"
            )
        self._committing = True

    def give_up(self) -> None:
        """Remove the lease, after all files that no version lists are removed."""
        self._ended.set()
        with self._beating:  # otherwise a last heartbeat might write it again
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
                if self._ended.is_set() or not self._lease.is_file():  # given up, or considered dead
                    return
                files.write_file(self._lease, self._record)


def leases_in_store(path: StorePath, now: float) -> list[Lease]:
    """Return all writers.

    Dead writers can no longer commit. ``now`` is the time of the store's clock.
    """
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
            # A writer about to commit is alive, unless that was long ago or its process has ended.
            dead = files.put_if_absent(fate, b"dead") or _is_gone(record) or now - fate.stat().st_mtime > SILENT_MACHINE
    return Lease(file, file.name, floor, alive=not dead)


def _this_process() -> dict[str, str]:
    """Return what identifies this process; an empty text means unknown."""
    space = ""
    with contextlib.suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return {**this_machine(), "space": space, "process": str(os.getpid()), "started": _started(str(os.getpid()))}


def _is_gone(record: dict[str, object]) -> bool:
    """Whether a process ran on this machine and has ended."""
    here = _this_process()
    alike = all(here[name] and record.get(name) == here[name] for name in ("host", "boot", "space"))
    return alike and record.get("started") != _started(str(record.get("process")))


def _started(process: str) -> str:
    try:
        return Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
