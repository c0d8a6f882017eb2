"""Prepares an update of R's pages: removes the rows of changed keys, and inserts new rows in key order.

Pages with a changed key are unpacked, changed and packed again. A key that spans pages binds these pages into a group.
A group is packed evenly into its own pages, so that all of them keep free room. It gets more pages only if its rows do
not fit. The fill factor of a relation exists to leave this room (SSIJ §IV-E).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Bools, Bytes, Ints
from semistream.core.compiled import frozen
from semistream.core.errors import RelationBuildError, UnsupportedJoinError
from semistream.relation.changes.changed_rows import ChangedRows, among, changed_rows, check_same_keys
from semistream.relation.changes.history_changes import as_of_moment
from semistream.relation.changes.overlay import Overlay
from semistream.relation.changes.patch import Patch
from semistream.relation.changes.repacking import (
    assign_ids,
    ends_of_runs,
    groups_of_pages,
    row_lengths,
    set_whole,
    splice_index,
    spread_rows,
)
from semistream.relation.changes.updatable import State, Updatable
from semistream.relation.keys.valid_times import ValidTimes
from semistream.relation.pages.page_index import ClusteredIndex, page_order
from semistream.relation.pages.page_layout import FIRST, FORMAT, LAST, pack_pages, page_keys, page_rows
from semistream.relation.pages.stored_rows import check_row_lengths, roomy_codec
from semistream.relation.rows.row_cells import Rows
from semistream.relation.rows.row_gather import RowGather
from semistream.relation.rows.selection import keep_rows, take_rows

__all__ = ["prepare"]


class _Shard(NamedTuple):
    """One shard after the update."""

    now: ClusteredIndex
    ids: Ints
    frames: Bytes
    emptied: Ints
    more_rows: int
    new_keys: Ints


def prepare(relation: Updatable, before: State, upserts: Any, deletes: Any, at: Any = None) -> Patch:
    """Prepare an update; see `Relation.apply`.

    R itself is only read, in its state ``before``. Each page with a changed key is read once, and held twice while it
    is packed. The indexes of changed shards are copied.
    """
    if not relation.clustered:
        raise UnsupportedJoinError(
            "a relation that is not clustered cannot be updated in place; build it again with clustered=True"
        )
    if at is not None:
        upserts, deletes = as_of_moment(relation, before, upserts, deletes, at)
    changes = changed_rows(relation, upserts, deletes)
    indexes = [index for index in before.indexes if isinstance(index, ClusteredIndex)]
    overlay, more_rows = before.overlay, [0] * len(indexes)
    patched, changed = list(indexes), [np.empty(0, np.int64)]
    new_keys = [np.empty(0, np.int64)] * len(indexes)
    for number in map(int, np.unique(_homes(relation, changes.keys))):
        mine = changes.of_shard(relation, number)
        shard = _patch_shard(relation, overlay, number, indexes[number], mine)
        more_rows[number], new_keys[number] = shard.more_rows, shard.new_keys
        patched[number] = shard.now
        left = np.setdiff1d(overlay.spare[number], shard.ids)
        overlay = overlay.with_pages(number, shard.ids, shard.frames, np.concatenate([left, shard.emptied]))
        changed.append(shard.ids)
    again = changes.row_keys[1:] == changes.row_keys[:-1]
    order = page_order(patched, relation.shard_bases)
    return Patch(
        of_revision=before.revision,
        keys=changes.keys,
        pages=np.sort(np.concatenate(changed)),
        overlay=overlay,
        indexes=patched,
        page_order=order,
        index_bytes=relation.table_bytes + order.nbytes + sum(index.nbytes for index in patched),
        row_count=before.row_count + sum(more_rows),
        more_rows=tuple(more_rows),
        unique=before.unique and not again.any(),
        null_keys=changes.null_keys,
        new_keys=tuple(new_keys),
    )


def _homes(relation: Updatable, keys: Ints) -> NDArray[np.int32]:
    """Return the open shard of each key; raise if a shard is not open, because it cannot be updated."""
    homes = relation.home(keys)
    if homes.size and homes.min() < 0:
        raise RelationBuildError(
            f"{np.count_nonzero(homes < 0):,} keys of the update belong to shards that are not open: "
            f"{len(relation.indexes)} of {relation.shard_count} are; open all shards, or update only keys of these"
        )
    return homes


def _patch_shard(
    relation: Updatable, overlay: Overlay, number: int, index: ClusteredIndex, changes: ChangedRows
) -> _Shard:
    """Rewrite all pages of a shard that hold, or will hold, rows of the changed keys."""
    ids = np.arange(index.first.size) + relation.shard_bases[number] if index.ids is None else index.ids
    begin, count = index.between(changes.keys, changes.keys)
    touched, group_of = groups_of_pages(begin, count, ids.size)
    frames = relation.frames(touched.size)
    overlay.read(relation.device, ids[touched], frames)
    stride = relation.layout.stride
    keys, flags, starts = page_keys(frames, stride)
    group = np.repeat(group_of, page_rows(frames))
    dead = np.isin(keys, changes.keys)
    if not relation.key.exact and dead.any():
        dead[dead] = _true_keys(relation, frames, keys[dead], starts[dead], changes)
    new_rows = changes.rows.select(relation.codec.schema.names)
    encoded = roomy_codec(relation.codec).encode(new_rows)  # the same bytes as of R's own types
    remedy = "build the relation again with a larger page_size"
    check_row_lengths(relation.codec, relation.layout, encoded.lengths, remedy, new_rows)
    place = np.minimum(begin, max(ids.size - 1, 0))[np.searchsorted(changes.keys, changes.row_keys)]
    row_group = group_of[np.searchsorted(touched, place)] if touched.size else np.zeros(place.size, np.int64)
    groups = int(group_of[-1]) + 1 if group_of.size else int(place.size > 0)
    # A group is unchanged if it is only touched by deletes of keys that R does not contain.
    active = np.bincount(np.concatenate([group[dead], row_group]), minlength=groups) > 0
    live = ~dead & active[group]

    all_keys = np.concatenate([keys[live], changes.row_keys])
    all_groups = np.concatenate([group[live], row_group])
    all_starts = np.concatenate([starts[live], encoded.starts + frames.size])
    all_flags = np.concatenate([flags[live] & np.uint8(FIRST | LAST), ends_of_runs(changes.row_keys)])
    data = np.concatenate([frames.reshape(-1), encoded.data])
    order = np.lexsort((all_keys, all_groups))
    all_keys, all_groups, all_starts, all_flags = (
        array[order] for array in (all_keys, all_groups, all_starts, all_flags)
    )
    lengths = row_lengths(data, all_starts, stride)
    _check_grown(relation, lengths)
    pages_of_group = np.bincount(group_of, minlength=groups).astype(np.int64)
    bounds = np.searchsorted(all_groups, np.arange(groups + 1)).astype(np.int64)
    breaks, new_pages = spread_rows(frozen(lengths), bounds, pages_of_group, relation.layout.room, stride)
    set_whole(all_keys, all_groups, all_flags, breaks)
    packed = pack_pages(relation.layout, all_keys, all_flags, Rows(data, all_starts, lengths), breaks)

    new_ids, emptied = assign_ids(ids[touched], group_of, active, new_pages, overlay.spare[number], overlay.page_count)
    nothing = np.zeros((emptied.size, packed.shape[1]), np.uint8)
    nothing[:, 20:24] = np.array([FORMAT], np.uint32).view(np.uint8)
    written = np.concatenate([new_ids, emptied])
    by_id = np.argsort(written)
    first_rows, times = breaks[:-1], None
    if relation.times is not None:
        times = _times_at(relation, relation.times, data, all_starts[first_rows])
    spliced = splice_index(
        index, ids, touched, group_of, active, new_pages,
        all_keys[first_rows], (all_flags[first_rows] & FIRST) == 0, new_ids,
        max(index.last_key, int(changes.row_keys.max(initial=index.last_key))), int(relation.shard_bases[number]),
        times,
    )  # fmt: skip
    return _Shard(
        spliced,
        written[by_id],
        np.concatenate([packed, nothing])[by_id],
        emptied,
        int(changes.row_keys.size) - int(np.count_nonzero(dead)),
        np.setdiff1d(changes.row_keys, keys),
    )


def _true_keys(relation: Updatable, frames: Bytes, keys: Ints, starts: Ints, changes: ChangedRows) -> Bools:
    """Return which rows truly have a changed key, not only its hash; raise if a new key collides with another key."""
    stored = roomy_codec(relation.codec).decode(frames.reshape(-1), starts)
    renewed, at = among(keys, changes.row_keys)
    check_same_keys(relation, take_rows(changes.rows, at[renewed]), keep_rows(stored, renewed))
    gone, at = among(keys, changes.gone_keys)
    names = list(relation.key.names)
    same = relation.key.verify(take_rows(changes.gone, at[gone]), names, keep_rows(stored, gone).select(names))
    true = renewed.copy()
    true[gone] |= same
    return true


def _times_at(relation: Updatable, times: ValidTimes, data: Bytes, starts: Ints) -> Ints:
    """Return when rows begin to be valid."""
    return times.numbers(RowGather(relation.codec, [times.valid_from])(data, starts)[0])[0]


def _check_grown(relation: Updatable, lengths: Ints) -> None:
    longest, most = int(lengths.max(initial=0)), relation.layout.largest_row()
    if longest > most:
        raise RelationBuildError(
            f"a row in the pages of the update takes {longest:,} bytes since columns were added, but a page holds rows "
            f"of at most {most:,} bytes; build the relation again with a larger page_size"
        )
