"""The open files of a version of R: devices that read their pages, and indexes in memory."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Ints
from semistream.core.errors import NotARelationError, StorageError, UnsupportedJoinError
from semistream.relation.devices.device import Device
from semistream.relation.devices.file_device import FileDevice
from semistream.relation.devices.mapped_device import MappedDevice
from semistream.relation.devices.store_device import StoreDevice
from semistream.relation.pages.packed_transcoding import PackedMapping
from semistream.relation.pages.page_index import ClusteredIndex, Index, ScatteredIndex, page_order
from semistream.relation.pages.row_mapping import RowMapping, map_rows
from semistream.relation.pages.stored_rows import codec_of
from semistream.relation.pages.transcoded_device import FileLayout, TranscodedDevice, frame_bytes_for
from semistream.relation.storage.index_file import load_index, load_timed_index
from semistream.relation.storage.manifest import Manifest
from semistream.relation.storage.map_file import load_map
from semistream.relation.storage.page_map import PageMap
from semistream.relation.storage.row_layouts import RowLayout
from semistream.relation.storage.shard_files import ShardFiles
from semistream.relation.stores.local_tier import LocalTier
from semistream.relation.stores.object_store import ObjectStatus
from semistream.relation.stores.store_path import ListedPath, Place, StorePath

__all__ = ["RelationFiles", "bytes_in_memory", "check_files", "shown_page_bytes"]

Defaults = Mapping[int, pa.Scalar]


class RelationFiles:
    """Some shards of a version of R, open for reading.

    Opening reads the indexes and page maps completely, and no pages. It checks the size of every file of pages.

    Parameters
    ----------
    place, manifest
        Where R is, and the version.
    numbers
        Shards to open.
    options
        ``direct``, ``depth`` and ``shown_as``; see `Relation.open`.
    local
        The local tier of a store.
    """

    def __init__(
        self, place: Place, manifest: Manifest, numbers: Sequence[int], *, options: Mapping[str, Any],
        local: LocalTier | None = None,
    ) -> None:  # fmt: skip
        if any(not 0 <= number < len(manifest.shards) for number in numbers):
            raise ValueError(f"{place} has shards 0 to {len(manifest.shards) - 1}, not {list(numbers)}")
        self._shards = [manifest.shards[number] for number in numbers]
        self._manifest, self._timed = manifest, manifest.valid_from is not None
        self._layout, self._defaults = manifest.row_layouts.seen_by(options.get("shown_as", manifest.row_layouts))
        self.schema = self._layout.schema
        self.codec = codec_of(manifest, self._layout)
        for name in manifest.key:
            if self._layout.described(name) != manifest.row_layouts.current.described(name):
                raise UnsupportedJoinError(
                    f"{name!r}, by which rows are found, is another column of version {manifest.version} of {place} "
                    "than when this query was started; restart the query from its checkpoint"
                )
        self._direct, self._depth = options["direct"], options["depth"]
        self._page_bytes, self._tier = manifest.page_bytes, local
        self._statuses = check_files(place, self._shards, manifest.page_bytes)
        self._place = place
        if isinstance(place, StorePath):
            self._place = ListedPath(place, self._statuses, None if local is None else local.whole)
        mapped = [
            (None, PageMap.plain(shard.pages)) if shard.map_file is None else load_map(self._place, shard)
            for shard in self._shards
        ]  # page ids in key order, unless ids are already in that order; and the page map
        self.shard_pages = [page_map.page_count for _, page_map in mapped]
        self.device = self._pages([page_map for _, page_map in mapped])
        bases = np.cumsum([0, *self.shard_pages])
        self.indexes: list[Index] = [
            self._index(shard, None if order is None else order + base)
            for shard, (order, _), base in zip(self._shards, mapped, bases, strict=False)
        ]
        clustered = [index for index in self.indexes if isinstance(index, ClusteredIndex)]
        self.page_order = page_order(clustered, bases)
        """Page ids in key order; empty if ids are already in key order."""
        self.rows = sum(shard.rows for shard in self._shards)
        self.unique = all(shard.unique for shard in self._shards)

    def _pages(self, maps: list[PageMap]) -> Device:
        """Return the device that reads R's pages."""
        named = [
            (shard, name, size)
            for shard in self._shards
            for name, size in shard.page_files
            if name != shard.leaves_file
        ]
        device = self._in_layout(self._device(named))
        if any(shard.deltas for shard in self._shards):
            return MappedDevice(device, maps, [sum(pages for _, pages in shard.deltas) for shard in self._shards])
        return device

    def _in_layout(self, device: Device) -> Device:
        """Return a device that shows all files in one layout: the given one if they already are."""
        layout = self._layout
        files = [
            (pages, number)
            for shard in self._shards
            for (_, pages), number in zip(
                [(shard.pages_file, shard.pages), *shard.deltas], shard.page_layouts, strict=True
            )
        ]
        layouts = self._manifest.row_layouts.layouts
        others = sorted({number for _, number in files if not layouts[number].equals(layout)})
        if not others:
            return device
        mapping = _layout_mapping(self._manifest, [layouts[number] for number in others], layout, self._defaults)
        source = {number: at for at, number in enumerate(others)}
        return TranscodedDevice(device, [FileLayout(pages, source.get(number, -1)) for pages, number in files], mapping)

    def _index(self, shard: ShardFiles, order: Ints | None) -> ClusteredIndex | ScatteredIndex:
        bound = shard.index_file not in shard.unbound
        if self._timed:
            first, continues, times = load_timed_index(self._place / shard.index_file, shard.index_entries, bound=bound)
            return ClusteredIndex(first, continues, shard.last_key, order, times)
        first, continues = load_index(self._place / shard.index_file, shard.index_entries, bound=bound)
        if shard.leaves_file is None:
            return ClusteredIndex(first, continues, shard.last_key, order)
        leaves = self._device([(shard, shard.leaves_file, shard.leaves)])
        return ScatteredIndex(ClusteredIndex(first, continues, shard.last_key), leaves)

    def _device(self, named: Sequence[tuple[ShardFiles, str, int]]) -> Device:
        """Return the device that reads the pages of some files."""
        bound = [name not in shard.unbound for shard, name, _ in named]
        place, depth = self._place, self._depth
        if isinstance(place, StorePath):
            objects = [(place / name, self._statuses[name], pages) for _, name, pages in named]
            return StoreDevice(objects, self._page_bytes, bound=bound, depth=depth, tier=self._tier)
        paths = [(place / name, pages) for _, name, pages in named]
        return FileDevice(paths, self._page_bytes, bound=bound, direct=self._direct, depth=depth)


