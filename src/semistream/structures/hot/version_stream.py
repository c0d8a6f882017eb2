"""Versions of many keys from the disk to the arena in one compiled loop; see `row_stream`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.core.compiled import frozen, kernel
from semistream.relation.devices.page_ring import (
    FIRST,
    FRAME,
    LAST,
    LENGTH,
    OUTCOME,
    PAGE,
    Ring,
    arrive,
    is_right,
    oldest,
    release,
    submit,
)
from semistream.relation.devices.ring_reader import RingReader
from semistream.relation.devices.transfers import DONE
from semistream.structures.hot.hot_row_kernels import HotTable
from semistream.structures.hot.hot_version_kernels import Spans, copy_from_page
from semistream.structures.hot.row_search import WantedRows
from semistream.structures.hot.row_stream import MORE, MOST_ASKED, NO_ROOM, SEARCHED, ask_on
from semistream.structures.read_plan import Pages, ReadPlan
from semistream.structures.row_blocks import RowTable
from semistream.structures.row_store import RowStore

__all__ = ["stream_versions"]


@kernel
def _stream_versions(
    ring: Ring, flat: Bytes, words: Ints, most: int, runs: Pages, ends: Pages, progress: Ints,
    t: HotTable, spans: Spans, store: RowTable, width: int, stride: int, fields: Ints,
    pages: Ints, owners: Ints, keys: Ints, following: Ints, numbers: Slots,
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
                t, spans, store, width, flat, words, base, stride, fields,
                pages, owners, keys, following, numbers, progress[SEARCHED],
            )  # fmt: skip
            if not fitted:
                return NO_ROOM
        release(ring)


def stream_versions(
    t: HotTable,
    spans: Spans,
    rows: RowStore,
    ring: RingReader,
    numbers: Slots,
    wanted: WantedRows,
    plan: ReadPlan,
    make_room: Callable[[], bool],
) -> bool:
    """Read the pages of a plan, and copy their requested versions into an arena; see `row_stream.stream_rows`."""
    assert wanted.versions is not None
    following, fields = wanted.versions
    progress = np.zeros(3, np.int64)
    with ring.at_work():
        while True:
            outcome = _stream_versions(
                ring.ring, ring.flat, ring.words, ring.most, frozen(plan.pages), frozen(plan.ends), progress,
                t, spans, rows.table, rows.width, wanted.layout.stride, frozen(fields), frozen(wanted.pages),
                frozen(wanted.owners), frozen(wanted.keys), frozen(following), frozen(numbers),
            )  # fmt: skip
            if outcome != MORE and (outcome != NO_ROOM or not make_room()):
                return outcome == DONE
