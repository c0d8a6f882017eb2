"""Work out what an update makes of R's pages: rows of changed keys out, new rows in, in key order.

Pages with a changed key are unpacked, changed and packed again. Rows of a key that spans pages bind these pages into
a group; a group is packed anew into its own pages, evenly, so that all keep room, and into more pages only if its rows
do not fit. Pages that keep room for this are what the fill factor of a relation is for (SSIJ §IV-E).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.arrays import Bools, Bytes, Ints
from semistream.core.compiled import frozen, kernel
from semistream.core.errors import RelationBuildError, UnsupportedJoinError
from semistream.relation.builder import as_reader
from semistream.relation.changes.overlay import Overlay
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.pages.page_index import ClusteredIndex
from semistream.relation.pages.page_layout import FIRST, FORMAT, HEADER, LAST, WHOLE, pack_pages, page_keys, page_rows
from semistream.relation.rows.fitting import fit, no_rows
from semistream.relation.rows.row_codec import Rows
from semistream.relation.rows.selection import keep_rows, take_rows

if TYPE_CHECKING:
    from semistream.relation.relation import Relation

__all__ = ["Patch", "page_order", "prepare"]


@dataclass(frozen=True)
class Patch:
    """An update that is worked out and not yet installed."""

    of_version: int
    """Version of R that it applies to."""
    keys: Ints
    pages: Ints
    overlay: Overlay
    indexes: list[ClusteredIndex]
    page_order: Ints
    index_bytes: int
    """`Relation.index_bytes` once this is installed."""
    row_count: int
    more_rows: tuple[int, ...]
    """By how many rows each shard grows."""
    unique: bool

    @property
    def nbytes(self) -> int:
        """Bytes that R holds in memory once this is installed: changed pages, and the index."""
        return self.overlay.nbytes + self.index_bytes

    @property
    def page_count(self) -> int:
        """Pages of R once this is installed."""
        return self.overlay.page_count


class _Changes(NamedTuple):
    """Keys that change, and the rows that some of them have from now on; all ascending by key64."""

    keys: Ints
    row_keys: Ints
    rows: pa.RecordBatch
    gone_keys: Ints
    gone: pa.RecordBatch
    """Keys to be deleted, and their columns."""

    def of_shard(self, relation: Relation, number: int) -> _Changes:
        """Return what concerns one of the open shards."""
        if len(relation.indexes) == 1:
            return self
        keys, rows, gone = (relation.home(keys) == number for keys in (self.keys, self.row_keys, self.gone_keys))
        return _Changes(
            self.keys[keys],
            self.row_keys[rows],
            keep_rows(self.rows, rows),
            self.gone_keys[gone],
            keep_rows(self.gone, gone),
        )


class _Shard(NamedTuple):
    """What becomes of one shard."""

    now: ClusteredIndex
    ids: Ints
    frames: Bytes
    emptied: Ints
    more_rows: int


@kernel
def _pages_for(lengths: Ints, begin: int, end: int, room: int) -> int:
    """Return how many pages rows of varying length need when ``room`` bytes of each are used."""
    pages, used = 0, 0
    for i in range(begin, end):
        if pages == 0 or HEADER + 7 + used + lengths[i] + 13 > room:
            pages += 1
            used = 0
        used += lengths[i] + 13
    return pages


@kernel
def _spread(lengths: Ints, bounds: Ints, pages: Ints, frame_bytes: int, stride: int) -> tuple[Ints, Ints]:
    """Spread the rows of each group evenly over its pages, or over as few more as they need.

    Returns the first row of each page, closed by the number of rows, and the number of pages of each group.
    """
    breaks = np.empty(lengths.size + 1, np.int64)
    counts = np.zeros(pages.size, np.int64)
    total = 0
    for group in range(pages.size):
        begin, end = bounds[group], bounds[group + 1]
        if begin == end:
            continue
        if stride > 0:
            capacity = max(1, (frame_bytes - HEADER - 7) // (9 + stride))
            target = max(pages[group], -(-(end - begin) // capacity))
            each = -(-(end - begin) // target)
            for first in range(begin, end, each):
                breaks[total] = first
                total += 1
                counts[group] += 1
            continue
        target = max(pages[group], _pages_for(lengths, begin, end, frame_bytes))
        least, most = 0, frame_bytes
        while least < most:
            middle = (least + most) >> 1
            if _pages_for(lengths, begin, end, middle) <= target:
                most = middle
            else:
                least = middle + 1
        used = 0
        for i in range(begin, end):
            if i == begin or HEADER + 7 + used + lengths[i] + 13 > most:
                breaks[total] = i
                total += 1
                counts[group] += 1
                used = 0
            used += lengths[i] + 13
    breaks[total] = lengths.size
    return breaks[: total + 1], counts


def prepare(relation: Relation, upserts: Any, deletes: Any) -> Patch:
    """Work an update out; see `Relation.apply`. R itself is only read."""
    if not relation.clustered:
        raise UnsupportedJoinError(
            "a relation that is not clustered cannot be updated in place; build it anew, or with clustered=True"
        )
    changes = _changes(relation, upserts, deletes)
    indexes = [index for index in relation.indexes if isinstance(index, ClusteredIndex)]
    overlay, more_rows = relation.overlay, [0] * len(indexes)
    patched, changed = list(indexes), [np.empty(0, np.int64)]
    for number in map(int, np.unique(_homes(relation, changes.keys))):
        mine = changes.of_shard(relation, number)
        shard = _patch_shard(relation, overlay, number, indexes[number], mine)
        more_rows[number] = shard.more_rows
        patched[number] = shard.now
        left = np.setdiff1d(overlay.spare[number], shard.ids)
        overlay = overlay.with_pages(number, shard.ids, shard.frames, np.concatenate([left, shard.emptied]))
        changed.append(shard.ids)
    again = changes.row_keys[1:] == changes.row_keys[:-1]
    order = page_order(patched, relation.shard_bases)
    return Patch(
        of_version=relation.version,
        keys=changes.keys,
        pages=np.sort(np.concatenate(changed)),
        overlay=overlay,
        indexes=patched,
        page_order=order,
        index_bytes=relation.map_bytes + order.nbytes + sum(index.nbytes for index in patched),
        row_count=relation.row_count + sum(more_rows),
        more_rows=tuple(more_rows),
        unique=relation.unique and not again.any(),
    )


def _homes(relation: Relation, keys: Ints) -> NDArray[np.int32]:
    """Return the open shard of each key; one that is not open cannot be updated."""
    homes = relation.home(keys)
    if homes.size and homes.min() < 0:
        raise RelationBuildError(
            f"{np.count_nonzero(homes < 0):,} keys of the update belong to shards that are not open: "
            f"{len(relation.indexes)} of {relation.shard_count} are; open all shards, or update only keys of these"
        )
    return homes


def page_order(indexes: list[ClusteredIndex], bases: Ints) -> Ints:
    """Return the page ids of all shards in key order, or nothing where that is the order of the ids."""
    if all(index.ids is None for index in indexes):
        return np.empty(0, np.int64)
    return np.concatenate(
        [
            np.arange(index.first.size) + base if index.ids is None else index.ids
            for index, base in zip(indexes, bases, strict=False)
        ]
    )


def _changes(relation: Relation, upserts: Any, deletes: Any) -> _Changes:
    codec = relation.key
    if isinstance(deletes, pa.Array | pa.ChunkedArray):
        deletes = pa.table([deletes], names=list(codec.names)[:1])
    row_keys, rows = _by_key(codec, _one_batch(upserts, relation, relation.schema.names))
    gone_keys, gone = _by_key(codec, _one_batch(deletes, relation, codec.names))
    again = np.flatnonzero(row_keys[1:] == row_keys[:-1])
    if again.size and not codec.exact:
        _check_same(relation, take_rows(rows, again + 1), take_rows(rows, again))
    return _Changes(np.union1d(row_keys, gone_keys), row_keys, rows, gone_keys, gone)


def _by_key(codec: KeyCodec, batch: pa.RecordBatch) -> tuple[Ints, pa.RecordBatch]:
    """Return rows in the order of their key64; a NULL key matches nothing, so such rows are no part of R."""
    keys, valid = codec.encode(batch)
    order = np.flatnonzero(valid)[np.argsort(keys[valid], kind="stable")]
    return keys[order], take_rows(batch, order)


def _one_batch(data: Any, relation: Relation, names: Any) -> pa.RecordBatch:
    """Return rows as one batch of R's columns ``names``."""
    schema = pa.schema([relation.schema.field(name) for name in names])
    if data is None:
        return no_rows(schema)
    table = as_reader(data).read_all()
    missing = [name for name in names if name not in table.schema.names]
    if missing:
        raise RelationBuildError(
            f"the update lacks R's column {missing[0]!r}; it has {table.schema.names}, and needs {list(names)}"
        )
    batches = table.select(list(names)).combine_chunks().to_batches()
    return fit(batches[0], schema) if batches else no_rows(schema)


