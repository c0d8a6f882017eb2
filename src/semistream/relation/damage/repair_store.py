"""Repairs a relation in a store: downloads it, repairs it like any other, and uploads the repaired files.

A repair reads every page in any case. Only objects that it changed are written, so intact objects are never touched. A
reader sees either the damaged object or the complete repaired one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from semistream.core.errors import CommitConflictError
from semistream.relation.storage import files
from semistream.relation.stores.scratch import workplace
from semistream.relation.stores.store_path import Place, StorePath

__all__ = ["brought_down"]

_AT_ONCE = 4  # concurrent downloads
_PART_BYTES = 8 << 20  # bytes per range request of a download


@contextlib.contextmanager
def brought_down(place: Place, *, back: bool = True) -> Iterator[Path]:
    """Yield a directory with all files of a relation. With ``back``, changed files are uploaded at the end."""
    if isinstance(place, Path):
        yield place
        return
    with workplace(place) as here:
        found = place.entries()
        with ThreadPoolExecutor(_AT_ONCE, "semistream-download") as pool:
            for done in [pool.submit(_bring, place / name, found[name].st_size, here / name) for name in found]:
                done.result()
        before = _stamps(here)
        try:
            yield here
        finally:
            if back:
                after = _stamps(here)
                changed = [name for name in after if after[name] != before.get(name) and not name.startswith(".")]
                # Upload files before the manifests that list them.
                for name in sorted(changed, key=lambda name: (name.startswith("manifest-"), name)):
                    _bring_back(here / name, place / name, new=name not in before)


def _bring(source: StorePath, size: int, target: Path) -> None:
    with files.create(target) as file:
        for start in range(0, size, _PART_BYTES):
            file.write(source.store.read_range(source.key, start, min(_PART_BYTES, size - start)))


def _bring_back(source: Path, target: StorePath, *, new: bool) -> None:
    if not (new and source.name.startswith("manifest-")):
        target.store.upload(target.key, source)
    elif not files.put_if_absent(target, source.read_bytes()):
        raise CommitConflictError(f"{target} was committed by another writer meanwhile; repair it again")


def _stamps(folder: Path) -> dict[str, tuple[int, int]]:
    found = {path.name: path.stat() for path in folder.iterdir() if path.is_file()}
    return {name: (status.st_mtime_ns, status.st_size) for name, status in found.items()}
