"""The compiled passes of `hot_rows.HotRows` that evict keys and rows, least frequent first, or drop changed keys."""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.core.compiled import Int, inner_kernel, kernel
from semistream.structures.directory import entry_for, entry_of, erase, find, home, mix, position_at
from semistream.structures.hot.admission import MOST, recall, remember
from semistream.structures.hot.hot_row_kernels import (
    AHEAD,
    FREE,
    FREE_KEY,
    FREE_ROW,
    HAND,
    HELD,
    IN_USE,
    KEYS,
    KNOWN,
    PINNED,
    ROWS,
    SEEN,
    SOON,
    UNKNOWN,
    HotTable,
)

__all__ = ["GOING", "forget", "free_key", "free_rows", "plan_going", "reclaim", "reset"]

# Places in the plan of `plan_going`: the highest frequency to evict, how many keys and rows of this frequency to evict,
# the place reached, the places left to visit, and the approximate number of keys to evict in total.
_LIMIT, _LEFT_KEYS, _LEFT_ROWS, _PLACE, _STEPS, GOING = range(6)
_PLAN_WORDS = 6


@inner_kernel
def free_rows(after: Slots, first: Slots, state: Ints, place: Int, freed: Slots, at: Int) -> Int:
    """Free the rows of a key and list them in ``freed``; return how many are listed."""
    row = np.int64(first[place])
    while row >= 0:
        freed[at] = row
        at += 1
        following = np.int64(after[row])
        after[row] = state[FREE_ROW]
        state[FREE_ROW] = row
        state[ROWS] -= 1
        row = following
    first[place] = -1
    return at


@inner_kernel
def free_key(first: Slots, known: Bytes, count: Bytes, state: Ints, place: Int) -> None:
    """Free the place of a key, whose entry the caller erases before or after."""
    known[place] = FREE
    count[place] = 0
    first[place] = state[FREE_KEY]
    state[FREE_KEY] = place
    state[KEYS] -= 1


@inner_kernel
def _rows_of(after: Slots, first: Slots, place: Int, unique: bool) -> Int:
    row = np.int64(first[place])
    if unique or row < 0:
        return np.int64(row >= 0)
    rows = 0
    while row >= 0:
        rows += 1
        row = np.int64(after[row])
    return np.int64(rows)


@inner_kernel
def _let_go(t: HotTable, places: Ints, sketch: Bytes, erasing: bool, freed: Slots, at: Int) -> Int:
    """Evict some keys; return how many rows are listed in ``freed``.

    A key that is held stays, and becomes unknown. Without ``erasing``, the entries of evicted keys stay in the table
    until `_enter_again`.
    """
    near = np.uint64(0)
    for i in range(places.size):  # these reads are independent: they prefetch what the next loop needs
        if erasing:
            near += t.entries[home(mix(t.key[places[i]]), t.entries.size)]
        near += np.uint64(recall(sketch, t.key[places[i]]))
    for i in range(places.size):
        place = places[i]
        at = free_rows(t.after, t.first, t.state, place, freed, at)
        if (t.known[place] & HELD) != 0:
            t.known[place] = HELD | UNKNOWN
            continue
        remember(sketch, t.key[place], np.int64(t.often[place]))
        if erasing:
            erase(t.entries, entry_of(t.entries, t.key[place], place))
        free_key(t.first, t.known, t.often, t.state, place)
    if near == np.uint64(1):  # the value does not matter: this keeps the compiler from removing the reads
        t.state[SEEN] += 0
    return at


@inner_kernel
def _enter_again(t: HotTable) -> None:
    """Empty the table and insert all keys again: after many evictions this is faster than erasing each entry."""
    entries, key, known = t.entries, t.key, t.known
    entries[:] = np.uint64(0)
    size = entries.size
    for place in range(known.size):
        if (known[place] & KNOWN) != FREE:
            entry = entry_for(key[place], place)
            at = home(entry, size)
            while entries[at] != np.uint64(0):
                at = at + 1 if at + 1 < size else 0
            entries[at] = entry