def _check_same(relation: Relation, these: pa.RecordBatch, those: pa.RecordBatch) -> None:
    names = list(relation.key.names)
    if not relation.key.verify(these, names, those.select(names)).all():
        raise RelationBuildError(
            f"two different keys of {names} have the same 64-bit hash, a one-in-billions event; R cannot hold both: "
            "add a column to the key, or map the key to integers"
        )


def _patch_shard(relation: Relation, overlay: Overlay, number: int, index: ClusteredIndex, changes: _Changes) -> _Shard:
    """Write anew all pages of a shard that hold, or are to hold, rows of the changed keys."""
    ids = np.arange(index.first.size) + relation.shard_bases[number] if index.ids is None else index.ids
    begin, count = index.between(changes.keys, changes.keys)
    touched, group_of = _groups(begin, count, ids.size)
    frames = relation.frames(touched.size)
    overlay.read(relation.device, ids[touched], frames)
    stride = relation.layout.stride
    keys, flags, starts = page_keys(frames, stride)
    group = np.repeat(group_of, page_rows(frames))
    dead = np.isin(keys, changes.keys)
    if not relation.key.exact and dead.any():
        dead[dead] = _true_keys(relation, frames, keys[dead], starts[dead], changes)
    encoded = relation.codec.encode(changes.rows.select(relation.codec.schema.names))
    _check_width(relation, encoded.lengths)
    place = np.minimum(begin, max(ids.size - 1, 0))[np.searchsorted(changes.keys, changes.row_keys)]
    row_group = group_of[np.searchsorted(touched, place)] if touched.size else np.zeros(place.size, np.int64)
    groups = int(group_of[-1]) + 1 if group_of.size else int(place.size > 0)
    # a group that only holds keys to be deleted which R does not have stays as it is
    active = np.bincount(np.concatenate([group[dead], row_group]), minlength=groups) > 0
    live = ~dead & active[group]

    all_keys = np.concatenate([keys[live], changes.row_keys])
    all_groups = np.concatenate([group[live], row_group])
    all_starts = np.concatenate([starts[live], encoded.starts + frames.size])
    all_flags = np.concatenate([flags[live] & np.uint8(FIRST | LAST), _ends_of_runs(changes.row_keys)])
    data = np.concatenate([frames.reshape(-1), encoded.data])
    order = np.lexsort((all_keys, all_groups))
    all_keys, all_groups, all_starts, all_flags = (
        array[order] for array in (all_keys, all_groups, all_starts, all_flags)
    )
    lengths = _lengths(data, all_starts, stride)
    pages_of_group = np.bincount(group_of, minlength=groups).astype(np.int64)
    bounds = np.searchsorted(all_groups, np.arange(groups + 1)).astype(np.int64)
    breaks, new_pages = _spread(frozen(lengths), bounds, pages_of_group, relation.layout.frame_bytes, stride)
    _set_whole(all_keys, all_groups, all_flags, breaks)
    packed = pack_pages(relation.layout, all_keys, all_flags, Rows(data, all_starts, lengths), breaks)

    new_ids, emptied = _assign_ids(ids[touched], group_of, active, new_pages, overlay.spare[number], overlay.page_count)
    nothing = np.zeros((emptied.size, packed.shape[1]), np.uint8)
    nothing[:, 20:24] = np.array([FORMAT], np.uint32).view(np.uint8)
    written = np.concatenate([new_ids, emptied])
    by_id = np.argsort(written)
    first_rows = breaks[:-1]
    spliced = _splice(
        index, ids, touched, group_of, active, new_pages,
        all_keys[first_rows], (all_flags[first_rows] & FIRST) == 0, new_ids,
        max(index.last_key, int(changes.row_keys.max(initial=index.last_key))), int(relation.shard_bases[number]),
    )  # fmt: skip
    return _Shard(
        spliced,
        written[by_id],
        np.concatenate([packed, nothing])[by_id],
        emptied,
        int(changes.row_keys.size) - int(np.count_nonzero(dead)),
    )