def _layout_mapping(
    manifest: Manifest, sources: Sequence[RowLayout], target: RowLayout, defaults: Defaults
) -> RowMapping | PackedMapping:
    """Return how rows of some layouts become rows of another layout of the same relation."""
    shown = codec_of(manifest, target)
    numbers = [target.numbers[target.schema.get_field_index(name)] for name in shown.schema.names]
    rows, given = [], []
    for source in sources:
        codec = codec_of(manifest, source)
        names = [None if at < 0 else source.schema.names[at] for at in map(source.position, numbers)]
        rows.append((codec, [-1 if name is None else codec.schema.get_field_index(name) for name in names]))
        given.append({at: defaults[number] for at, number in enumerate(numbers) if number in defaults})
    if shown.packings or any(codec.packings for codec, _ in rows):
        return PackedMapping(rows, shown, given)
    return map_rows(rows, shown, given)


def shown_page_bytes(manifest: Manifest) -> int:
    """Return the bytes that a page of R may need in memory: more than on disk if rows are in earlier layouts."""
    layouts = manifest.row_layouts
    used = sorted({number for shard in manifest.shards for number in shard.page_layouts})
    others = [layouts.layouts[number] for number in used if not layouts.layouts[number].equals(layouts.current)]
    if not others:
        return manifest.page_bytes
    return frame_bytes_for(manifest.page_bytes, _layout_mapping(manifest, others, layouts.current, layouts.defaults))


def bytes_in_memory(manifest: Manifest) -> int:
    """Return the bytes of all pages of R in memory, and of tables for packed columns."""
    tables = 0 if manifest.packing is None else manifest.packing.nbytes
    return manifest.nbytes * shown_page_bytes(manifest) // manifest.page_bytes + tables


def check_files(path: Place, shards: Sequence[ShardFiles], page_bytes: int) -> dict[str, ObjectStatus]:
    """Raise `NotARelationError` if a file of pages is missing, not a regular file, or of the wrong size.

    It reads no content. A store is listed once, and the status of its objects is returned.
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
                    f"{path / name} {what}, but the manifest lists it; run semistream repair, or build it again"
                ) from None
            size = status.st_size
            if not stat.S_ISREG(status.st_mode):
                raise NotARelationError(f"{path / name} is not a file, but the manifest lists it; build it again")
            if size != expected:
                raise NotARelationError(
                    f"{path / name} has {size:,} bytes instead of {expected:,}: it was truncated or replaced; "
                    "run semistream repair, or build the relation again"
                )
    return listed
