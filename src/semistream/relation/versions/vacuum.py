"""Vacuum: versions that nobody needs, and what writers that are gone have left behind.

In this order, on which safety rests (see `leases` and `holds`): list files, then versions, then writers, then read
manifests; lock what is to go, and only then ask which versions are pinned.
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
"""What earlier releases left, whose files do not say who made them."""
_DAY = 86_400.0
"""Seconds for which something may be in the middle of being written."""


def vacuum(
    path: str | os.PathLike[str],
    *,
    keep: Iterable[int] = (),
    older_than: float = 3600.0,
    idle_days: float = 30.0,
) -> list[str]:
    """Remove versions that nobody needs, and files that no version names; return the names of what was removed.

    The newest version always stays, and so do versions that somebody has open, that a query's micro-batch is pinned to,
    and all since the start of a writer that is still at work. What writers that were killed have left goes at once.

    Parameters
    ----------
    path
        A relation, or a directory in which the first build of one was killed.
    keep
        Versions to keep for other reasons.
    older_than
        Seconds. A version that was still the newest then is left alone, as it may be just about to be opened by
        somebody who cannot be seen: on a file system whose locks do not reach from machine to machine.
    idle_days
        A streaming query that has not run for so many days will not come back, and what it was pinned to may go.
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
        # read before anything is removed: what a damaged one names is not known, and nothing may go
        named = _named(path, set(manifests.versions(path)) - set(gone))
        removed += [name for name in map(manifests.name_of, gone) if files.remove(path / name)]
        if removed:
            files.sync_directory(path)  # or a crash could bring back a manifest without its files
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
    """Return versions that no writer needs and that were not the newest any more at ``since``."""
    floor = min((lease.floor for lease in writers if lease.alive), default=None)
    found = []
    for number, following in itertools.pairwise(numbers):
        if number in keep or (floor is not None and number >= floor):
            continue
        with contextlib.suppress(FileNotFoundError):  # another one vacuums
            if (path / manifests.name_of(following)).stat().st_mtime < since:
                found.append(number)
    return found


def _named(path: Place, numbers: Iterable[int]) -> set[str]:
    names: set[str] = set()
    for number in numbers:
        try:
            names.update(name for shard in manifests.load(path, number).shards for name in shard.files)
        except NotARelationError as error:
            if number in manifests.versions(path):
                raise NotARelationError(f"nothing was removed, as it is not known what is needed: {error}") from error
    return names


def _clock(path: Place) -> float:
    """Return the time by the clock that stamps files there, which need not be this machine's."""
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
        return time.time()  # no room even for that: just when vacuum is wanted
    return now