def _groups(begin: Ints, count: Ints, pages: int) -> tuple[Ints, Ints]:
    """Return the pages (positions) that changed keys touch, ascending, and the group of each."""
    if pages == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    home = np.minimum(begin, pages - 1)
    more = np.repeat(begin + 1, np.maximum(count - 1, 0))
    within = np.arange(more.size) - np.repeat(
        np.cumsum(np.maximum(count - 1, 0)) - np.maximum(count - 1, 0), np.maximum(count - 1, 0)
    )
    linked = np.unique(more + within)  # pages that a changed key enters from the page before
    touched = np.union1d(home, linked)
    return touched, np.cumsum(~np.isin(touched, linked, assume_unique=True)) - 1


def _ends_of_runs(keys: Ints) -> Bytes:
    """Return FIRST and LAST of rows in key order that are all there are of their keys."""
    starts = np.ones(keys.size, bool)
    np.not_equal(keys[1:], keys[:-1], out=starts[1:])
    ends = np.append(starts[1:], True)[: keys.size]
    return (np.where(starts, FIRST, 0) | np.where(ends, LAST, 0)).astype(np.uint8)


def _set_whole(keys: Ints, groups: Ints, flags: Bytes, breaks: Ints) -> None:
    """Mark the rows of keys that begin and end within one page."""
    if keys.size == 0:
        return
    starts = np.ones(keys.size, bool)
    starts[1:] = (keys[1:] != keys[:-1]) | (groups[1:] != groups[:-1])
    heads = np.flatnonzero(starts)
    tails = np.append(heads[1:], keys.size) - 1
    page = np.repeat(np.arange(breaks.size - 1), np.diff(breaks))
    whole = ((flags[heads] & FIRST) > 0) & ((flags[tails] & LAST) > 0) & (page[heads] == page[tails])
    flags |= np.where(whole[np.cumsum(starts) - 1], WHOLE, 0).astype(np.uint8)


