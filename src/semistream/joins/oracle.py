"""The ideal: all of R in memory. Reports can show how far other joins are from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bytes, Ints
from semistream.joins.interface.conditions import AsOf
from semistream.joins.interface.following import Undo
from semistream.joins.interface.join import Join
from semistream.joins.interface.stream_buffer import Tuples
from semistream.relation.changes.overlay import Change, Overlay
from semistream.relation.changes.patch import Patch
from semistream.relation.pages.page_index import last_not_after
from semistream.relation.pages.page_layout import FIRST, page_keys

__all__ = ["Oracle"]


class _Loaded(NamedTuple):
    """All pages of R, and keys, flags and starts of their rows by key; in a join as of a time, by key and time."""

    data: Bytes
    keys: Ints
    flags: Bytes
    starts: Ints
    begins: Ints
    lasts: Ints
    """When rows begin to be valid and their last moments, in a join as of a time; otherwise empty."""


class Oracle(Join):
    """An unbounded in-memory join: R is read once, sorted by key, and looked up.

    It is the only join that ignores its budget and allocates what it needs; `budget` reports how much this is.
    """

    id = "oracle"
    title = "all of R in memory (unbounded)"
    when = "As a reference for correct results and for the best possible rate: R must fit into memory."
    place = 0
    bounded = False
    conditions = ("equal", "between", "as_of")
    _coming: _Loaded | None = None

    def least_bytes(self) -> int:
        return 0

    def _check_minimum(self) -> None:
        self._allow(self.relation.page_count, self.relation.row_count, self.relation.index_bytes)

    def _allow(self, pages: int, rows: int, index_bytes: int) -> None:
        frames = pages * self.relation.device.frame_bytes
        needed = 3 * frames + 64 * rows + 2 * index_bytes + (1 << 25)
        self.budget.total = max(self.budget.total, needed)

    def open_parts(self) -> None:
        self._held = self.budget.reserve("relation", 0)
        self._hold(self._loaded(self.relation.overlay))

    def before_update(self, patch: Patch, undo: list[Undo]) -> None:
        """Read all of the updated R."""
        self._coming = self._loaded(patch.overlay)
        undo.append(self._forget_coming)
        self._allow(patch.page_count, patch.row_count, patch.index_bytes + patch.overlay.nbytes)
        super().before_update(patch, undo)

    def after_update(self, change: Change) -> None:
        """Use the updated R."""
        assert self._coming is not None
        self._hold(self._coming)
        self._forget_coming()

    def _forget_coming(self) -> None:
        self._coming = None

    def _loaded(self, overlay: Overlay) -> _Loaded:
        relation = self.relation
        frames = relation.frames(overlay.page_count)
        overlay.read(relation.device, np.arange(overlay.page_count), frames)
        keys, flags, starts = page_keys(frames, relation.layout.stride)
        data, begins, lasts = frames.reshape(-1), keys[:0], keys[:0]
        order = np.argsort(keys, kind="stable")
        if isinstance(self.condition, AsOf):
            begins, lasts = self.condition.intervals(data, starts)
            order = np.lexsort((begins, keys))
            begins, lasts, flags = begins[order], lasts[order], np.full(keys.size, FIRST, np.uint8)
        return _Loaded(data, keys[order], flags[order], starts[order], begins, lasts)

    def _hold(self, loaded: _Loaded) -> None:
        self._r = loaded
        self._held.resize(sum(array.nbytes for array in loaded))

    def _partners(self, part: Tuples) -> tuple[Ints, Ints]:
        """Return the first matching row of each tuple, and how many follow each other."""
        r = self._r
        low = np.searchsorted(r.keys, part.keys, side="left")
        high = np.searchsorted(r.keys, self.condition.highs(part.batch, part.keys), side="right")
        if not isinstance(self.condition, AsOf):
            return low, np.maximum(high - low, 0)
        times = self.condition.times(part.batch)
        row = last_not_after(r.begins, low, high, times)
        valid = row >= low
        valid[valid] = times[valid] <= r.lasts[row[valid]]
        return row, valid.astype(np.int64)

    def turn(self) -> Iterator[pa.RecordBatch]:
        r = self._r
        for part in self.stream.take(self.pairs_at_once):
            low, count = self._partners(part)
            ends = np.cumsum(count)
            begin, tuples = 0, self.rows_of(part.batch)
            while begin < len(part.keys):
                before = ends[begin - 1] if begin else 0
                end = max(begin + 1, int(np.searchsorted(ends, before + self.pairs_at_once, side="right")))
                here = count[begin:end]
                stream = np.repeat(np.arange(begin, end), here)
                offset = np.arange(stream.size) - np.repeat(np.cumsum(here) - here, here)
                rows = np.repeat(low[begin:end], here) + offset
                leaving = tuples.at(stream)
                yield from self.joined(r.keys[rows], leaving, r.data, r.starts[rows], r.flags[rows])
                begin = end
            self.tally.probes += len(part.keys)
            self.tally.rows_done += len(part.keys)
            self.tally.cache_hits += len(part.keys)
            yield from self.without_partner(tuples.at(np.flatnonzero(count == 0)))
