"""Checks of a relation's files other than pages: manifests of all versions, leaves, and the format."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from semistream.core.arrays import Bytes, Ints
from semistream.core.errors import NotARelationError
from semistream.relation.filters.key_filter import load_filters
from semistream.relation.pages.page_index import ClusteredIndex, ScatteredIndex
from semistream.relation.pages.page_layout import page_keys, page_rows
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.manifest import Manifest
from semistream.relation.stores.store_path import Place

__all__ = ["LeafSums", "bad_manifests", "filter_notes", "format_notes"]


def bad_manifests(path: Place) -> Iterator[tuple[Place, str]]:
    """Yield manifests of any version that cannot be read, with the reason."""
    for number in manifests.versions(path):
        try:
            manifests.load(path, number)
        except NotARelationError as error:
            if number not in manifests.versions(path):  # vacuum has removed it meanwhile
                continue
            yield path / manifests.name_of(number), str(error)


def format_notes(manifest: Manifest) -> list[str]:
    """Return what is not protected in a version that an earlier release wrote, and what to do about it."""
    unbound = [name for shard in manifest.shards for name in shard.files if name in shard.unbound]
    if not unbound:
        return []
    count = sum(len(shard.files) for shard in manifest.shards)
    checksum = "" if manifest.sealed else "; its manifest has no checksum"
    notes = [
        f"{len(unbound)} of {count} files of version {manifest.version} are of format 1, which cannot detect that a "
        f"file was replaced by another{checksum}"
    ]
    updated = any(name in shard.unbound for shard in manifest.shards for name, _ in shard.deltas)
    if updated and len(manifest.shards) > 1:
        notes.append(
            "An earlier release updated it, and lost rows when it updated several shards: all pages may be intact and "
            "rows be missing. Build it again from the data with --overwrite; do not compact it, which would make that "
            "permanent"
        )
    else:
        notes.append("semistream compact writes it in format 2")
    return notes


def filter_notes(place: Place, manifest: Manifest) -> list[str]:
    """Return which filters of a version cannot be used, and what to do about it. R is complete without them."""
    bad = [
        shard.filter.file
        for shard in manifest.all_shards
        if shard.filter is not None and load_filters(place, [shard.filter], len(shard.filter.planes)) is None
    ]
    if not bad:
        return []
    return [
        f"{len(bad)} filters of version {manifest.version} cannot be read, such as {bad[0]}; joins read pages for "
        "absent keys instead. semistream compact writes them again"
    ]


class LeafSums:
    """Checks that the leaves of a scattered shard match its pages, without holding either in memory.

    Each pair of a key and a page is hashed, and the sums of both sides are compared. The order of leaves is checked as
    they are added.
    """

    def __init__(self, index: ScatteredIndex) -> None:
        self._fences: ClusteredIndex = index.fences
        self._pages = self._leaves = 0
        self._last = np.iinfo(np.int64).min
        self.fault: str | None = None

    def add_pages(self, numbers: Ints, frames: Bytes, stride: int) -> None:
        """Add pages, numbered within the shard."""
        keys = page_keys(frames, stride)[0]
        pages = np.repeat(numbers, page_rows(frames))
        order = np.lexsort((keys, pages))
        keys, pages = keys[order], pages[order]
        new = np.ones(keys.size, bool)
        new[1:] = (keys[1:] != keys[:-1]) | (pages[1:] != pages[:-1])
        self._pages = (self._pages + _summed(keys[new], pages[new])) % 2**64

    def add_leaves(self, numbers: Ints, frames: Bytes) -> None:
        """Add leaves, in order."""
        keys, _, starts = page_keys(frames, ScatteredIndex.STRIDE)
        pages = frames.reshape(-1).view(np.uint32)[starts // 4].astype(np.int64)
        self._leaves = (self._leaves + _summed(keys, pages)) % 2**64
        heads = np.cumsum(page_rows(frames)) - page_rows(frames)
        filled = page_rows(frames) > 0
        if keys.size and (int(keys[0]) < self._last or np.any(keys[1:] < keys[:-1])):
            self.fault = "do not ascend"
        elif not np.array_equal(keys[heads[filled]], self._fences.first[numbers[filled]]):
            self.fault = "do not begin with the keys of the index"
        self._last = int(keys[-1]) if keys.size else self._last

    def finish(self) -> str | None:
        """Return what is wrong with the leaves, or None."""
        if self.fault is None and self._pages != self._leaves:
            self.fault = "do not list the pages that hold the keys"
        if self.fault is None and self._last != self._fences.last_key:
            self.fault = f"end with the key {self._last}, and the manifest says {self._fences.last_key}"
        return self.fault


def _summed(keys: Ints, pages: Ints) -> int:
    mixed = (keys.view(np.uint64) ^ (pages.astype(np.uint64) << np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return int((mixed ^ (mixed >> np.uint64(32))).sum(dtype=np.uint64))