def _lengths(data: Bytes, starts: Ints, stride: int) -> Ints:
    if stride:
        return np.full(starts.size, stride, np.int64)
    words = np.empty((starts.size, 4), np.uint8)
    for byte in range(4):
        words[:, byte] = data[starts + byte]
    return words.view(np.uint32).reshape(-1).astype(np.int64)


def _assign_ids(
    old: Ints, group_of: Ints, active: Bools, new_pages: Ints, spare: Ints, page_count: int
) -> tuple[Ints, Ints]:
    """Return the id of each new page, group after group, and the ids that are left over.

    A group keeps its ids as far as it needs them; more come from pages without rows, ``spare`` of the same shard, then
    from past the end.
    """
    rank = np.arange(group_of.size) - np.searchsorted(group_of, group_of)
    mine = active[group_of] if group_of.size else np.empty(0, bool)
    keeps = mine & (rank < new_pages[group_of] if group_of.size else mine)
    emptied = old[mine & ~keeps]
    new_group = np.repeat(np.arange(new_pages.size), new_pages)
    new_rank = np.arange(new_group.size) - np.repeat(np.cumsum(new_pages) - new_pages, new_pages)
    old_counts = np.bincount(group_of, minlength=new_pages.size)
    inherits = new_rank < old_counts[new_group]
    ids = np.empty(new_group.size, np.int64)
    ids[inherits] = old[keeps]
    wanted = int(np.count_nonzero(~inherits))
    fresh = np.arange(page_count, page_count + max(0, wanted - spare.size))
    ids[~inherits] = np.concatenate([spare, fresh])[:wanted]
    return ids, emptied


def _splice(
    index: ClusteredIndex,
    ids: Ints,
    touched: Ints,
    group_of: Ints,
    active: Bools,
    new_pages: Ints,
    first: Ints,
    continues: Bools,
    new_ids: Ints,
    last_key: int,
    base: int,
) -> ClusteredIndex:
    """Return the index with the pages of active groups replaced by their new ones."""
    if ids.size == 0:
        return ClusteredIndex(first, continues, last_key, new_ids)
    counts = np.ones(ids.size, np.int64)
    head = np.searchsorted(group_of, np.arange(new_pages.size))
    counts[touched[active[group_of]]] = 0
    counts[touched[head[active]]] = new_pages[active]
    places = np.cumsum(counts) - counts
    group = np.repeat(np.arange(new_pages.size), new_pages)
    rank = np.arange(group.size) - np.repeat(np.cumsum(new_pages) - new_pages, new_pages)
    at = places[touched[head[group]]] + rank
    all_first, all_ids = np.repeat(index.first, counts), np.repeat(ids, counts)
    all_continues = np.repeat(index.continues, counts)
    all_first[at], all_continues[at], all_ids[at] = first, continues, new_ids
    plain = index.ids is None and np.array_equal(all_ids, np.arange(ids.size) + base)
    return ClusteredIndex(all_first, all_continues, last_key, None if plain else all_ids)


def _true_keys(relation: Relation, frames: Bytes, keys: Ints, starts: Ints, changes: _Changes) -> Bools:
    """Say which rows have a changed key by more than its hash; another key must not be in a new one's way."""
    stored = relation.rows(frames.reshape(-1), starts)
    renewed, at = _among(keys, changes.row_keys)
    _check_same(relation, take_rows(changes.rows, at[renewed]), keep_rows(stored, renewed))
    gone, at = _among(keys, changes.gone_keys)
    names = list(relation.key.names)
    same = relation.key.verify(take_rows(changes.gone, at[gone]), names, keep_rows(stored, gone).select(names))
    true = renewed.copy()
    true[gone] |= same
    return true


def _among(keys: Ints, ordered: Ints) -> tuple[Bools, Ints]:
    """Return which keys are among ``ordered``, and where."""
    at = np.searchsorted(ordered, keys)
    known = at < ordered.size
    known[known] = ordered[at[known]] == keys[known]
    return known, at


def _check_width(relation: Relation, lengths: Ints) -> None:
    longest, most = int(lengths.max(initial=0)), relation.layout.largest_row()
    if longest > most:
        raise RelationBuildError(
            f"a row of the update takes {longest:,} bytes, and a page holds rows up to {most:,} bytes; "
            "build the relation anew with a larger page_size"
        )
