"""Corrects the size of files of pages that are too short or too long, and reverts it if the repair fails."""

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
    """A file of pages that was extended to its full size during a repair."""

    size: int
    """Its size before, in bytes; -1 if it did not exist."""
    pages: int
    page_bytes: int
    seed: int


def page_seed(shard: ShardFiles, name: str) -> int:
    """Return the checksum seed of the pages of a shard's file."""
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
    """Correct the size of a file of pages, so that its pages can be checked.

    The file is truncated only if the manifest matches its checksum and nothing past the end is a page of the file. With
    ``may_grow``, missing pages become zeros, which count as damaged pages, and the file is recorded in ``grown``.
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
                f"{file} has {found:,} bytes, but the manifest says {size:,}; either may be wrong, so the file is "
                "unchanged: give a copy of the relation, with its manifest"
            )
        if (page := _page_past_end(file, pages, manifest.page_bytes, page_seed(shard, name))) is not None:
            raise RepairError(f"{file} has {found:,} bytes instead of {size:,}, and page {page} past the end is intact")
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
    """Truncate an extended file after the last page that was repaired, or to its size before."""
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
    """Whether an intact index confirms the number of pages of a manifest without a checksum."""
    if name != (shard.pages_file if shard.leaves_file is None else shard.leaves_file) or shard.deltas:
        return False
    try:
        load_index(path / shard.index_file, shard.index_entries, bound=shard.index_file not in shard.unbound)
    except NotARelationError:
        return False
    return True
