"""The memory of SSIJ (§IV-A): one block of frames for cached pages, both buffers and the inverted index."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Ints
from semistream.core.budget import Reservation
from semistream.core.errors import CorruptPageError
from semistream.joins.interface.following import Undo
from semistream.joins.interface.join import Join
from semistream.joins.ssij.frame_pool import FramePool
from semistream.joins.ssij.inverted_index import InvertedIndex
from semistream.joins.ssij.inverted_kernels import ENTRY_BYTES, NODE_BYTES, PAIR_BYTES, Pairs
from semistream.joins.ssij.page_cache import PageCache, Replacement, list_wanted
from semistream.joins.ssij.phase_costs import PhaseCosts
from semistream.joins.ssij.tuple_log import TupleLog, TupleShape
from semistream.relation.changes.patch import Patch
from semistream.relation.devices.device import DeviceProfile
from semistream.relation.relation import Relation
from semistream.structures.read_plan import ReadPlanner

__all__ = ["SsijMemory"]


INPUT_TUPLES = 250_000
BUFFER_TUPLES = 1_000_000
BUFFER_TUPLES_OF_LITTLE = 400_000
"""The paper's thresholds (Table II); the last one with memory of one percent of R."""

_LEAST_FRAMES = 6
_LEAST_PORTION = 16
_MOST_PORTION = 1 << 16
_PORTION_BYTES = 72
"""A tuple that is looked up: address, key, order, ends of its range, its span, and copies of these on the way."""
_MOST_READ = 512
_MOST_COPIES = 1 << 21
_WANTED_BYTES = ReadPlanner.bytes_per_page + 12
"""A wanted page in the read plan, its utility, and that once more among all utilities."""
_FRAME_EXTRA = FramePool.bytes_per_frame + PageCache.bytes_per_frame + 4
"""What a frame costs beside its bytes; 4 for its utility among all utilities."""
READ_EXTRA = 12
"""What a frame of the read buffer costs beside its bytes."""


