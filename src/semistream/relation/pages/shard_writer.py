"""Writes one shard: it takes rows, and writes pages, an index and a filter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.arguments import check_at_least
from semistream.core.arrays import Bytes, Ints
from semistream.core.errors import RelationBuildError
from semistream.relation.filters.filter_writer import FilterWriter
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.keys.valid_times import ValidTimes
from semistream.relation.pages.leaves import EMPTY_KEY, leaf_entries, pack_leaves
from semistream.relation.pages.page_layout import (
    FIRST,
    HEADER,
    LAST,
    WHOLE,
    PageLayout,
    pack_pages,
    pages_needed,
    set_flags,
)
from semistream.relation.pages.stored_rows import check_row_lengths, rows_codec
from semistream.relation.rows.dictionaries import bytes_with_words
from semistream.relation.rows.row_codec import RowCodec, Rows
from semistream.relation.rows.selection import take_rows
from semistream.relation.storage import files
from semistream.relation.storage.checksum import file_seed, seal
from semistream.relation.storage.index_file import index_to_bytes
from semistream.relation.storage.manifest import ShardFiles

__all__ = ["PAGE_BYTES", "ShardWriter", "check_page_bytes", "check_shards"]


PAGE_BYTES = 8192
_CHUNK_ROWS, _CHUNK_BYTES = 1 << 16, 1 << 24
"""Rows that are packed together, and the maximum bytes of such rows."""
_MOST_SHARDS = 1 << 16
"""A manifest with as many shards has 20 MB. More names of files may not fit into memory."""


def check_page_bytes(page_bytes: int, fill: float) -> None:
    """Raise ValueError for page sizes and fill factors that cannot work."""
    if page_bytes < 512 or page_bytes % 512 or page_bytes > 1 << 26:
        raise ValueError(f"page_size must be a multiple of 512 from 512 B to 64 MiB, not {page_bytes}")
    if not 0.1 <= fill <= 1.0:
        raise ValueError(f"fill must be from 0.1 to 1.0, not {fill}; the papers use 0.8 where R is updated")


def check_shards(shards: int) -> None:
    """Raise ValueError for numbers of shards that cannot work."""
    check_at_least(1, shards=shards)
    if shards > _MOST_SHARDS:
        raise ValueError(
            f"shards must be at most {_MOST_SHARDS:,}, not {shards:,}: each has files of its own; give about as many "
            "as there are cores that join"
        )


class ShardWriter:
    """Writes the pages of one shard as rows arrive, then its index.

    Parameters
    ----------
    directory, name
        The files are ``<name>.pages``, ``<name>.index``, ``<name>.filter`` if there are many keys and, for a scattered
        shard, ``<name>.leaves``.
    schema, key
        R's schema and key columns.
    page_bytes, fill
        Page size in bytes, and the fraction of a page that is filled. A lower fill leaves room for updates, but costs
        more page reads.
    clustered
        True: batches arrive in key64 order, which is checked. False: any order is kept. The keys, 12 bytes per row
        (20 for hashed keys), are held in memory until `close` writes the leaves of the index.
    times
        For a history: the times of its rows. Batches arrive in the order of key64 and time, which is checked.
    codec
        How rows are encoded; by default plain. See `encode_with`.

    Notes
    -----
    Two different keys of R with the same key64 are an error, because joins rely on there being none. In a sorted R
    such keys are adjacent and are compared. In any other order they are distinguished by a second hash.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        schema: pa.Schema,
        key: KeyCodec,
        *,
        page_bytes: int = PAGE_BYTES,
        fill: float = 1.0,
        clustered: bool = True,
        times: ValidTimes | None = None,
        codec: RowCodec | None = None,
    ) -> None:
        check_page_bytes(page_bytes, fill)
        self._valid = times
        self._directory = directory
        self._name = name
        self._key = key
        self._clustered = clustered
        self._page_bytes, self._fill = page_bytes, fill
        self.encode_with(rows_codec(schema, key) if codec is None else codec)
        self._schema = schema
        self._carry: tuple[Ints, pa.RecordBatch] | None = None
        self._previous: int | None = None
        self._previous_row: pa.RecordBatch | None = None
        self._pages = 0
        self._rows = 0
        self._unique = True
        self.repeated: pa.RecordBatch | None = None
        """A key that has several rows, if R is clustered and such a key was seen."""
        self._first: list[Ints] = []
        self._continues: list[NDArray[np.bool_]] = []
        self._first_times: list[Ints] = []
        self._scattered_keys: list[Ints] = []
        self._scattered_pages: list[NDArray[np.uint32]] = []
        self._scattered_prints: list[Ints] = []
        self._last_key: int = EMPTY_KEY
        self._filter = FilterWriter(self._path("filter"), self._path("index").name)
        self._file = files.create(self._path("pages"))

    def encode_with(self, codec: RowCodec) -> None:
        """Encode all rows with another codec. No row may have been written."""
        self._rows_codec = codec
        stride = 0 if codec.variable else codec.stride
        self._layout = PageLayout(self._page_bytes, stride)
        self._room = max(int(self._page_bytes * self._fill), min(self._page_bytes, HEADER + 16 + stride))
        check_row_lengths(codec, self._layout, np.array([stride]), "give a larger page_size")

    def write(self, keys: Ints, batch: pa.RecordBatch) -> None:
        """Append rows. A clustered shard needs them in key order."""
        size = max(1, sum(map(bytes_with_words, batch.columns)))
        at_once = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES * batch.num_rows // size))
        for begin in range(0, batch.num_rows, at_once):
            self._write(keys[begin : begin + at_once], batch.slice(begin, at_once), last=False)

    def close(self) -> ShardFiles:
        """Write the remaining rows and the index; return the manifest's entry for this shard."""
        self._write(np.empty(0, np.int64), None, last=True)
        if self._pages == 0:
            self._append(np.empty(0, np.int64), np.empty(0, np.uint8), _no_rows(), np.zeros(2, np.int64))
            self._first.append(np.array([EMPTY_KEY]))
            self._continues.append(np.zeros(1, bool))
            self._first_times.append(np.zeros(1, np.int64))
        leaves = 0
        if self._clustered:
            first, continues = np.concatenate(self._first), np.concatenate(self._continues)
        else:
            first, continues, leaves = self._finish_scattered()
        self._file.sync()
        self._file.close()
        times = None if self._valid is None else np.concatenate(self._first_times)
        files.write_file(self._path("index"), index_to_bytes(self._path("index").name, first, continues, times))
        known = self._filter.close()
        return ShardFiles(
            pages_file=self._path("pages").name,
            index_file=self._path("index").name,
            leaves_file=None if self._clustered else self._path("leaves").name,
            rows=self._rows,
            pages=self._pages,
            leaves=leaves,
            last_key=self._last_key,
            unique=self._unique,
            filter=known,
        )

    def abandon(self) -> None:
        """Close the files, if `close` has not. The `Writer` that registered them removes them."""
        self._filter.abandon()
        self._file.close()

    def abort(self) -> None:
        """Close and remove the files."""
        self.abandon()
        for kind in ("pages", "index", "leaves", "filter"):
            files.remove(self._path(kind))

    def _path(self, kind: str) -> Path:
        return self._directory / f"{self._name}.{kind}"

    def _seed(self, kind: str) -> int:
        return file_seed(self._path(kind).name)

    def _write(self, keys: Ints, batch: pa.RecordBatch | None, *, last: bool) -> None:
        """Pack all pages except the last, whose rows are kept until more rows arrive."""
        if self._carry is not None:
            keys = np.concatenate([self._carry[0], keys])
            batch = self._carry[1] if batch is None else pa.concat_batches([self._carry[1], batch])
        if batch is None or keys.size == 0:
            return
        stored = batch.select(self._rows_codec.schema.names)
        rows = self._rows_codec.encode(stored)
        check_row_lengths(self._rows_codec, self._layout, rows.lengths, "give a larger page_size", stored)
        breaks = pages_needed(rows.lengths, self._room, self._layout.stride)
        pages = breaks.size - 1 if last else breaks.size - 2
        end = int(breaks[pages])
        self._carry = None if last else (keys[end:], batch.slice(end))
        if self._clustered:
            self._check_order(keys, batch)
        begins = None if self._valid is None else self._checked_times(keys, batch)
        if pages == 0:
            return
        if self._clustered:
            flags, continues = self._flags(keys, breaks, pages)
            self._first.append(keys[breaks[:pages]])
            self._continues.append(continues)
            if begins is not None:
                self._first_times.append(begins[breaks[:pages]])
            self._filter.add(keys[:end])
            self._last_key = int(keys[end - 1])
            self._previous, self._previous_row = int(keys[end - 1]), batch.slice(end - 1, 1)
        else:
            flags = np.zeros(keys.size, np.uint8)
            page = np.repeat(np.arange(pages, dtype=np.uint32), np.diff(breaks[: pages + 1]))
            self._scattered_keys.append(keys[:end])
            self._scattered_pages.append(page + np.uint32(self._pages))
            if not self._key.exact:
                self._scattered_prints.append(self._key.fingerprint(batch.slice(0, end)))
        self._append(keys, flags, rows, breaks[: pages + 1])
        self._rows += end

    def _append(self, keys: Ints, flags: Bytes, rows: Rows, breaks: Ints) -> None:
        frames = pack_pages(self._layout, keys, flags, rows, breaks)
        seal(frames, self._pages, self._seed("pages"))
        self._file.write(frames.reshape(-1).data)
        self._pages += frames.shape[0]

    def _check_order(self, keys: Ints, batch: pa.RecordBatch) -> None:
        same = np.flatnonzero(keys[1:] == keys[:-1])
        if np.any(keys[1:] < keys[:-1]) or (self._previous is not None and keys[0] < self._previous):
            raise RelationBuildError("rows of a clustered shard must arrive in key order; sort them first")
        continued = self._previous is not None and keys[0] == self._previous
        if (same.size or continued) and self._unique:
            self._unique = False
            self.repeated = batch.select(list(self._key.names)).slice(0 if continued else int(same[0]), 1)
        if self._key.exact:
            return
        names = list(self._key.names)
        keyed = batch.select(names)
        pairs = [(take_rows(keyed, same + 1), take_rows(keyed, same))] if same.size else []
        if continued and self._previous_row is not None:
            pairs.append((keyed.slice(0, 1), self._previous_row))
        for this, before in pairs:
            if not self._key.verify(this, names, before.select(names)).all():
                raise self._collision()

    def _checked_times(self, keys: Ints, batch: pa.RecordBatch) -> Ints:
        """Return when rows begin to be valid; raise unless versions of a key follow each other."""
        assert self._valid is not None
        before = [] if self._previous_row is None or self._previous is None else [self._previous_row]
        rows = pa.concat_batches([*before, batch]) if before else batch
        begins, all_keys = self._valid.begins(rows), np.append(np.full(len(before), self._previous or 0), keys)
        self._valid.check(all_keys, begins, self._valid.lasts(rows), rows)
        if np.any((all_keys[1:] == all_keys[:-1]) & (begins[1:] < begins[:-1])):
            raise RelationBuildError("rows of a history must arrive in the order of their times; sort them first")
        return begins[len(before) :]

    def _collision(self) -> RelationBuildError:
        return RelationBuildError(
            f"two different keys of {list(self._key.names)} have the same 64-bit hash, a one-in-billions event; "
            "add a column to the key, or map the key to integers"
        )

    def _flags(self, keys: Ints, breaks: Ints, pages: int) -> tuple[Bytes, NDArray[np.bool_]]:
        """Return the rows' flags and, for each page, whether its first key also ends the previous page."""
        starts_run = np.empty(keys.size, bool)
        starts_run[0] = self._previous is None or keys[0] != self._previous
        np.not_equal(keys[1:], keys[:-1], out=starts_run[1:])
        run = np.cumsum(starts_run)
        page = np.repeat(np.arange(breaks.size - 1), np.diff(breaks))
        head = np.flatnonzero(np.diff(run, prepend=run[0] - 1))
        tail = np.append(head[1:], keys.size) - 1
        whole = page[head] == page[tail]
        if not starts_run[0]:
            whole[0] = False
        # The last run of these rows can continue only in rows that are not packed yet.
        ends_run = np.append(starts_run[1:], True)
        flags = (np.where(starts_run, FIRST, 0) | np.where(ends_run, LAST, 0)).astype(np.uint8)
        flags |= np.where(whole[run - run[0]], WHOLE, 0).astype(np.uint8)
        return flags, ~starts_run[breaks[:pages]]

    def _finish_scattered(self) -> tuple[Ints, NDArray[np.bool_], int]:
        """Set the flags in the pages already written, and write the leaves of the index."""
        keys = np.concatenate([*self._scattered_keys, np.empty(0, np.int64)])
        pages = np.concatenate([*self._scattered_pages, np.empty(0, np.uint32)])
        order = np.argsort(keys, kind="stable")
        keys, pages_of = keys[order], pages[order].astype(np.int64)
        starts_run = np.ones(keys.size, bool)
        np.not_equal(keys[1:], keys[:-1], out=starts_run[1:])
        self._unique = bool(starts_run.all())
        if self._scattered_prints and not self._unique:
            prints = np.concatenate(self._scattered_prints)[order]
            if np.any((prints[1:] != prints[:-1]) & ~starts_run[1:]):
                raise self._collision()
        run = np.cumsum(starts_run) - 1
        heads = np.flatnonzero(starts_run)
        whole = (
            np.minimum.reduceat(pages_of, heads) == np.maximum.reduceat(pages_of, heads)
            if keys.size
            else np.empty(0, bool)
        )
        flags = np.empty(keys.size, np.uint8)
        ends_run = np.append(starts_run[1:], True)[: keys.size]
        flags[order] = np.where(starts_run, FIRST, 0) | np.where(ends_run, LAST, 0) | np.where(whole[run], WHOLE, 0)
        self._patch_flags(flags)
        self._last_key = int(keys[-1]) if keys.size else EMPTY_KEY
        self._filter.add(keys)
        entries = leaf_entries(keys, pages_of)
        frames, first, continues = pack_leaves(keys[entries], pages_of[entries], self._layout.frame_bytes)
        seal(frames, 0, self._seed("leaves"))
        files.write_file(self._path("leaves"), frames.reshape(-1).data)
        return first, continues, len(frames)

    def _patch_flags(self, flags: Bytes) -> None:
        width, at = self._layout.frame_bytes, 0
        step = max(1, (1 << 22) // width)
        for page in range(0, self._pages, step):
            count = min(step, self._pages - page)
            self._file.seek(page * width)
            frames = np.frombuffer(bytearray(self._file.read(count * width)), np.uint8).reshape(count, width)
            at = int(set_flags(frames, flags, at))
            seal(frames, page, self._seed("pages"))
            self._file.seek(page * width)
            self._file.write(frames.reshape(-1).data)


def _no_rows() -> Rows:
    return Rows(np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64))
