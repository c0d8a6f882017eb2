"""Files of pages that are too short or too long, made what the manifest says; and back, where nothing came of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from semistream.core.errors import NotARelationError
from semistream.relation.damage.repair_pages import Repaired, RepairError
from semistream.relation.storage import files
from semistream.relation.storage.checksum import file_seed, verify
from semistream.relation.storage.index_file import load_index
from semistream.relation.storage.manifest import Manifest, ShardFiles

__all__ = ["Grown", "cut_back", "page_seed", "repair_size"]


class Grown(NamedTuple):
    """A file of pages that was given its full size for the time of a repair."""

    size: int
    """What it had before; -1 if it was not there."""
    pages: int
    page_bytes: int
    seed: int


def page_seed(shard: ShardFiles, name: str) -> int:
    """Return what the pages of a shard's file are seeded with."""
    return 0 if name in shard.unbound else file_seed(name)


def repair_size(
    path: Path,
    manifest: Manifest,
    shard: ShardFiles,
    name: str,
    pages: int,
    *,
    may_grow: bool,
    grown: dict[Path, Grown],
) -> Iterator[Repaired]:
    """Give a file of pages its size, so that its pages can be looked at.

    It is cut only where the manifest is proved by its checksum and nothing past the end is a page of the file. With
    ``may_grow`` missing pages become zeros, which are damaged pages like others, and ``grown`` has the file.
    """
    file, size = path / name, pages * manifest.page_bytes
    if file.exists() and not file.is_file():
        raise RepairError(f"{file} is not a file; move it away, and repair again")
    found = file.stat().st_size if file.exists() else -1
    if found == size:
        return
    if found > size:
        if not manifest.sealed:
            raise RepairError(
                f"{file} has {found:,} bytes, and the manifest says {size:,}; which of both is right is not known, so "
                "it is left as it is: give a copy of the relation that has the manifest"
            )
        if (page := _page_past_end(file, pages, manifest.page_bytes, page_seed(shard, name))) is not None:
            raise RepairError(f"{file} has {found:,} bytes instead of {size:,}, and page {page} past the end is sound")
    elif not may_grow or not (manifest.sealed or _is_indexed(path, shard, name)):
        what = "is missing" if found < 0 else f"has {found:,} bytes instead of {size:,}"
        raise RepairError(f"{file} {what}; give the data it was built from, or a copy of it")
    else:
        grown[file] = Grown(found, pages, manifest.page_bytes, page_seed(shard, name))
    with files.edit(file) if found >= 0 else files.create(file) as opened:
        opened.truncate(size)
        opened.sync()
    files.sync_directory(path)
    if found > size:
        yield Repaired(str(file), -1, shard.rows, "checksum")


def cut_back(file: Path, grown: Grown) -> None:
    """Cut off a grown file what is not proved: it ends where it did, or with the last page that was repaired."""
    if not file.exists():
        return
    at, width = grown.pages, grown.page_bytes
    with open(file, "rb") as opened:
        while at * width > max(grown.size, 0):
            opened.seek((at - 1) * width)
            frame = np.frombuffer(opened.read(width), np.uint8).reshape(1, width)
            if frame.any() and verify(frame, np.array([at - 1]), grown.seed) < 0:
                break
            at -= 1
    size = max(at * width, grown.size)
    if size <= 0 and grown.size < 0:
        files.remove(file)
    elif size < grown.pages * width:
        with files.edit(file) as opened:
            opened.truncate(size)
            opened.sync()
    files.sync_directory(file.parent)


def _page_past_end(file: Path, pages: int, width: int, seed: int) -> int | None:
    with open(file, "rb") as opened:
        opened.seek(pages * width)
        page = pages
        while len(content := opened.read(width)) == width:
            if verify(np.frombuffer(content, np.uint8).reshape(1, width), np.array([page]), seed) < 0:
                return page
            page += 1
    return None


def _is_indexed(path: Path, shard: ShardFiles, name: str) -> bool:
    """Whether a sound index has as many pages as a manifest without a checksum says."""
    if name != (shard.pages_file if shard.leaves_file is None else shard.leaves_file) or shard.deltas:
        return False
    try:
        load_index(path / shard.index_file, shard.index_entries, bound=shard.index_file not in shard.unbound)
    except NotARelationError:
        return False
    return True
