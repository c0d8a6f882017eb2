"""Files are made on this machine, and brought to the store when they are whole."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from semistream.core.errors import StorageError
from semistream.relation.stores.store_path import Place

__all__ = ["publish", "workplace"]

_AT_ONCE = 4


@contextlib.contextmanager
def workplace(place: Place) -> Iterator[Path]:
    """Give the directory in which files of a relation are made: its own, or one for scratch if it is in a store.

    Scratch is below ``$SEMISTREAM_SCRATCH``, or where temporary files are, and takes as much room as the files.
    """
    if isinstance(place, Path):
        yield place
        return
    root = os.environ.get("SEMISTREAM_SCRATCH")
    try:
        folder = tempfile.TemporaryDirectory(prefix="semistream-upload-", dir=root, ignore_cleanup_errors=True)
    except OSError as error:
        raise StorageError(
            f"files for {place} are made in {root or tempfile.gettempdir()} first, and it cannot be written "
            f"({error.strerror}); set SEMISTREAM_SCRATCH to a directory that can", number=error.errno,
        ) from error  # fmt: skip
    with folder:
        yield Path(folder.name)


def publish(made: Path, place: Place, names: Iterable[str]) -> None:
    """Bring files from where they were made to the store, and remove them here; nothing if they are there already."""
    if isinstance(place, Path):
        return

    def bring(name: str) -> None:
        target = place / name
        target.store.upload(target.key, made / name)
        (made / name).unlink()

    with ThreadPoolExecutor(_AT_ONCE, "semistream-upload") as pool:
        for done in [pool.submit(bring, name) for name in names]:
            done.result()
