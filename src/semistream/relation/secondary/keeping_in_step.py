"""Keeps secondary indexes in step: writes what a new version of R changes in each of its indexes.

It compares the files of the two versions, and not what a writer meant to change. So it is the same for every writer:
an update, a commit of a followed table, the tasks of a Spark job. The changed keys of R have old rows and new rows. In
an index, all rows of the values that occur in either are replaced::

    R       id 7:  email a@x ──▶ b@x         old rows: (7, a@x)   new rows: (7, b@x)
    index   a@x:   rows of 7 and 9 ──▶ 9     b@x:   ──▶ row of 7

The new files are named by the same manifest as those of R, so a version has both or does not exist. If too many rows
changed to compare them in memory, or R was written completely, the index is sorted again from R's rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Ints
from semistream.core.errors import KeyColumnError, KeyTypeError
from semistream.relation.builder import shard_name
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.open_relation import OpenRelation
from semistream.relation.pages.page_layout import page_keys
from semistream.relation.pages.sorted_shards import SortedShards
from semistream.relation.pages.stored_rows import codec_of, roomy_codec, whole_rows
from semistream.relation.rows.dictionaries import roomy, roomy_schema
from semistream.relation.rows.selection import keep_rows
from semistream.relation.storage.manifest import Manifest, ShardFiles
from semistream.relation.storage.secondary_index import SecondaryIndex
from semistream.relation.stores.scratch import publish, workplace
from semistream.relation.stores.store_path import Place
from semistream.relation.version_changes import differing_keys, pages_written_between
from semistream.relation.versions.leases import Writer
from semistream.relation.writing_shards import write_shard

__all__ = ["built_index", "possible_indexes", "with_indexes_in_step"]

_MEMORY = 512 << 20
"""Bytes. Sorting, and rows that are compared in memory, use at most about this."""
_COPIES = 8
"""Copies of changed rows and pages in memory: old rows, new rows, rows of the index, and pages as in an update."""
_PAGES_AT_ONCE = 256

_OPENED = {"direct": True, "depth": 64, "local": None}
"""How files that are not committed yet are opened."""


def with_indexes_in_step(writer: Writer, before: Manifest, after: Manifest, *, memory: int = _MEMORY) -> Manifest:
    """Return ``after`` with all indexes of ``before``, brought up to its rows. Call it before ``after`` is committed.

    Parameters
    ----------
    writer
        The writer of ``after``, whose files of R are already written.
    before
        The version that ``after`` follows. The caller has it open.
    memory
        Bytes; see `_MEMORY`.
    """
    if not before.indexes:
        return after
    changes = None if before.shards == after.shards else _Changes.between(writer.path, before, after, memory)
    indexes = []
    possible = possible_indexes(before, after.schema)
    for number, index in enumerate(before.indexes):
        if index.key not in possible:
            continue
        shards: tuple[ShardFiles, ...] | None = index.shards
        if (before.schema, before.key) != (after.schema, after.key):
            shards = None
        elif before.shards != after.shards:
            shards = None if changes is None else _updated(writer, before, index, number, changes, memory)
        if shards is None:
            indexes.append(built_index(writer, after, index.key, number, memory=memory))
        else:
            indexes.append(SecondaryIndex(index.key, shards, after.version))
    return dataclasses.replace(after, indexes=tuple(indexes))


def possible_indexes(manifest: Manifest, schema: pa.Schema) -> list[tuple[str, ...]]:
    """Return the columns of the indexes that a version with another schema can have: others lost a column."""

    def fits(key: tuple[str, ...]) -> bool:
        try:
            KeyCodec.for_schema(schema, key)
        except (KeyColumnError, KeyTypeError):
            return False
        return True

    return [index.key for index in manifest.indexes if fits(index.key)]


def built_index(
    writer: Writer, manifest: Manifest, key: tuple[str, ...], number: int, *, memory: int = _MEMORY
) -> SecondaryIndex:
    """Build an index from all rows of R, which need not be committed; ``number`` distinguishes its files."""
    codec, held = KeyCodec.for_schema(manifest.schema, key), roomy_schema(manifest.schema)
    names = [shard_name(shard, writer.run, number) for shard in range(len(manifest.shards))]
    with (
        workplace(writer.path) as made,
        contextlib.closing(OpenRelation.of_files(writer.path, manifest, None, **_OPENED)) as relation,
        contextlib.closing(
            SortedShards(
                made, names, held, codec, spill=f".sorting-{writer.run}-{number}", memory=memory,
                page_bytes=manifest.page_bytes, fill=manifest.fill,
                codec=lambda key: roomy_codec(codec_of(manifest, key=key)),
            )
        ) as shards,
    ):  # fmt: skip
        for batch in relation.to_batches():
            shards.add(roomy(batch, held))
        files = [shard.with_layout(manifest.row_layouts.number) for shard in shards.finish()]
        publish(made, writer.path, [name for one in files for name in one.all_files])
    return SecondaryIndex(key, tuple(files), manifest.version)


@dataclasses.dataclass(frozen=True)
class _Changes:
    """What differs between two versions of R."""

    keys: Ints
    """Changed keys of R, as key64, that the earlier version has."""
    old: pa.Table
    """Their rows in the earlier version."""
    new: pa.Table
    """Rows of changed keys in the later version."""

    @classmethod
    def between(cls, place: Place, before: Manifest, after: Manifest, memory: int) -> _Changes | None:
        """Compare two versions; return None if that needs more memory, or if all of R was written again."""
        pages = [pages_written_between(place, before, after, shard) for shard in range(len(before.shards))]
        row_bytes = before.nbytes / max(1, before.rows)
        old: list[pa.RecordBatch] = []
        new: list[pa.RecordBatch] = []
        known = [np.empty(0, np.int64)]
        count = 0
        for shard, written in enumerate(pages):
            if written is None:
                return None
            with (
                contextlib.closing(OpenRelation.of_files(place, before, [shard], **_OPENED)) as first,
                contextlib.closing(OpenRelation.of_files(place, after, [shard], **_OPENED)) as second,
            ):
                were, are = written
                keys = differing_keys(first, were, second, are)
                count += keys.size
                if count * row_bytes * _COPIES > memory:
                    return None
                for relation, numbers, parts in ((first, were, old), (second, are, new)):
                    for found, rows in _rows_with(relation, numbers, keys):
                        parts.append(rows)
                        if relation is first:
                            known.append(found)
        schema = roomy_schema(before.schema)
        return cls(np.unique(np.concatenate(known)), pa.Table.from_batches(old, schema),
                   pa.Table.from_batches(new, schema))  # fmt: skip


def _updated(
    writer: Writer, before: Manifest, index: SecondaryIndex, number: int, changes: _Changes, memory: int
) -> tuple[ShardFiles, ...] | None:
    """Write an index with changed rows; return its shards, or None if that needs more than ``memory``."""
    manifest = before.in_order_of(index.key)
    with contextlib.closing(OpenRelation.of_files(writer.path, manifest, None, **_OPENED)) as relation:
        values = np.union1d(_keys_of(relation.key, changes.old), _keys_of(relation.key, changes.new))
        pages = np.unique(relation.locate(values).pages)
        if (pages.size * before.page_bytes + changes.old.nbytes + changes.new.nbytes) * _COPIES > memory:
            return None
        stay = [
            keep_rows(rows, ~np.isin(before.codec.encode(rows)[0], changes.keys))
            for _, rows in _rows_with(relation, pages, values)
        ]
        schema = changes.new.schema
        rows = pa.concat_tables([pa.Table.from_batches(stay, schema), changes.new])
        patch = relation.prepare(rows, changes.old.select(list(index.key)))
        return tuple(
            write_shard(relation, shard, patch, shard_name(shard, writer.run, number))
            for shard in range(len(index.shards))
        )


def _keys_of(codec: KeyCodec, rows: pa.Table) -> Ints:
    """Return the key64 of rows whose key is not NULL, ascending."""
    found = [np.empty(0, np.int64)]
    for batch in rows.to_batches():
        keys, valid = codec.encode(batch)
        found.append(keys[valid])
    return np.unique(np.concatenate(found))


def _rows_with(relation: OpenRelation, pages: Ints, keys: Ints) -> Iterator[tuple[Ints, pa.RecordBatch]]:
    """Yield the rows of some pages that have one of ``keys``, with their key64; in `roomy_schema`."""
    schema = roomy_schema(relation.schema)
    codec = roomy_codec(relation.codec)
    frames = relation.frames(min(_PAGES_AT_ONCE, max(1, pages.size)))
    for begin in range(0, pages.size, len(frames)):
        part = pages[begin : begin + len(frames)]
        relation.read(part, frames[: part.size])
        found, _, starts = page_keys(frames[: part.size], relation.layout.stride)
        here = np.isin(found, keys)
        rows = codec.decode(frames.reshape(-1), starts[here])
        yield found[here], whole_rows(schema, relation.key, found[here], rows)
