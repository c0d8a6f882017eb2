"""A local directory in which files are written, before they are uploaded to the store."""

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

_AT_ONCE = 4  # concurrent uploads


@contextlib.contextmanager
def workplace(place: Place) -> Iterator[Path]:
    """Yield the directory to write files of a relation to: its own, or a scratch directory if it is in a store.

    The scratch directory is in ``$SEMISTREAM_SCRATCH`` or the directory for temporary files. It needs room for all
    files.
    """
    if isinstance(place, Path):
        yield place
        return
    root = os.environ.get("SEMISTREAM_SCRATCH")
    try:
        folder = tempfile.TemporaryDirectory(prefix="semistream-upload-", dir=root, ignore_cleanup_errors=True)
    except OSError as error:
        raise StorageError(
            f"files for {place} are first written to {root or tempfile.gettempdir()}, which is not writable "
            f"({error.strerror}); set SEMISTREAM_SCRATCH to a writable directory", number=error.errno,
        ) from error  # fmt: skip
    with folder:
        yield Path(folder.name)


def publish(made: Path, place: Place, names: Iterable[str]) -> None:
    """Upload files from the scratch directory to the store, and remove them locally. Do nothing without a store."""
    if isinstance(place, Path):
        return

    def bring(name: str) -> None:
        target = place / name
        target.store.upload(target.key, made / name)
        (made / name).unlink()

    with ThreadPoolExecutor(_AT_ONCE, "semistream-upload") as pool:
        for done in [pool.submit(bring, name) for name in names]:
            done.result()
