"""Versions of R on disk: `upsert` and `delete` write the pages they change and a new manifest, `compact` folds in.

A version is never changed once its manifest is there. Files are written and flushed first, the manifest is linked into
place last, so a crash at any point leaves the last version as it was, and readers stay on the version they opened.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Ints
from semistream.core.errors import NotARelationError, SemistreamError
from semistream.relation import builder
from semistream.relation.changes.patch import Patch
from semistream.relation.pages.page_index import ClusteredIndex
from semistream.relation.pages.page_layout import page_keys
from semistream.relation.pages.shard_writer import ShardWriter, stored_schema, whole_rows
from semistream.relation.relation import Relation
from semistream.relation.rows.arrow_input import read_whole
from semistream.relation.rows.dictionaries import roomy_schema
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.checksum import file_seed, seal
from semistream.relation.storage.files import write_file
from semistream.relation.storage.index_file import index_to_bytes
from semistream.relation.storage.manifest import OPERATION, Manifest, ShardFiles
from semistream.relation.storage.map_file import load_map, map_to_bytes
from semistream.relation.storage.page_map import PageMap
from semistream.relation.stores.scratch import publish, workplace
from semistream.relation.stores.store_path import Place, place_of
from semistream.relation.versions.leases import Writer
from semistream.relation.versions.retrying import until_first
from semistream.relation.versions.vacuum import vacuum

__all__ = ["Version", "compact", "delete", "history", "rewrite_shard", "update", "upsert", "vacuum", "write_shard"]

PathLike = str | os.PathLike[str]

_PAGES_AT_ONCE, _BYTES_AT_ONCE = 512, 1 << 26


@dataclass(frozen=True)
class Version:
    """One version of a relation."""

    number: int
    rows: int
    pages: int
    changed_pages: int
    """Pages in files of their own since the last build or `compact`; each costs scans a seek."""
    committed: float
    """Seconds since the epoch."""
    operation: str | None = None
    """What made it: build, upsert, delete, compact or repair; None of versions that do not tell."""


def upsert(path: PathLike, data: Any) -> int:
    """Give keys new rows, or their first; return the number of the version that has them.

    Parameters
    ----------
    path
        A relation that is clustered.
    data
        Rows of R, as `Relation.build` takes them. A key that occurs here has these rows from now on, and no others.
        Changed pages are worked out in memory; for more than that, `semistream.spark.upsert`.

    Examples
    --------
    >>> import pyarrow as pa, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Relation.build(pa.table({"id": [1, 2], "name": ["apple", "fig"]}), f"{folder}/r", key="id")
    ...     number = upsert(f"{folder}/r", pa.table({"id": [2, 3], "name": ["date", "pear"]}))
    ...     number, Relation.open(f"{folder}/r").to_table()["name"].to_pylist()
    (2, ['apple', 'date', 'pear'])
    """
    return update(path, upserts=data)


def delete(path: PathLike, keys: Any) -> int:
    """Remove keys with all their rows; return the number of the version without them.

    ``keys`` is an Arrow array, or anything with the key columns. Keys that R does not have are passed over.
    """
    return update(path, deletes=keys)


def update(path: PathLike, *, upserts: Any = None, deletes: Any = None) -> int:
    """Delete and upsert in one version; see `upsert` and `delete`. Deleted first, then upserted."""
    path = place_of(path)
    upserts, deletes = read_whole(upserts), read_whole(deletes)  # may be needed again
    operation = " and ".join(name for name, given in (("delete", deletes), ("upsert", upserts)) if given is not None)

    def work() -> int:
        manifests.load(path)  # says why this is not a relation, before anything is written there
        with Writer(path) as writer:
            manifest = manifests.load(path)
            with Relation.open(path, version=manifest.version) as relation:
                patch = relation.prepare(upserts, deletes)
                shards = [
                    write_shard(path, number, shard, relation, patch, builder.shard_name(number, writer.run))
                    for number, shard in enumerate(manifest.shards)
                ]
            following = dataclasses.replace(
                manifest, shards=tuple(shards), version=manifest.version + 1,
                properties={**manifest.properties, OPERATION: operation},
            )  # fmt: skip
            writer.commit(following)
            return following.version

    return until_first(path, work)


def write_shard(path: Place, number: int, shard: ShardFiles, relation: Relation, patch: Patch, name: str) -> ShardFiles:
    """Write what a patch makes of one shard; return its files in the next version, the same ones if nothing changed.

    ``number`` is its place among the relation's open shards, and ``name`` the stem of its files.
    """
    before, after = relation.indexes[number], patch.indexes[number]
    if after is before:
        return shard
    assert isinstance(after, ClusteredIndex)
    assert relation.overlay.ids.size == 0, "an update is written on top of the version it was worked out for"
    base, end = (int(bound) for bound in relation.shard_bases[number : number + 2])
    old_total, old_pages = relation.page_count, end - base
    order = np.arange(base, base + after.first.size) if after.ids is None else after.ids
    fresh = np.sort(order[order >= old_total])

    def local(ids: Ints) -> Ints:
        return np.where(ids >= old_total, old_pages + np.searchsorted(fresh, ids), ids - base)

    overlay = patch.overlay
    mine = ((overlay.ids >= base) & (overlay.ids < end)) | np.isin(overlay.ids, fresh)
    frames = overlay.frames[overlay.slots[mine]]
    changed, ordered = local(overlay.ids[mine]), local(order)
    _check_own(path, number, np.concatenate([changed, ordered]), old_pages + fresh.size)
    old_map = PageMap.plain(shard.pages) if shard.map_file is None else load_map(path, shard)[1]
    page_map = _merged(old_map, changed, sum(pages for _, pages in shard.deltas), old_pages + fresh.size)
    seal(frames, 0, file_seed(f"{name}.delta"))
    write_file(path / f"{name}.delta", frames.reshape(-1).data)
    write_file(path / f"{name}.index", index_to_bytes(f"{name}.index", after.first, after.continues))
    write_file(path / f"{name}.map", map_to_bytes(f"{name}.map", ordered, page_map))
    return dataclasses.replace(
        shard,
        index_file=f"{name}.index",
        map_file=f"{name}.map",
        deltas=(*shard.deltas, (f"{name}.delta", len(frames))),
        indexed=after.first.size,
        last_key=after.last_key,
        rows=shard.rows + patch.more_rows[number],
        unique=shard.unique and patch.unique,
    )


def rewrite_shard(path: Place, relation: Relation, manifest: Manifest, name: str) -> ShardFiles:
    """Write the one open shard of a clustered relation anew, in key order and full pages; return its files."""
    with workplace(path) as made:
        writer = ShardWriter(
            made, name, roomy_schema(manifest.schema), relation.key, page_bytes=manifest.page_bytes, fill=manifest.fill
        )  # fmt: skip
        order = relation.page_order if relation.page_order.size else np.arange(relation.page_count)
        try:
            for keys, batch in _roomy_rows(relation, order):
                writer.write(keys, batch)
            written = writer.close()
            publish(made, path, written.files)
            return written
        except BaseException:
            writer.abort()
            raise


def _roomy_rows(relation: Relation, pages: Ints) -> Iterator[tuple[Ints, pa.RecordBatch]]:
    """Yield keys and rows of pages; their dictionaries may have more words than R's can number."""
    schema = roomy_schema(relation.schema)
    codec = RowCodec(stored_schema(schema, relation.key))
    at_once = max(1, min(_PAGES_AT_ONCE, _BYTES_AT_ONCE // relation.page_bytes, pages.size))
    frames = relation.frames(at_once)
    for begin in range(0, pages.size, at_once):
        part = frames[: min(at_once, pages.size - begin)]
        relation.read(pages[begin : begin + at_once], part)
        keys, _, starts = page_keys(part, relation.layout.stride)
        yield keys, whole_rows(schema, relation.key, keys, codec.decode(part.reshape(-1), starts))


def compact(path: PathLike) -> int:
    """Write R anew without the traces of updates; return the number of that version. Old versions stay readable."""
    path = place_of(path)

    def work() -> int:
        with Relation.open(path) as relation:
            manifest = manifests.load(path, relation.version)
            rows = (batch for _, batch in _roomy_rows(relation, np.arange(relation.page_count)))
            builder.build(
                pa.RecordBatchReader.from_batches(roomy_schema(manifest.schema), rows), path, manifest.key,
                schema=manifest.schema, page_size=manifest.page_bytes, fill=manifest.fill, clustered=manifest.clustered,
                shards=len(manifest.shards), properties={**manifest.properties, OPERATION: "compact"},
                follows=manifest.version,
            )  # fmt: skip
            return manifest.version + 1

    return until_first(path, work)


def history(path: PathLike) -> list[Version]:
    """Return all versions that can still be opened, the oldest first."""
    path = place_of(path)
    numbers = manifests.versions(path)
    if not numbers:
        manifests.load(path)  # says why this is not a relation
    result = []
    for number in numbers:
        try:
            manifest = manifests.load(path, number)
            committed = (path / manifests.name_of(number)).stat().st_mtime
        except (NotARelationError, FileNotFoundError):
            if number in manifests.versions(path):
                raise
            continue  # removed meanwhile
        changed = sum(pages for shard in manifest.shards for _, pages in shard.deltas)
        pages = sum(
            shard.pages if shard.map_file is None else load_map(path, shard)[1].page_count for shard in manifest.shards
        )
        operation = manifest.properties.get(OPERATION)
        result.append(Version(number, manifest.rows, pages, changed, committed, operation))
    return result


def _check_own(path: Place, number: int, ids: Ints, pages: int) -> None:
    """Refuse to write a shard that would name pages of another: better no new version than a wrong one."""
    if ids.size and not (ids.min() >= 0 and ids.max() < pages):
        raise SemistreamError(
            f"the update of shard {number} of {path} would use pages {ids.min()} to {ids.max()}, and the shard "
            f"has pages 0 to {pages - 1}; nothing was changed: please report this"
        )


def _merged(old: PageMap, changed: Ints, delta_pages: int, page_count: int) -> PageMap:
    """Return a map in which ``changed`` are the next pages after ``delta_pages``."""
    stays = ~np.isin(old.changed, changed)
    ids = np.concatenate([old.changed[stays], changed])
    places = np.concatenate([old.places[stays], delta_pages + np.arange(changed.size)])
    order = np.argsort(ids)
    return PageMap(page_count, old.file_pages, ids[order], places[order])