@kernel
def plan_going(t: HotTable, keys: int, rows: int, unique: bool) -> Ints:
    """Plan for `reclaim` which unpinned keys to evict, least frequent first, to free ``keys`` keys and ``rows`` rows.

    Among keys of equal frequency a clock hand chooses. ``unique`` means that no key has several rows.
    """
    first, known, count_of, after, state = t.first, t.known, t.often, t.after, t.state
    of_keys, of_rows = np.zeros(MOST + 2, np.int64), np.zeros(MOST + 2, np.int64)
    size = t.key.size
    for place in range(size):
        what = known[place]
        if what == FREE or (what & (PINNED | SOON)) != 0:
            continue
        level = 0 if what == UNKNOWN else np.int64(count_of[place]) + 1
        of_keys[level] += (what & HELD) == 0
        of_rows[level] += _rows_of(after, first, place, unique)
    limit, some_keys, some_rows = 0, of_keys[0], of_rows[0]
    while limit <= MOST and (some_keys < keys or some_rows < rows):
        limit += 1
        some_keys += of_keys[limit]
        some_rows += of_rows[limit]
    plan = np.empty(_PLAN_WORDS, np.int64)
    plan[_LIMIT] = limit
    plan[_LEFT_KEYS] = keys - (some_keys - of_keys[limit])
    plan[_LEFT_ROWS] = rows - (some_rows - of_rows[limit])
    plan[_PLACE] = state[HAND]
    plan[_STEPS] = size
    of_limit = max(plan[_LEFT_KEYS], 0)
    if plan[_LEFT_ROWS] > 0 and of_rows[limit] > 0:
        of_limit = max(of_limit, plan[_LEFT_ROWS] * of_keys[limit] // of_rows[limit])
    plan[GOING] = some_keys - of_keys[limit] + min(of_keys[limit], of_limit)
    return plan


@kernel
def reclaim(t: HotTable, plan: Ints, keys: int, rows: int, unique: bool, erasing: bool, sketch: Bytes) -> Slots:
    """Evict keys by a plan until ``keys`` more keys and ``rows`` more rows are free; return the rows that were freed.

    Stops earlier if the plan is done. Keys that are held stay in the table, but become unknown. The next call continues
    the plan, which is valid until tuples arrive or keys are unpinned. With ``erasing``, keys are erased from the table
    one by one; otherwise the table is rebuilt with the keys that stay, which is faster if many are evicted.
    """
    first, known, count_of, after, state = t.first, t.known, t.often, t.after, t.state
    limit, size = plan[_LIMIT], t.key.size
    freed = np.empty(state[ROWS], np.int32)
    going = np.empty(AHEAD, np.int64)
    count: Int = 0
    gone: Int = 0
    at: Int = 0
    place = plan[_PLACE]
    while plan[_STEPS] > 0 and (gone < keys or at < rows):
        place = place + 1 if place + 1 < size else 0
        plan[_STEPS] -= 1
        what = known[place]
        level = 0 if what == UNKNOWN else np.int64(count_of[place]) + 1
        enough = level > limit or (level == limit and plan[_LEFT_KEYS] <= 0 and plan[_LEFT_ROWS] <= 0)
        if what != FREE and (what & (PINNED | SOON)) == 0 and not enough:
            if level == limit:
                state[HAND] = place
                plan[_LEFT_ROWS] -= _rows_of(after, first, place, unique)
                plan[_LEFT_KEYS] -= (what & HELD) == 0
            going[count] = place
            count += 1
            gone += (what & HELD) == 0
        if count == AHEAD or plan[_STEPS] == 0:
            at = _let_go(t, going[:count], sketch, erasing, freed, at)
            count = 0
    plan[_PLACE] = place
    at = _let_go(t, going[:count], sketch, erasing, freed, at)
    if not erasing:
        _enter_again(t)
    return freed[:at].copy()


@kernel
def reset(t: HotTable, places: Slots) -> Slots:
    """Mark these keys as unknown, but leave them in the table; return the rows that were freed."""
    freed = np.empty(t.state[ROWS], np.int32)
    at: Int = 0
    for i in range(places.size):
        at = free_rows(t.after, t.first, t.state, places[i], freed, at)
        t.known[places[i]] = (t.known[places[i]] & IN_USE) | UNKNOWN
    return freed[:at].copy()


@kernel
def forget(t: HotTable, keys: Ints, whole: bool) -> tuple[Slots, bool]:
    """Forget what is known of some keys; return the rows that were freed, and whether this succeeded.

    Keys not in use leave the table, unless the table is ``whole``. Then all of these keys are in the table as unknown,
    because a missing key would count as absent from R. This fails if there is no place for one.
    """
    freed = np.empty(t.state[ROWS], np.int32)
    at: Int = 0
    for i in range(keys.size):
        entry = find(t.entries, t.key, keys[i])
        if entry >= 0:
            place = position_at(t.entries, entry)
            at = free_rows(t.after, t.first, t.state, place, freed, at)
            if whole or (t.known[place] & IN_USE) != 0:
                t.known[place] = (t.known[place] & IN_USE) | UNKNOWN
            else:
                erase(t.entries, entry)
                free_key(t.first, t.known, t.often, t.state, place)
        elif whole:
            place = t.state[FREE_KEY]
            if place < 0:
                return freed[:at].copy(), False
            t.state[FREE_KEY] = t.first[place]
            t.state[KEYS] += 1
            t.key[place] = keys[i]
            t.first[place] = -1
            t.known[place] = UNKNOWN
            t.often[place] = 0
            t.entries[-1 - entry] = entry_for(keys[i], place)
    return freed[:at].copy(), True
