"""The ideal: all of R in memory. Every report can show how far the others are from it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from semistream.joins.base import Join
from semistream.relation.overlay import Change
from semistream.relation.pages import page_keys
from semistream.relation.selection import keep_rows, take_rows

__all__ = ["Oracle"]


class Oracle(Join):
    """An unbounded in-memory join: R is read once, sorted by key, and looked up.

    It is the one join that takes what it needs, whatever its budget says; `budget` tells how much that was.
    """

    id = "oracle"
    title = "all of R in memory (unbounded)"
    place = 0
    bounded = False
    conditions = ("equal", "between")

    def _minimum(self) -> int:
        return 0

    def _check_minimum(self) -> None:
        frames = self.relation.page_count * self.relation.device.frame_bytes
        needed = frames + 64 * self.relation.row_count + self.relation.index_bytes + (1 << 25)
        self.budget.total = max(self.budget.total, needed)

    def _open(self) -> None:
        self._held = self.budget.reserve("relation", 0)
        self._load()

    def after_update(self, change: Change) -> None:
        """Read all of R anew."""
        if change.keys.size:
            self._check_minimum()
            self._load()

    def _load(self) -> None:
        relation = self.relation
        frames = relation.frames(relation.page_count)
        relation.read(np.arange(relation.page_count), frames)
        keys, flags, starts = page_keys(frames, relation.layout.stride)
        order = np.argsort(keys, kind="stable")
        self._data = frames.reshape(-1)
        self._keys, self._flags, self._starts = keys[order], flags[order], starts[order]
        held = (self._data, self._keys, self._flags, self._starts)
        self._held.resize(sum(array.nbytes for array in held))

    def _step(self) -> Iterator[pa.RecordBatch]:
        for part in self._stream.take(self._cap):
            low = np.searchsorted(self._keys, part.keys, side="left")
            high = self.condition.highs(part.batch, part.keys)
            count = np.maximum(np.searchsorted(self._keys, high, side="right") - low, 0)
            ends = np.cumsum(count)
            begin = 0
            while begin < len(part.keys):
                before = ends[begin - 1] if begin else 0
                end = max(begin + 1, int(np.searchsorted(ends, before + self._cap, side="right")))
                here = count[begin:end]
                stream = np.repeat(np.arange(begin, end), here)
                offset = np.arange(stream.size) - np.repeat(np.cumsum(here) - here, here)
                rows = np.repeat(low[begin:end], here) + offset
                taken = take_rows(part.batch, stream)
                yield from self._joined(self._keys[rows], taken, self._data, self._starts[rows], self._flags[rows])
                begin = end
            self._stats.probes += len(part.keys)
            self._stats.rows_done += len(part.keys)
            self._stats.cache_hits += len(part.keys)
            yield from self._without_partner(keep_rows(part.batch, count == 0))
