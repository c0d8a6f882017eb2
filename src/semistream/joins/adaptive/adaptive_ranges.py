"""ADAPTIVEJOIN on ranges: the intervals of a window swept along R, each page that any of them wants read once.

Rows of a range are not kept: the ranges of a stream share pages rather than rows. So the memory goes to the window, the
frames and what is known of the intervals while they are swept. Results leave in the order of R.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.core.compiled import Int, frozen, kernel
from semistream.joins.adaptive.adaptive_memory import LEAST_KEYS, LEAST_TUPLES
from semistream.joins.adaptive.adaptive_schedule import SHED, AdaptiveSchedule
from semistream.joins.adaptive.page_fetch import MOST_FRAMES, PageFetch
from semistream.relation.pages.page_layout import page_keys
from semistream.relation.relation import Relation
from semistream.relation.spans import locate_spans

__all__ = ["AdaptiveRanges", "sweep"]

_FRAMES_PART, _INTERVALS_PART = 4, 2
_MOST_INTERVALS = 1 << 17

Pairs = tuple[Ints, Ints, Ints, Bytes]
"""Positions of intervals, and key, start and flags of a row for each."""


def _bytes_per_interval(relation: Relation) -> int:
    """Return what an interval costs while it is swept: its ends, order, places in a chunk, and pages of each shard."""
    return 11 * 8 + 40 * len(relation.indexes)


@kernel
def _next_places(first: Ints, end: Ints, segment: int, place: int, listed: Ints) -> tuple[Int, Int, Int]:
    """List places of segments ``[first, end)``, from one on; return how many, and where to go on."""
    count: Int = 0
    at: Int = segment
    here: Int = place
    while at < first.size and count < listed.size:
        here = max(here, first[at])
        while here < end[at] and count < listed.size:
            listed[count] = here
            here += 1
            count += 1
        if here >= end[at]:
            at += 1
    return count, at, here


def _segments(first: Ints, length: Ints) -> tuple[Ints, Ints]:
    """Return runs of pages, whose starts ascend, as segments that do not touch each other."""
    some = length > 0
    first, ends = first[some], np.maximum.accumulate(first[some] + length[some])
    if first.size == 0:
        return first, ends
    begins = np.flatnonzero(np.append(True, first[1:] > ends[:-1]))
    return first[begins], np.append(ends[begins[1:] - 1], ends[-1])


def sweep(relation: Relation, low: Ints, high: Ints, frames: Bytes, cap: int) -> Iterator[Pairs]:
    """Yield all pairs of intervals ``[low, high]`` and rows of R that lie in them, ``cap`` at a time.

    Reads each page that any interval wants once, as many at a time as there are frames; what was yielded holds until
    the next is asked for.
    """
    order = np.flatnonzero(low <= high)
    order = order[np.argsort(low[order], kind="stable")]
    low, high = low[order], high[order]
    spans = locate_spans(relation, low, high)
    shards = len(relation.indexes)
    listed = np.empty(len(frames), np.int64)
    for shard in range(shards):
        # within a shard the runs of ascending intervals ascend, and so do the keys of its pages
        first, end = _segments(spans.first[shard::shards], spans.length[shard::shards])
        begun, at, place = 0, 0, -1
        active = np.empty(0, np.int64)
        while at < first.size:
            count, at, place = (int(one) for one in _next_places(frozen(first), frozen(end), at, place, listed))
            pages = relation.page_order[listed[:count]] if relation.page_order.size else listed[:count]
            relation.read(pages, frames[:count])
            keys, flags, starts = page_keys(frames[:count], relation.layout.stride)
            if keys.size == 0:
                continue
            upto = int(np.searchsorted(low, keys[-1], side="right"))
            active = np.append(active, np.arange(begun, upto))
            begun = max(begun, upto)
            active = active[high[active] >= keys[0]]
            left = np.searchsorted(keys, low[active], side="left")
            ends = np.cumsum(np.searchsorted(keys, high[active], side="right") - left)
            before = np.append(0, ends)
            for begin in range(0, int(before[-1]), cap):
                pair = np.arange(begin, min(begin + cap, int(before[-1])))
                owner = np.searchsorted(ends, pair, side="right")
                row = left[owner] + pair - before[owner]
                yield order[active[owner]], keys[row], starts[row], flags[row]


class AdaptiveRanges(AdaptiveSchedule):
    """The part of ADAPTIVEJOIN that joins on ranges."""

    @property
    def _ranged(self) -> bool:
        return self.condition.name == "between"

    def _minimum(self) -> int:
        more = LEAST_TUPLES * _bytes_per_interval(self.relation) if self._ranged else 0
        return super()._minimum() + more

    def _open(self) -> None:
        if not self._ranged:
            super()._open()
            return
        relation, frame = self.relation, self.relation.device.frame_bytes + PageFetch.bytes_per_frame
        each, spare = _bytes_per_interval(relation), self.budget.free - self._minimum()
        frames = 1 + min(spare // _FRAMES_PART // frame, MOST_FRAMES, max(relation.page_count - 1, 0))
        self._most_intervals = LEAST_TUPLES + min(spare // _INTERVALS_PART // each, _MOST_INTERVALS)
        self._fetch = PageFetch(relation, frames, LEAST_KEYS)
        self.budget.reserve("frames", PageFetch.bytes_for(frames, relation.device.frame_bytes, LEAST_KEYS))
        self.budget.reserve("intervals", self._most_intervals * each)
        self._open_arena()

    def _offer_ranges(self, batch: pa.RecordBatch) -> int:
        """Take tuples into the window; their numbers say only which have no bounds."""
        count = min(self._window.room(batch), self._most_intervals)
        if self._in_turn or count == 0:
            return 0
        batch = batch.slice(0, count)
        if count == 1:
            self._check_row(batch)
        _, valid = self.condition.lows(batch)
        self._window.numbers_of_next(count)[:] = np.where(valid, 0, -1)
        self._window.append(batch, self._due_of(batch))
        self._stats.rows_in += count
        self._stats.null_keys += count - int(np.count_nonzero(valid))
        return count

    def _serve_ranges(self) -> Iterator[pa.RecordBatch]:
        count = len(self._window)
        while count > 0:
            batch, numbers, due = self._window.take(min(count, self._most_intervals))
            count -= batch.num_rows
            yield from self._swept(batch, numbers)
            self._left(batch, due)

    def _swept(self, batch: pa.RecordBatch, numbers: Slots) -> Iterator[pa.RecordBatch]:
        low, _ = self.condition.lows(batch)
        high = self.condition.highs(batch, low)
        served = np.flatnonzero(numbers >= 0)
        shed = int(np.count_nonzero(numbers == SHED))
        rows, matched = self._rows_of(batch), numbers == SHED
        frames = self._fetch.frames
        for positions, keys, starts, flags in sweep(self.relation, low[served], high[served], frames, self._cap):
            positions = served[positions]
            matched[positions] = True
            yield from self._joined(keys, rows.at(positions), frames.reshape(-1), starts, flags)
        self._stats.probes += served.size
        self._stats.rows_done += batch.num_rows
        self.shed_tuples += shed
        yield from self._without_partner(rows.at(np.flatnonzero(~matched)))
