"""Rows of many keys from the disk to the arena in one compiled loop: request pages, check them and search them.

Some pages are searched while others are being read, and nothing is passed between threads. The loop returns when all is
done, when there is no room for a row, when a page cannot be read, and periodically for signals. All of its state is in
arrays, so the caller can make room and call it again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.core.compiled import frozen, inner_kernel, kernel
from semistream.relation.devices.page_ring import (
    FIRST,
    FRAME,
    IN_FLIGHT,
    LAST,
    LENGTH,
    OUTCOME,
    PAGE,
    PREPARED,
    Ring,
    arrive,
    ask,
    is_right,
    oldest,
    place_of,
    release,
    room_for,
    submit,
)
from semistream.relation.devices.ring_reader import RingReader
from semistream.relation.devices.transfers import DONE
from semistream.structures.hot.hot_row_kernels import HotTable
from semistream.structures.hot.row_search import WantedRows, copy_from_page
from semistream.structures.read_plan import Pages, ReadPlan
from semistream.structures.row_blocks import RowTable
from semistream.structures.row_store import RowStore

__all__ = ["MORE", "MOST_ASKED", "NO_ROOM", "SEARCHED", "ask_on", "stream_rows"]

NO_ROOM, MORE = -1, -2
"""Outcomes in addition to those of `transfers`: a row does not fit; there is more to do, after checking signals."""
_RUN, _OFFSET, SEARCHED = 0, 1, 2
"""Places in ``progress``: run of the plan, pages of this run that were requested, wanted entries that were searched."""
_TOGETHER = 8
"""Requests to submit together while others are in flight: one system call per request would cost more than it gains."""
MOST_ASKED = 512
"""Requests after which to check signals: Python handles signals, a kernel cannot."""


@inner_kernel
def ask_on(ring: Ring, most: int, runs: Pages, ends: Pages, progress: Ints) -> None:
    """Request the next pages of a plan, while there is room for them."""
    s = ring.state
    while s[OUTCOME] == DONE and progress[_RUN] < runs.size:
        run = progress[_RUN]
        page = np.int64(runs[run]) + progress[_OFFSET]
        left = np.int64(runs[ends[run]]) - page + 1
        place, length = place_of(ring, page, min(left, most))
        skipped = room_for(ring, length)
        if skipped < 0:
            break
        ask(ring, page, place, length, skipped)
        if length == left:
            progress[_RUN], progress[_OFFSET] = np.int64(ends[run]) + 1, 0
        else:
            progress[_OFFSET] += length
    if s[OUTCOME] == DONE and (s[PREPARED] >= _TOGETHER or s[IN_FLIGHT] <= _TOGETHER):
        submit(ring)


@kernel
def _stream_rows(
    ring: Ring, flat: Bytes, words: Ints, most: int, runs: Pages, ends: Pages, progress: Ints,
    t: HotTable, store: RowTable, width: int, stride: int, ordered: bool,
    pages: Ints, owners: Ints, keys: Ints, numbers: Slots,
) -> int:  # fmt: skip
    s, r = ring.state, ring.requests
    frame_bytes, stop = ring.frames.shape[1] * 8, s[FIRST] + MOST_ASKED
    while True:
        ask_on(ring, most, runs, ends, progress)
        if s[OUTCOME] != DONE:
            return int(s[OUTCOME])
        if s[FIRST] == s[LAST]:
            return DONE
        if s[FIRST] == stop:
            return MORE
        slot = oldest(ring)
        if slot < 0:
            submit(ring)
            if s[OUTCOME] == DONE and not arrive(ring) and s[OUTCOME] == DONE:
                return MORE
            continue
        if not is_right(ring, slot):
            continue
        first, after = r[PAGE, slot], r[PAGE, slot] + r[LENGTH, slot]
        while progress[SEARCHED] < pages.size and pages[progress[SEARCHED]] < after:
            base = (r[FRAME, slot] + pages[progress[SEARCHED]] - first) * frame_bytes
            progress[SEARCHED], fitted = copy_from_page(
                t, store, width, flat, words, base, stride, ordered, pages, owners, keys, numbers, progress[SEARCHED]
            )
            if not fitted:
                return NO_ROOM
        release(ring)


def stream_rows(
    t: HotTable,
    rows: RowStore,
    ring: RingReader,
    numbers: Slots,
    wanted: WantedRows,
    plan: ReadPlan,
    make_room: Callable[[], bool],
) -> bool:
    """Read the pages of a plan, and copy their wanted rows into the slots of an arena.

    If a row does not fit, ``make_room`` is called; it returns False if it cannot make room. Returns whether all rows
    were copied: False if there is no room, or if a page cannot be read (the ring has the error).
    """
    progress = np.zeros(3, np.int64)
    with ring.at_work():
        while True:
            outcome = _stream_rows(
                ring.ring, ring.flat, ring.words, ring.most, frozen(plan.pages), frozen(plan.ends), progress,
                t, rows.table, rows.width, wanted.layout.stride, wanted.ordered,
                frozen(wanted.pages), frozen(wanted.owners), frozen(wanted.keys), frozen(numbers),
            )  # fmt: skip
            if outcome != MORE and (outcome != NO_ROOM or not make_room()):
                return outcome == DONE
