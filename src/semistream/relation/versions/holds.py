"""Protects a version from removal while it is read: a shared lock on its manifest while the relation is open.

The lock writes nothing, so a read-only relation can be held too. The system releases the lock when the process ends,
in whatever way. `vacuum` removes a version only under an exclusive lock, for which it does not wait.

A store has no locks, and a file system may have no locks, or locks that are local to each machine. There `vacuum`
gives readers the time ``older_than``, counted from when their version was superseded.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path

from semistream.core.errors import NotARelationError
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.manifest import Manifest
from semistream.relation.stores.store_path import Place, StorePath

__all__ = ["Hold", "hold", "hold_manifest", "lock"]

_TRIES = 100  # attempts to hold a version
_PAUSE = 0.02  # seconds between attempts


class Hold:
    """A lock on a version, until `close` or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Release the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


def hold(path: Place, version: int) -> Hold | None:
    """Hold a version so that it is not removed; return None if it was removed or is being removed."""
    if isinstance(path, StorePath):
        return Hold(-1)
    return _locked(path / manifests.name_of(version), os.O_RDONLY, fcntl.LOCK_SH)


def hold_manifest(path: Place, version: int | None = None) -> tuple[Manifest, Hold]:
    """Return a manifest, by default the newest, and hold its version."""
    for _ in range(_TRIES):
        manifest = manifests.load(path, version)
        held = hold(path, manifest.version)
        if held is not None:
            return manifest, held
        if version is not None:
            time.sleep(_PAUSE)  # `vacuum` has locked it, and may still find that it is needed
        # Otherwise it was superseded and removed after it was listed, and there is a newer version.
    if version is not None:
        raise NotARelationError(f"version {version} of {path} is being removed; open the newest")
    raise NotARelationError(f"{path} gets new versions too fast to open one; try again when fewer writers are active")


def lock(path: Place, version: int) -> Hold | None:
    """Lock a version to remove it; return None if a reader holds it or it was removed."""
    if isinstance(path, StorePath):
        return Hold(-1)
    file = path / manifests.name_of(version)
    try:
        return _locked(file, os.O_RDWR, fcntl.LOCK_EX)  # on NFS an exclusive lock requires a file open for writing
    except PermissionError:
        return _locked(file, os.O_RDONLY, fcntl.LOCK_EX)


def _locked(file: Path, flags: int, kind: int) -> Hold | None:
    try:
        descriptor = os.open(file, flags | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    held = Hold(descriptor)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        held.close()
        return None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF):
            raise
    try:
        if os.path.samestat(os.fstat(descriptor), os.stat(file)):
            return held
    except FileNotFoundError:
        pass
    held.close()  # removed or replaced between opening and locking
    return None
