"""Vacuum removes versions that are no longer needed, and leftovers of dead writers.

Safety depends on this order (see `leases` and `holds`): list files, then versions, then writers. Lock the versions to
remove. Only then check which versions are pinned, and read the manifests of the others.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from semistream.core.errors import NotARelationError, StorageError
from semistream.relation.storage import files
from semistream.relation.storage import manifest as manifests
from semistream.relation.stores.store_path import Place, StorePath, names_in, place_of
from semistream.relation.versions import holds, pins
from semistream.relation.versions.leases import WRITERS, Lease, leases, made_by

__all__ = ["vacuum"]

_UNNAMED = re.compile(r"\.sorting-.*|\.[0-9a-f]{16}")
"""Leftovers of earlier releases, whose names do not identify the writer."""
_DAY = 86_400.0
"""Seconds. An unfinished object of a store may still be written for this long."""


def vacuum(
    path: str | os.PathLike[str],
    *,
    keep: Iterable[int] = (),
    older_than: float = 3600.0,
    idle_days: float = 30.0,
) -> list[str]:
    """Remove versions that are no longer needed, and files that no version lists; return the names of removed files.

    The newest version is always kept. So are versions that are open, versions that a query's micro-batch is pinned to,
    and all versions since the start of an active writer. Leftovers of killed writers are removed immediately.

    Parameters
    ----------
    path
        A relation, or a directory in which the first build of one was killed.
    keep
        Versions to keep for other reasons.
    older_than
        Seconds. A version that was the newest within this time is kept. A reader on another machine may have it open
        or be about to open it, and locks do not work across machines on every file system.
    idle_days
        Days. A streaming query that has not run for this long is considered abandoned, and its pins are removed.
    """
    path = place_of(path)
    listed = names_in(path) if path.is_dir() else []
    numbers = manifests.versions(path)
    if not numbers and WRITERS not in listed:
        raise NotARelationError(manifests.why_not(path))
    now = _clock(path)
    writers = leases(path, now, older_than)
    removed: list[str] = []
    with ExitStack() as stack:
        old = _unneeded(path, numbers, set(keep), writers, now - older_than)
        locked = {number: held for number in old if (held := holds.lock(path, number)) is not None}
        for held in locked.values():
            stack.callback(held.close)
        pins.forget_idle(path, idle_days=idle_days, now=now, older_than=older_than)
        gone = sorted(locked.keys() - pins.pinned_versions(path))
        # Read manifests before anything is removed: if one is damaged, its files are unknown, so nothing is removed.
        named = _named(path, set(manifests.versions(path)) - set(gone))
        removed += [name for name in map(manifests.name_of, gone) if files.remove(path / name)]
        if removed:
            files.sync_directory(path)  # otherwise a crash could bring back a manifest without its files
    alive = {lease.run for lease in writers if lease.alive}
    dead = {lease.run for lease in writers if not lease.alive}
    for name in listed:
        run = made_by(name)
        if (run is None and not _UNNAMED.fullmatch(name)) or name in named or run in alive:
            continue
        with contextlib.suppress(FileNotFoundError):
            if run in dead or now - (path / name).stat().st_mtime > older_than:
                files.remove_tree(path / name)
                removed.append(name)
    if removed:
        files.sync_directory(path)
    if isinstance(path, StorePath):
        removed += path.store.remove_unfinished(path.key, now - max(older_than, _DAY))
    for lease in writers:
        if not lease.alive:
            files.remove(lease.file)
    return removed


def _unneeded(path: Place, numbers: Sequence[int], keep: set[int], writers: Sequence[Lease], since: float) -> list[int]:
    """Return versions that no writer needs and that were superseded before ``since``."""
    floor = min((lease.floor for lease in writers if lease.alive), default=None)
    found = []
    for number, following in itertools.pairwise(numbers):
        if number in keep or (floor is not None and number >= floor):
            continue
        with contextlib.suppress(FileNotFoundError):  # another vacuum is running
            if (path / manifests.name_of(following)).stat().st_mtime < since:
                found.append(number)
    return found


def _named(path: Place, numbers: Iterable[int]) -> set[str]:
    names: set[str] = set()
    for number in numbers:
        try:
            names.update(name for name in manifests.load(path, number).files)
        except NotARelationError as error:
            if number in manifests.versions(path):
                raise NotARelationError(f"nothing was removed, because a manifest cannot be read: {error}") from error
    return names


def _clock(path: Place) -> float:
    """Return the time by the clock of the file system or store, which may differ from this machine's."""
    probe = path / WRITERS / f".{os.urandom(8).hex()}"
    if isinstance(probe, StorePath):
        files.write_file(probe, b"")
        now = probe.stat().st_mtime
        files.remove(probe)
        return now
    try:
        files.make_directory_unflushed(probe.parent)
        with files.create(probe) as file:
            now = os.fstat(file.fileno()).st_mtime
        files.remove(probe)
    except StorageError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return time.time()  # the disk is full, and vacuum is needed most
    return now