class SsijMemory(Join):
    """The parts of SSIJ's memory and how they grow and shrink; `Ssij` has the algorithm."""

    _timed: bool
    """Whether tuples have deadlines."""
    _turning: bool
    """Whether a phase is under way, amid which cached pages must stay where they are."""

    def __init__(
        self,
        relation: Relation,
        *,
        input_tuples: int | None = None,
        buffer_tuples: int | None = None,
        input_limit: int | None = None,
        max_scan: int = 200,
        replacement: Replacement = "utility",
        cache_share: float | None = None,
        read_ahead: bool = True,
        **common: Any,
    ) -> None:
        for name, value in (("input_tuples", input_tuples), ("buffer_tuples", buffer_tuples), ("max_scan", max_scan)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if cache_share is not None and not 0.0 <= cache_share <= 0.95:
            raise ValueError(f"cache_share must be from 0 to 0.95, not {cache_share}; None lets memory move")
        self._wish = input_tuples, buffer_tuples, input_limit
        self._max_scan = max_scan
        self._replacement = replacement
        self._cache_share = cache_share
        # virtual time goes by while pages are read, and must not do so behind the join's back
        self._read_ahead = read_ahead and not relation.device.simulated
        super().__init__(relation, **common)

    # -- taking it ----------------------------------------------------------------------------------------

    def _minimum(self) -> int:
        frame = self.relation.device.frame_bytes
        frames = self._least_frames()
        return (
            self.relation.page_count * PageCache.bytes_per_page
            + frames * (frame + _FRAME_EXTRA)
            + (frame + READ_EXTRA)
            + frame  # copies of matched rows
            + _LEAST_PORTION * (_PORTION_BYTES + _WANTED_BYTES)
            + ReadPlanner.bytes_for(0, 1)
        )

    def _least_frames(self) -> int:
        """Return how many frames there must be for tuples to come in, wait and leave."""
        return math.ceil(_LEAST_FRAMES / (1.0 - (self._cache_share or 0.0)))

    def _open(self) -> None:
        relation, frame = self.relation, self.relation.device.frame_bytes
        self._page_map = self.budget.reserve("page map", relation.page_count * PageCache.bytes_per_page)
        spare = self.budget.free - (self._minimum() - self._page_map.bytes)

        self._portion = _LEAST_PORTION + min(spare // 16 // _PORTION_BYTES, _MOST_PORTION)
        self.budget.reserve("look-up", self._portion * _PORTION_BYTES)
        read = 1 + min(spare // 16 // (frame + READ_EXTRA), _MOST_READ, max(relation.page_count - 1, 0))
        self.budget.reserve("read buffer", read * (frame + READ_EXTRA))
        buffers = 2 if self._read_ahead and read >= 4 else 1
        self._copies = np.empty(frame + min(spare // 32, _MOST_COPIES), np.uint8)
        self.budget.reserve("matched rows", self._copies.nbytes)
        scan = max(1, min(self._max_scan, read // buffers, 1 + spare // 64 // 4))
        wanted = _LEAST_PORTION + spare // 64 // _WANTED_BYTES
        self._plan_part = self.budget.reserve("read plan", self._plan_bytes(wanted, scan))
        frames = min(self.budget.free // (frame + _FRAME_EXTRA), FramePool.most_bytes // frame)

        block = relation.frames(read + frames)
        each = read // buffers
        listed = np.empty(read, np.int64)
        self._read_buffers = [
            (listed[begin : begin + each], block[begin : begin + each]) for begin in range(0, each * buffers, each)
        ]
        self._chunk_utilities = np.empty(each, np.float32)
        self._reader = ThreadPoolExecutor(1, "semistream-ssij") if buffers == 2 else None
        self._pool = FramePool(block[read:])
        self._pool_part = self.budget.reserve("pages and tuples", frames * (frame + _FRAME_EXTRA))
        self._cache = PageCache(self._pool, relation.page_count, self._replacement)
        profile = self._device_profile()
        # Many runs are in flight at once, and the plan weighs what a seek then costs; a deadline can rely on less.
        self._planner = ReadPlanner(
            wanted, seek=profile.queued_seek_seconds, transfer=profile.transfer_seconds, max_scan=scan
        )
        self._utilities = np.empty(wanted, np.float32)
        self.costs = PhaseCosts(
            seek=profile.seek_seconds, transfer=profile.transfer_seconds,
            page_count=relation.page_count, max_scan=scan,
        )  # fmt: skip

        self._shape = TupleShape(self.stream_codec, ranged=self.condition.name == "between", timed=self._timed)
        self._input = TupleLog(self._pool, self._shape)
        self._index = InvertedIndex(
            self._pool, self._shape, relation.layout.stride, relation.clustered, relation.unique
        )
        # pairs with cached pages and with pages just read are not gathered at the same time
        self._pairs = self._kept_pairs = Pairs.empty(max(1, self._cap * 24 // PAIR_BYTES))
        largest = frame - self._shape.row_at
        if self.stream_codec.variable or self.stream_codec.stride > largest:
            self._largest_row = largest
        self._share_frames()

    def _device_profile(self) -> DeviceProfile:
        try:
            return self.relation.device.profile
        except CorruptPageError:
            # whoever needs that page will be told; the plan only needs to know about what reads cost
            return DeviceProfile(1e-4, 1e-5, 5e4, 8e8, 16, True)

    def _share_frames(self) -> None:
        """Divide the frames that are here between pages and tuples, anew whenever some were lent or have come back."""
        frames = for_tuples = self._pool.count - self._pool.lent
        if self._cache_share is not None:
            for_tuples -= int(frames * self._cache_share)
            self._pool.limit_logs(for_tuples)
            self._cache.limit(frames - for_tuples)
        self._spare = max(3, frames // 16)
        self._set_thresholds(for_tuples, int(self._pool.frame_bytes))

    def _set_thresholds(self, frames: int, frame: int) -> None:
        """Use the paper's thresholds, or less: a tenth of the memory for the one buffer, half of it for the other."""
        record = TupleShape.size_of(self._row_bytes, ranged=self._shape.ranged, timed=self._timed)
        waiting = record + NODE_BYTES + ENTRY_BYTES + _WANTED_BYTES // 4
        little = self.budget.total <= 0.015 * self.relation.nbytes
        paper = BUFFER_TUPLES_OF_LITTLE if little else BUFFER_TUPLES
        wished, buffered, limit = self._wish
        self._input_tuples = wished or max(1, min(INPUT_TUPLES, frames * frame // 10 // record))
        self._buffer_tuples = buffered or max(1, min(paper, frames * frame // 2 // waiting))
        self._input_limit = max(limit or 0, self._input_tuples)

    @staticmethod
    def _plan_bytes(wanted: int, scan: int) -> int:
        return wanted * (_WANTED_BYTES - ReadPlanner.bytes_per_page) + ReadPlanner.bytes_for(wanted, scan)

    # -- moving it ----------------------------------------------------------------------------------------

    def _frames_for(self, sizes: Ints) -> int:
        """Return how many frames records of these sizes may need."""
        largest = int(sizes.max(initial=8))
        return 1 + math.ceil(int(sizes.sum()) / (8 + max(0, int(self._pool.frame_bytes) - largest)))

    def _make_room(self, frames: int) -> bool:
        """Let pages of least utility go until ``frames`` are free; say whether they are."""
        lacking = frames - self._pool.left_for_logs
        if lacking > 0 and self._cache_share is None and not self._turning:
            self._cache.evict(lacking)
        return self._pool.left_for_logs >= frames

    def _give_way(self, tuples: int) -> bool:
        """Let some pages go for tuples that have to wait; say whether any frame came free."""
        if self._cache_share is not None or len(self._cache) == 0:
            return False
        expected = tuples * (TupleShape.size_of(self._row_bytes, ranged=self._shape.ranged, timed=self._timed) + 16)
        # not all of them will have to wait: pages go a few at a time
        some = min(3 + expected // int(self._pool.frame_bytes), max(3, len(self._cache) // 32))
        self._cache.evict(some)
        return True

    def _lend(self, size: int) -> bool:
        """Turn frames, emptied of pages if need be, into ``size`` free bytes of the budget; say whether it worked."""
        frames = math.ceil(max(0, size - self.budget.free) / self._pool.frame_bytes)
        if frames == 0:
            return True
        if self._pool.count - self._pool.lent - frames < self._least_frames():
            return False
        if frames + 3 > self._pool.free:
            self._cache.evict(frames + 3 - self._pool.free)
        if frames + 3 > self._pool.free:
            return False
        self._pool.lend(frames)
        self._pool_part.resize(self._pool_part.bytes - frames * self._pool.frame_bytes)
        self._share_frames()
        return True

    def _take_back(self, most: int | None = None) -> None:
        """Have lent frames back, as far as the budget has room again."""
        frames = min(self._pool.lent, self.budget.free // self._pool.frame_bytes)
        if (frames := frames if most is None else min(frames, most)) > 0:
            self._pool.take_back(frames)
            self._pool_part.resize(self._pool_part.bytes + frames * self._pool.frame_bytes)
            self._share_frames()

    def _grow_plan(self) -> bool:
        """Make room for more wanted pages; say whether it worked."""
        if self._planner.capacity >= self.relation.page_count:
            return False
        wanted = min(self._planner.capacity * 3 // 2 + 16, self.relation.page_count)
        size = self._plan_bytes(wanted, self._planner.max_scan)
        if not self._lend(size - self._plan_part.bytes):
            return False
        self._plan_part.resize(size)
        self._planner.resize(wanted)
        self._utilities = np.empty(wanted, np.float32)
        return True

    def _wanted_pages(self) -> NDArray[np.int32]:
        count = list_wanted(self._cache.arrays.place, self._planner.pages)
        return self._planner.pages[:count]

    # -- updates of R -------------------------------------------------------------------------------------

    def _growth(self, patch: Patch) -> list[tuple[Reservation, int]]:
        size = max(self._page_map.bytes, patch.page_count * PageCache.bytes_per_page)
        return [*super()._growth(patch), (self._page_map, size)]

    def _check_room(self, patch: Patch) -> None:
        """Refuse an update that would leave too few frames for tuples to come in, wait and leave."""
        lacking = sum(size - part.bytes for part, size in self._growth(patch)) - self.budget.free
        left = self._pool.count - self._pool.lent - math.ceil(max(0, lacking) / self._pool.frame_bytes)
        if left < self._least_frames():
            raise self._too_large((self._least_frames() - left) * (self._pool.frame_bytes + _FRAME_EXTRA), patch)

    def _give_up(self, lacking: int, patch: Patch) -> Undo:
        """Lend frames; the tuples that wait for pages have left by now, others may have taken too many."""
        lent = self._pool.lent
        if not self._lend(self.budget.free + lacking):
            raise self._must_drain(self.pending)
        return partial(self._take_back, self._pool.lent - lent)

    def _follow_relation(self) -> None:
        """Keep up with an R that has changed, for which memory was taken before."""
        self._cache.resize(self.relation.page_count)
        self._take_back()

    def _check(self) -> None:
        self._cache.check()
        self._index.check(self._cache.arrays)
        self._input.check()
        self._pool.check([self._input, *self._index.logs], self._cache.frames())
