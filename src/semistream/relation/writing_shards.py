"""Writes one shard of the next version of R: only what an update changed, or all of it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Ints
from semistream.core.errors import SemistreamError
from semistream.relation.changes.patch import Patch
from semistream.relation.filters.added_keys import filter_after_update
from semistream.relation.open_relation import OpenRelation
from semistream.relation.pages.page_index import ClusteredIndex
from semistream.relation.pages.page_layout import page_keys
from semistream.relation.pages.shard_writer import ShardWriter
from semistream.relation.pages.stored_rows import codec_of, roomy_codec, whole_rows
from semistream.relation.rows.dictionaries import roomy_schema
from semistream.relation.storage.checksum import file_seed, seal
from semistream.relation.storage.files import write_file
from semistream.relation.storage.index_file import index_to_bytes
from semistream.relation.storage.manifest import ShardFiles
from semistream.relation.storage.map_file import load_map, map_to_bytes
from semistream.relation.storage.page_map import PageMap
from semistream.relation.stores.scratch import publish, workplace
from semistream.relation.stores.store_path import Place

__all__ = ["rewrite_shard", "roomy_rows", "write_shard"]

_PAGES_AT_ONCE, _BYTES_AT_ONCE = 512, 1 << 26


def write_shard(relation: OpenRelation, place: int, patch: Patch, name: str) -> ShardFiles:
    """Write one shard as changed by a patch; return its files in the next version, the same if nothing changed.

    ``place`` is the shard's position among the relation's open shards, and ``name`` the stem of its files.
    """
    path, number = relation.place, relation.open_shards[place]
    shard = relation.stored.shards[number]
    before, after = relation.indexes[place], patch.indexes[place]
    if after is before:
        return shard
    assert isinstance(after, ClusteredIndex)
    assert relation.overlay.ids.size == 0, "an update is written on top of the version it was worked out for"
    base, end = (int(bound) for bound in relation.shard_bases[place : place + 2])
    old_total, old_pages = relation.page_count, end - base
    order = np.arange(base, base + after.first.size) if after.ids is None else after.ids
    fresh = np.sort(order[order >= old_total])

    def local(ids: Ints) -> Ints:
        return np.where(ids >= old_total, old_pages + np.searchsorted(fresh, ids), ids - base)

    overlay = patch.overlay
    mine = ((overlay.ids >= base) & (overlay.ids < end)) | np.isin(overlay.ids, fresh)
    frames = np.ascontiguousarray(overlay.frames[overlay.slots[mine]][:, : relation.layout.room])
    changed, ordered = local(overlay.ids[mine]), local(order)
    _check_own(path, number, np.concatenate([changed, ordered]), old_pages + fresh.size)
    old_map = PageMap.plain(shard.pages) if shard.map_file is None else load_map(path, shard)[1]
    page_map = _merged(old_map, changed, sum(pages for _, pages in shard.deltas), old_pages + fresh.size)
    seal(frames, 0, file_seed(f"{name}.delta"))
    write_file(path / f"{name}.delta", frames.reshape(-1).data)
    write_file(path / f"{name}.index", index_to_bytes(f"{name}.index", after.first, after.continues, after.times))
    write_file(path / f"{name}.map", map_to_bytes(f"{name}.map", ordered, page_map))
    return dataclasses.replace(
        shard,
        index_file=f"{name}.index",
        map_file=f"{name}.map",
        deltas=(*shard.deltas, (f"{name}.delta", len(frames))),
        layouts=(*shard.page_layouts, relation.stored.row_layouts.number),
        indexed=after.first.size,
        last_key=after.last_key,
        rows=shard.rows + patch.more_rows[place],
        unique=shard.unique and patch.unique,
        filter=filter_after_update(
            path, shard.filter, patch.new_keys[place] if patch.new_keys else None, name, f"{name}.index"
        ),
    )


def rewrite_shard(relation: OpenRelation, name: str) -> ShardFiles:
    """Rewrite the only open shard of a clustered relation, in key order and full pages; return its files."""
    path, manifest = relation.place, relation.stored
    with workplace(path) as made:
        writer = ShardWriter(
            made, name, roomy_schema(manifest.schema), relation.key, page_bytes=manifest.page_bytes, fill=manifest.fill,
            times=manifest.times, codec=roomy_codec(codec_of(manifest)),
        )  # fmt: skip
        order = relation.page_order if relation.page_order.size else np.arange(relation.page_count)
        try:
            for keys, batch in roomy_rows(relation, order):
                writer.write(keys, batch)
            written = writer.close()
            publish(made, path, written.all_files)
            return written.with_layout(manifest.row_layouts.number)
        except BaseException:
            writer.abort()
            raise


def roomy_rows(relation: OpenRelation, pages: Ints) -> Iterator[tuple[Ints, pa.RecordBatch]]:
    """Yield keys and rows of pages, with int32 dictionary indices: there may be more values than R's can number."""
    schema = roomy_schema(relation.schema)
    codec = roomy_codec(relation.codec)
    at_once = max(1, min(_PAGES_AT_ONCE, _BYTES_AT_ONCE // relation.page_bytes, pages.size))
    frames = relation.frames(at_once)
    for begin in range(0, pages.size, at_once):
        part = frames[: min(at_once, pages.size - begin)]
        relation.read(pages[begin : begin + at_once], part)
        keys, _, starts = page_keys(part, relation.layout.stride)
        yield keys, whole_rows(schema, relation.key, keys, codec.decode(part.reshape(-1), starts))


def _check_own(path: Place, number: int, ids: Ints, pages: int) -> None:
    """Raise if a shard would refer to pages of another shard: no new version is better than a wrong one."""
    if ids.size and not (ids.min() >= 0 and ids.max() < pages):
        raise SemistreamError(
            f"the update of shard {number} of {path} would use pages {ids.min()} to {ids.max()}, and the shard "
            f"has pages 0 to {pages - 1}; nothing was changed: this is a bug, please report it"
        )


def _merged(old: PageMap, changed: Ints, delta_pages: int, page_count: int) -> PageMap:
    """Return a map in which ``changed`` are the next pages after ``delta_pages``."""
    stays = ~np.isin(old.changed, changed)
    ids = np.concatenate([old.changed[stays], changed])
    places = np.concatenate([old.places[stays], delta_pages + np.arange(changed.size)])
    order = np.argsort(ids)
    return PageMap(page_count, old.file_pages, ids[order], places[order])
