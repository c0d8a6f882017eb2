"""The names of manifests, and how one becomes the current version: by a link that only one writer can make."""

from __future__ import annotations

import contextlib
import os
import re

from semistream.core.errors import CommitConflictError, StorageError
from semistream.relation.storage import files
from semistream.relation.storage.files import sync_directory
from semistream.relation.stores.store_path import Place, StorePath, names_in

__all__ = ["latest", "link_manifest", "name_of", "versions"]

_NAME = re.compile(r"manifest-(\d{8})\.json")


def name_of(version: int) -> str:
    """Return the file name of a version's manifest."""
    return f"manifest-{version:08d}.json"


def versions(path: Place) -> list[int]:
    """Return the numbers of all versions in ``path``, ascending."""
    try:
        names = names_in(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def latest(path: Place) -> int | None:
    """Return the number of the newest manifest in ``path``, or None."""
    return max(versions(path), default=None)


def link_manifest(path: Place, version: int, text: bytes, run: str | None = None) -> None:
    """Make the manifest with this text the current version, atomically.

    It is written to a temporary file, flushed, and linked under its name. The link fails if another writer was first.
    The names of the files that it lists are flushed before, so no crash leaves a manifest without its files. ``run``
    is the run of the `Writer`. Only a `Writer` may rely on a version number never being free again.
    """
    if isinstance(path, StorePath):
        _put(path, version, text)
        return
    temporary = path / f".manifest-{run or os.urandom(8).hex()}"
    target = path / name_of(version)
    try:
        files.write_file(temporary, text)
        sync_directory(path)
        newest = latest(path)
        if newest is not None and newest >= version:
            raise _not_first(path, version)
        try:
            files.link(temporary, target)
        except FileExistsError:
            raise _not_first(path, version) from None
        try:
            sync_directory(path)
        except StorageError as error:
            raise StorageError(
                f"version {version} of {path} is committed, but may not survive a loss of power: {error}",
                number=error.errno, path=path,
            ) from error  # fmt: skip
    finally:
        with contextlib.suppress(StorageError):  # `vacuum` will remove it
            files.remove(temporary)


def _put(path: StorePath, version: int, text: bytes) -> None:
    """Commit to a store with one conditional put, at which only one writer can succeed."""
    newest = latest(path)
    target = path / name_of(version)
    if (newest is not None and newest >= version) or not files.put_if_absent(target, text):
        raise _not_first(path, version)


def _not_first(path: Place, version: int) -> CommitConflictError:
    return CommitConflictError(f"version {version} of {path} was committed by another writer; open it and try again")
