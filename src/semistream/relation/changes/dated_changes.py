"""A stream of changes to a history: each change has its own time, and may arrive after later ones of its key.

The result is that of all changes in the order of their times: a change ends the row that was valid then, and its own
row ends where that row ended, or where the next one begins. The changes become one ordinary update, which replaces all
rows of the changed keys. So they are committed in one version, or not at all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Ints
from semistream.core.errors import RelationBuildError
from semistream.relation.changes.changed_rows import among, as_in_r, by_key, given_rows
from semistream.relation.changes.history_changes import present_rows
from semistream.relation.changes.patch import Patch
from semistream.relation.changes.preparing import prepare
from semistream.relation.changes.updatable import State, Updatable
from semistream.relation.keys.valid_times import OPEN, ValidTimes
from semistream.relation.pages.page_index import last_not_after
from semistream.relation.rows.fitting import as_type
from semistream.relation.rows.selection import keep_rows, take_rows

__all__ = ["prepare_dated"]


class _Versions(NamedTuple):
    """Rows of some keys in the order of key and begin."""

    keys: Ints
    begins: Ints
    lasts: Ints
    rows: pa.RecordBatch

    def kept(self, mask: np.ndarray) -> _Versions:
        return _Versions(self.keys[mask], self.begins[mask], self.lasts[mask], keep_rows(self.rows, mask))


def prepare_dated(relation: Updatable, now: State, upserts: pa.Table | None, deletes: pa.Table | None) -> Patch:
    """Prepare the update of a history by changes that have times, without installing it.

    Parameters
    ----------
    relation
        A history; the shards of all changed keys are open.
    now
        Its state.
    upserts
        Rows of R, with the time of each change in ``valid_from``. An end in ``valid_to`` is not used.
    deletes
        Keys that end, with the time in ``valid_from``.
    """
    times = relation.times
    assert times is not None
    names = list(relation.key.names)
    new_keys, new = by_key(relation.key, as_in_r(given_rows(upserts, relation, relation.schema.names), relation.schema))
    gone_keys, gone = by_key(relation.key, given_rows(deletes, relation, [*names, times.valid_from]))
    ends, known = times.numbers(as_type(gone.column(times.valid_from), times.type))
    if gone.num_rows and times.valid_to is None:
        raise RelationBuildError(
            "a delete ends a row, but this history has no column for its end; build it with valid_to, or leave deletes "
            "out of the changes"
        )
    if not known.all():
        raise RelationBuildError(f"a delete has no {times.valid_from!r}; give each change its time")
    old_keys, old = present_rows(relation, now, np.union1d(new_keys, gone_keys))
    mine = _of_true_keys(relation, old_keys, old, gone_keys, gone.select(names))
    gone_keys, ends = gone_keys[mine], ends[mine]
    changed = np.isin(old_keys, np.union1d(new_keys, gone_keys))
    old_keys, old = old_keys[changed], keep_rows(old, changed)
    _check_once(relation, times, new_keys, new, gone_keys, ends)
    merged = _merged(times, old_keys, old, new_keys, new)
    before = np.unique(merged.keys)
    merged = _ended(merged, gone_keys, ends)
    vanished = keep_rows(old, np.isin(old_keys, np.setdiff1d(before, merged.keys))).select(names)
    rows = pa.Table.from_batches([_with_ends(times, merged)])
    return prepare(relation, now, rows, pa.Table.from_batches([vanished]) if vanished.num_rows else None)


def _merged(times: ValidTimes, old_keys: Ints, old: pa.RecordBatch, new_keys: Ints, new: pa.RecordBatch) -> _Versions:
    """Return old and new rows; a new row replaces an old one that begins at the same time."""
    keys, begins = np.append(old_keys, new_keys), np.append(times.begins(old), times.begins(new))
    is_new = np.repeat([False, True], [old_keys.size, new_keys.size])
    lasts = np.append(times.lasts(old), np.full(new_keys.size, OPEN))
    order = np.lexsort((is_new, begins, keys))
    keys, begins, lasts, is_new = keys[order], begins[order], lasts[order], is_new[order]
    rows = take_rows(pa.concat_batches([old, new.cast(old.schema)]), order)
    # A new row ends where the old row ended that was valid at its begin.
    before = np.maximum.accumulate(np.where(is_new, -1, np.arange(keys.size))) if keys.size else order
    covered = is_new & (before >= 0)
    covered[covered] = keys[before[covered]] == keys[covered]
    covered[covered] = lasts[before[covered]] >= begins[covered]
    lasts[covered] = lasts[before[covered]]
    follows = np.append(keys[1:] == keys[:-1], False)[: keys.size]
    following = np.append(begins[1:], 0)[: keys.size]
    replaced = follows & (following == begins)
    found = _Versions(keys, begins, lasts, rows).kept(~replaced)
    is_new = is_new[~replaced]
    # And a row ends where the next one begins, if one of the two is new; the ends of other rows stay as they are.
    pair = np.flatnonzero((found.keys[1:] == found.keys[:-1]) & (is_new[1:] | is_new[:-1]))
    found.lasts[pair] = np.minimum(found.lasts[pair], found.begins[pair + 1] - 1)
    return found


def _ended(versions: _Versions, gone_keys: Ints, ends: Ints) -> _Versions:
    """End the rows of ``gone_keys`` that are valid at ``ends``; leave out rows that would end where they begin."""
    low = np.searchsorted(versions.keys, gone_keys, "left")
    row = last_not_after(versions.begins, low, np.searchsorted(versions.keys, gone_keys, "right"), ends)
    valid = row >= low
    valid[valid] = versions.lasts[row[valid]] >= ends[valid]
    row, ends = row[valid], ends[valid]
    empty = ends == versions.begins[row]
    np.minimum.at(versions.lasts, row[~empty], ends[~empty] - 1)  # for an empty row, ends - 1 may not exist
    left = np.ones(versions.keys.size, bool)
    left[row[empty]] = False
    return versions.kept(left)


def _with_ends(times: ValidTimes, versions: _Versions) -> pa.RecordBatch:
    rows = versions.rows
    if times.valid_to is None:
        return rows
    at = rows.schema.get_field_index(times.valid_to)
    field, is_open = rows.schema.field(at), versions.lasts == OPEN
    ends = times.values(np.where(is_open, 0, versions.lasts + ~is_open))
    found = pa.array(np.arange(is_open.size), mask=is_open)
    return rows.set_column(at, field, as_type(ends.take(found), field.type))


def _of_true_keys(
    relation: Updatable, old_keys: Ints, old: pa.RecordBatch, gone_keys: Ints, gone: pa.RecordBatch
) -> np.ndarray:
    """Return which deletes may end a row: another key can have the same hash."""
    known, place = among(gone_keys, old_keys)
    mine = np.ones(gone_keys.size, bool)
    if known.any() and not relation.key.exact:
        stored = take_rows(old, place[known]).select(gone.schema.names)
        mine[known] = relation.key.verify(keep_rows(gone, known), gone.schema.names, stored)
    return mine


def _check_once(
    relation: Updatable, times: ValidTimes, new_keys: Ints, new: pa.RecordBatch, gone_keys: Ints, ends: Ints
) -> None:
    """Raise if a key changes twice at the same time."""
    keys, moments = np.append(new_keys, gone_keys), np.append(times.begins(new), ends)
    order = np.lexsort((moments, keys))
    keys, moments = keys[order], moments[order]
    if np.any((keys[1:] == keys[:-1]) & (moments[1:] == moments[:-1])):
        raise RelationBuildError(
            f"a key of {list(relation.key.names)} changes twice at the same {times.valid_from!r}, so it is open which "
            "change is the last; give changes different times, or an order"
        )
