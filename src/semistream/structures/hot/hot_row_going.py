"""The compiled passes under `hot_rows.HotRows` in which keys and rows go: the rarest first, or those that changed."""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.core.compiled import Int, inner_kernel, kernel
from semistream.structures.directory import entry_for, erase, find, home, mix, position_at
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

__all__ = ["GOING", "forget", "plan_going", "reclaim", "reset"]

# Places in the plan of `plan_going`: the highest frequency that goes, how many keys and rows of it, how far it is, and
# about how many keys go in all.
_LIMIT, _LEFT_KEYS, _LEFT_ROWS, _PLACE, _STEPS, GOING = range(6)
_PLAN_WORDS = 6


@inner_kernel
def _free_rows(after: Slots, first: Slots, state: Ints, place: Int, freed: Slots, at: Int) -> Int:
    """Give the rows of a key back, listing them in ``freed``; return how many are listed."""
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
def _free_key(first: Slots, known: Bytes, count: Bytes, state: Ints, place: Int) -> None:
    """Give the place of a key back, whose entry is erased already or will be."""
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
    """Let some keys go, or what is known of those that are held; return how many rows are listed in ``freed``.

    Without ``erasing`` their entries stay, until `_enter_again`.
    """
    near = np.uint64(0)
    for i in range(places.size):  # these reads do not wait for each other, and bring near what the next loop needs
        if erasing:
            near += t.entries[home(mix(t.key[places[i]]), t.entries.size)]
        near += np.uint64(recall(sketch, t.key[places[i]]))
    for i in range(places.size):
        place = places[i]
        at = _free_rows(t.after, t.first, t.state, place, freed, at)
        if (t.known[place] & HELD) != 0:
            t.known[place] = HELD | UNKNOWN
            continue
        remember(sketch, t.key[place], np.int64(t.often[place]))
        if erasing:
            erase(t.entries, find(t.entries, t.key, t.key[place]))
        _free_key(t.first, t.known, t.often, t.state, place)
    if near == np.uint64(1):  # never mind what it is: the reads must not be left out
        t.state[SEEN] += 0
    return at


@inner_kernel
def _enter_again(t: HotTable) -> None:
    """Enter all keys into an empty table: where many have gone, that is less than to erase each of them."""
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
    """Plan which unpinned keys go for so many more free keys and rows: the least frequent, for `reclaim`.

    Among keys of one frequency a hand goes round. ``unique`` says that no key has several rows.
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
    """Let keys go by a plan, until so many keys and rows more are free or it is done; return the rows given back.

    Keys that are held stay in the table, without what was known of them. The plan is gone on with by the next call, and
    is good until tuples come or keys are unpinned. ``erasing`` takes keys out of the table one by one; otherwise those
    that stay are entered anew, which takes less where many go.
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
    """Forget what is known of these keys, which stay in the table; return the rows that were given back."""
    freed = np.empty(t.state[ROWS], np.int32)
    at: Int = 0
    for i in range(places.size):
        at = _free_rows(t.after, t.first, t.state, places[i], freed, at)
        t.known[places[i]] = (t.known[places[i]] & IN_USE) | UNKNOWN
    return freed[:at].copy()


@kernel
def forget(t: HotTable, keys: Ints, whole: bool) -> tuple[Slots, bool]:
    """Forget what is known of some keys; return the rows that were given back, and whether that went well.

    Keys that nobody asks for leave the table, unless it is ``whole``: then they come in as unknown, for what is not
    there would be taken for absent. That fails when there is no room for one.
    """
    freed = np.empty(t.state[ROWS], np.int32)
    at: Int = 0
    for i in range(keys.size):
        entry = find(t.entries, t.key, keys[i])
        if entry >= 0:
            place = position_at(t.entries, entry)
            at = _free_rows(t.after, t.first, t.state, place, freed, at)
            if whole or (t.known[place] & IN_USE) != 0:
                t.known[place] = (t.known[place] & IN_USE) | UNKNOWN
            else:
                erase(t.entries, entry)
                _free_key(t.first, t.known, t.often, t.state, place)
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
