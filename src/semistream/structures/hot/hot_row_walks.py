"""The compiled passes of `hot_rows.HotRows` that follow the rows of keys: to list rows, and to shrink the arena."""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Ints, Slots
from semistream.core.compiled import Int, kernel
from semistream.structures.directory import entry_of, find, position_at
from semistream.structures.hot.hot_row_kernels import (
    ABSENT,
    FREE,
    FREE_KEY,
    FREE_ROW,
    KEYS,
    KNOWN,
    PINNED,
    PRESENT,
    ROWS,
    UNKNOWN,
    HotTable,
)

__all__ = ["check_table", "draw_in", "expand", "first_rows", "pinned_rows"]


@kernel
def first_rows(t: HotTable, numbers: Slots, rows: Slots) -> tuple[Int, Int]:
    """Write the first row of each number, -1 if it has none; return how many have none and how many have several."""
    first, after = t.first, t.after
    none, several = 0, 0
    for i in range(numbers.size):
        row = first[numbers[i]] if numbers[i] >= 0 else np.int32(-1)
        rows[i] = row
        if row < 0:
            none += 1
        elif after[row] >= 0:
            several += 1
    return none, several


@kernel
def pinned_rows(t: HotTable, unique: bool) -> Int:
    """Return how many rows the pinned keys have; ``unique`` means that no key has several."""
    rows: Int = 0
    for place in range(t.key.size):
        if (t.known[place] & (KNOWN | PINNED)) == (PRESENT | PINNED):
            row = np.int64(t.first[place])
            rows += 1
            while not unique and t.after[row] >= 0:
                rows += 1
                row = np.int64(t.after[row])
    return rows


@kernel
def expand(
    t: HotTable, numbers: Slots, begin: int, row: int, cap: int, alone: bool, positions: Ints, rows: Slots
) -> tuple[Int, Int, Int]:
    """List up to ``cap`` pairs of position and row, starting at row ``row`` (-1: the first) of number ``begin``.

    ``alone`` also lists numbers without rows, with row -1. Returns the number of pairs, and where to continue.
    """
    first, after = t.first, t.after
    pairs = 0
    i: Int = begin
    at: Int = row
    while i < numbers.size:
        if at < 0:
            at = np.int64(first[numbers[i]]) if numbers[i] >= 0 else np.int64(-1)
            if at < 0 and alone:
                if pairs == cap:
                    break
                positions[pairs], rows[pairs] = i, -1
                pairs += 1
        while at >= 0 and pairs < cap:
            positions[pairs], rows[pairs] = i, at
            pairs += 1
            at = np.int64(after[at])
        if at >= 0:
            break
        i += 1
    return pairs, i, at


@kernel
def draw_in(t: HotTable, limit: int, sources: Slots, targets: Slots) -> Int:
    """Assign free rows below ``limit`` to keys in place of rows from ``limit`` on; return the number of rows to move.

    The rows to move are listed in ``sources`` and ``targets``. Enough rows below ``limit`` must be free. The list of
    free rows is rebuilt.
    """
    key, first, known, after, state = t.key, t.first, t.known, t.after, t.state
    used = np.zeros(after.size, np.bool_)
    for place in range(key.size):
        row = np.int64(first[place]) if known[place] != FREE else np.int64(-1)
        while row >= 0:
            used[row] = True
            row = np.int64(after[row])
    free = np.int64(-1)
    for at in range(limit - 1, -1, -1):
        if not used[at]:
            after[at] = free
            free = np.int64(at)
    moved: Int = 0
    for place in range(key.size):
        before: Int = -1
        row = np.int64(first[place]) if known[place] != FREE else np.int64(-1)
        while row >= 0:
            if row >= limit:
                to = free
                free = np.int64(after[to])
                sources[moved], targets[moved] = row, to
                moved += 1
                after[to] = after[row]
                if before >= 0:
                    after[before] = to
                else:
                    first[place] = to
                row = to
            before = row
            row = np.int64(after[row])
    state[FREE_ROW] = free
    return moved


def check_table(t: HotTable) -> Slots:
    """Assert that keys, chains and free lists agree; return the rows in use."""
    capacity, held = t.after.size, int(t.state[ROWS])
    places = np.flatnonzero(t.known & np.uint8(KNOWN) != FREE)
    assert places.size == t.state[KEYS] == np.count_nonzero(t.entries), (places.size, int(t.state[KEYS]))
    used: list[int] = []
    for place in places.tolist():
        assert find(t.entries, t.key, t.key[place]) >= 0, f"key {t.key[place]}, at {place}, is not found"
        assert position_at(t.entries, entry_of(t.entries, t.key[place], place)) == place
        what, row = int(t.known[place]) & KNOWN, int(t.first[place])
        assert (row >= 0) == (what == PRESENT), f"key {t.key[place]} is known as {what} and has row {row}"
        assert what in (UNKNOWN, PRESENT, ABSENT), what
        while row >= 0:
            used.append(row)
            row = int(t.after[row])
    assert len(used) == len(set(used)) == held <= capacity, (len(used), held, capacity)
    for links, head, free in ((t.after, FREE_ROW, capacity - len(used)), (t.first, FREE_KEY, t.key.size - places.size)):
        count, at = 0, int(t.state[head])
        while at >= 0:
            count, at = count + 1, int(links[at])
        assert count == free, f"{count} places are linked as free, {free} are"
    return np.array(used, np.int32)
