"""The files of a version of R, opened: devices that read their pages, and indexes in memory."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from semistream.core.arrays import Ints
from semistream.core.errors import NotARelationError, StorageError
from semistream.relation.devices.device import Device
from semistream.relation.devices.file_device import FileDevice
from semistream.relation.devices.mapped_device import MappedDevice
from semistream.relation.devices.store_device import StoreDevice
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.pages.page_index import ClusteredIndex, Index, ScatteredIndex, page_order
from semistream.relation.storage.index_file import load_index
from semistream.relation.storage.manifest import Manifest
from semistream.relation.storage.map_file import load_map
from semistream.relation.storage.page_map import PageMap
from semistream.relation.storage.shard_files import ShardFiles
from semistream.relation.stores.local_tier import LocalTier
from semistream.relation.stores.object_store import ObjectStatus
from semistream.relation.stores.store_path import ListedPath, Place, StorePath

__all__ = ["RelationFiles", "check_files", "open_files"]


@dataclass(frozen=True)
class RelationFiles:
    """Some shards of R, ready to be read."""

    key: KeyCodec
    device: Device
    indexes: list[Index]
    shard_pages: list[int]
    page_order: Ints
    """Page ids in key order, or nothing while that is their own order."""
    rows: int
    unique: bool


def open_files(
    path: Place,
    manifest: Manifest,
    numbers: Sequence[int],
    *,
    direct: bool = True,
    depth: int = 16,
    tier: LocalTier | None = None,
) -> RelationFiles:
    """Open the shards ``numbers`` of a version; see `Relation.open`.

    Reads the indexes and page maps whole, and no pages; the size of every file of pages is looked at.
    """
    if any(not 0 <= number < len(manifest.shards) for number in numbers):
        raise ValueError(f"{path} has shards 0 to {len(manifest.shards) - 1}, and {list(numbers)} was asked for")
    files = [manifest.shards[number] for number in numbers]
    key = KeyCodec.for_schema(manifest.schema, manifest.key)
    statuses = check_files(path, files, manifest.page_bytes)
    if isinstance(path, StorePath):
        path = ListedPath(path, statuses, None if tier is None else tier.whole)
    maps, orders = _page_maps(path, files)
    named = [(shard, name, size) for shard in files for name, size in shard.page_files if name != shard.leaves_file]
    device = _device(path, named, statuses, manifest.page_bytes, direct, depth, tier)
    if any(shard.deltas for shard in files):
        device = MappedDevice(device, maps, [sum(pages for _, pages in shard.deltas) for shard in files])
    bases = np.cumsum([0, *(one.page_count for one in maps)])
    indexes: list[Index] = [
        _open_index(
            path, shard, statuses, manifest.page_bytes, None if order is None else order + base, direct, depth, tier
        )
        for shard, order, base in zip(files, orders, bases, strict=False)
    ]
    clustered = [index for index in indexes if isinstance(index, ClusteredIndex)]
    return RelationFiles(
        key, device, indexes, [one.page_count for one in maps], page_order(clustered, bases),
        rows=sum(shard.rows for shard in files), unique=all(shard.unique for shard in files),
    )  # fmt: skip


def _device(
    path: Place,
    named: Sequence[tuple[ShardFiles, str, int]],
    statuses: Mapping[str, ObjectStatus],
    page_bytes: int,
    direct: bool,
    depth: int,
    tier: LocalTier | None,
) -> Device:
    """Return what reads the pages of some files."""
    bound = [name not in shard.unbound for shard, name, _ in named]
    if isinstance(path, StorePath):
        objects = [(path / name, statuses[name], pages) for _, name, pages in named]
        return StoreDevice(objects, page_bytes, bound=bound, depth=depth, tier=tier)
    paths = [(path / name, pages) for _, name, pages in named]
    return FileDevice(paths, page_bytes, bound=bound, direct=direct, depth=depth)


def _open_index(
    path: Place,
    shard: ShardFiles,
    statuses: Mapping[str, ObjectStatus],
    page_bytes: int,
    order: Ints | None,
    direct: bool,
    depth: int,
    tier: LocalTier | None,
) -> ClusteredIndex | ScatteredIndex:
    bound = shard.index_file not in shard.unbound
    first, continues = load_index(path / shard.index_file, shard.index_entries, bound=bound)
    if shard.leaves_file is None:
        return ClusteredIndex(first, continues, shard.last_key, order)
    named = [(shard, shard.leaves_file, shard.leaves)]
    leaves = _device(path, named, statuses, page_bytes, direct, depth, tier)
    return ScatteredIndex(ClusteredIndex(first, continues, shard.last_key), leaves)


def _page_maps(path: Place, shards: Sequence[ShardFiles]) -> tuple[list[PageMap], list[Ints | None]]:
    """Return where the pages of each shard are, and their ids in key order if that is not the order of ids."""
    maps: list[PageMap] = []
    orders: list[Ints | None] = []
    for shard in shards:
        order, page_map = None, PageMap.plain(shard.pages)
        if shard.map_file is not None:
            order, page_map = load_map(path, shard)
        maps.append(page_map)
        orders.append(order)
    return maps, orders


def check_files(path: Place, shards: Sequence[ShardFiles], page_bytes: int) -> dict[str, ObjectStatus]:
    """Raise `NotARelationError` if a file of pages is missing, no file, or of another size: a look at each, no read.

    A store is asked once, and what it says of its objects is returned.
    """
    listed = path.entries() if isinstance(path, StorePath) else {}
    for shard in shards:
        for name, pages in shard.page_files:
            expected = pages * page_bytes
            try:
                status = listed.get(name) or (path / name).stat()
            except StorageError:
                raise
            except OSError as error:
                what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
                raise NotARelationError(
                    f"{path / name} {what}, which the manifest names; run semistream repair, or build it again"
                ) from None
            size = status.st_size
            if not stat.S_ISREG(status.st_mode):
                raise NotARelationError(f"{path / name} is not a file, which the manifest names; build it again")
            if size != expected:
                raise NotARelationError(
                    f"{path / name} has {size:,} bytes instead of {expected:,}: it was truncated or replaced; "
                    "run semistream repair, or build the relation again"
                )
    return listed
