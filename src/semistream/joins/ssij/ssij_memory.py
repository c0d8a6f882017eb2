"""The memory of SSIJ (§IV-A): one block of frames for cached pages, both buffers and the inverted index."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from semistream.core.arrays import Ints
from semistream.core.budget import MemoryBudget
from semistream.core.errors import CorruptPageError
from semistream.joins.interface.following import Undo
from semistream.joins.ssij.frame_pool import FramePool
from semistream.joins.ssij.inverted_index import InvertedIndex
from semistream.joins.ssij.inverted_layout import PAIR_BYTES, Pairs
from semistream.joins.ssij.page_cache import PageCache, list_wanted
from semistream.joins.ssij.read_buffer import ReadBuffer
from semistream.joins.ssij.ssij_layout import FRAME_EXTRA, MemoryOptions, SsijLayout, Thresholds
from semistream.joins.ssij.tuple_log import TupleLog, TupleShape
from semistream.relation.devices.device import DeviceProfile
from semistream.relation.relation import Relation
from semistream.structures.read_plan import ReadPlan, ReadPlanner

__all__ = ["SsijMemory"]


class SsijMemory:
    """The memory of SSIJ, and how its parts grow and shrink; it uses all of the budget that is free.

    Parameters
    ----------
    relation, budget
        R, and the budget.
    options
        The user's settings.
    shape, row_bytes
        Layout of the stream's tuples, and expected bytes of a row.
    pair_bytes
        Bytes already reserved for pairs.
    """

    def __init__(
        self,
        relation: Relation,
        budget: MemoryBudget,
        options: MemoryOptions,
        shape: TupleShape,
        row_bytes: float,
        pair_bytes: int,
    ) -> None:
        self._relation = relation
        self._budget = budget
        self._options = options
        self.shape = shape
        self._record = TupleShape.size_of(row_bytes, ranged=shape.ranged, timed=shape.timed)

        frame = relation.device.frame_bytes
        self.page_map = budget.reserve("page map", relation.page_count * PageCache.bytes_per_page)
        self.profile = self._device_profile()
        transfer = self.profile.transfer_seconds if options.read_ahead else 1.0  # virtual calls cost nothing
        self._layout = layout = SsijLayout.of(budget.free, frame, relation.page_count, options, transfer)
        parts = {name: budget.reserve(name, size) for name, size in layout.parts().items()}
        self._pool_part = parts["pages and tuples"]

        block = relation.frames(layout.read + layout.frames)
        self.read_buffer = ReadBuffer(relation, block[: layout.read], layout.buffers)
        self.copies = np.empty(layout.copies, np.uint8)
        """Copies of R's rows, which outlive their pages until the results are returned."""
        self.pool = FramePool(block[layout.read :])
        self.cache = PageCache(self.pool, relation.page_count, options.replacement)
        # Many runs are in flight together, so the plan uses the cost of a queued seek. Deadlines assume a single seek.
        self.planner = ReadPlanner(
            layout.planned, seek=self.profile.queued_seek_seconds, transfer=self.profile.transfer_seconds,
            max_scan=layout.scan,
        )  # fmt: skip
        self.read_utilities = np.empty(self.read_buffer.most, np.float32)
        self.input = TupleLog(self.pool, shape)
        """The input buffer: tuples not looked up yet."""
        self.index = InvertedIndex(self.pool, shape, relation.layout.stride, relation.clustered, relation.unique)
        """The stream buffer, and the pages that its tuples wait for."""
        # Pairs with cached pages and pairs with pages just read share the buffers: they are never collected together.
        self.pairs = Pairs.empty(max(1, pair_bytes // PAIR_BYTES))
        self._share_frames()

    def _device_profile(self) -> DeviceProfile:
        try:
            return self._relation.device.profile
        except CorruptPageError:
            # The damaged page raises when it is needed. The plan only needs approximate costs of reads.
            return DeviceProfile(1e-4, 1e-5, 5e4, 8e8, 16, True)

    def _share_frames(self) -> None:
        """Divide the available frames between pages and tuples; called again after frames were lent or returned."""
        frames = for_tuples = self.frames
        if self._options.cache_share is not None:
            for_tuples -= int(frames * self._options.cache_share)
            self.pool.limit_logs(for_tuples)
            self.cache.limit(frames - for_tuples)
        self.spare = max(3, frames // 16)
        """Frames that arriving tuples leave free for tuples that must wait."""
        little = self._budget.total <= 0.015 * self._relation.nbytes
        room = for_tuples * self.pool.frame_bytes
        self.thresholds = Thresholds.of(self._options, room, self._record, little=little)

    @property
    def frames(self) -> int:
        """Frames that pages and tuples share now, without lent ones."""
        return self.pool.count - self.pool.lent

    @property
    def portion(self) -> int:
        """Tuples looked up together."""
        return self._layout.portion

    @property
    def largest_row(self) -> int:
        """The longest row of the stream that fits into a frame, in bytes."""
        return self.pool.frame_bytes - self.shape.row_at

    # -- between pages and tuples -------------------------------------------------------------------------

    def frames_for(self, sizes: Ints) -> int:
        """Return an upper bound of the frames that records of these sizes need."""
        largest = int(sizes.max(initial=8))
        return 1 + math.ceil(int(sizes.sum()) / (8 + max(0, self.pool.frame_bytes - largest)))

    def make_room(self, frames: int) -> None:
        """Evict pages, lowest utility first, until ``frames`` frames are free for tuples or no page may be evicted.

        Takes time linear in the frames if pages are evicted, else constant time; reads nothing.
        """
        lacking = frames - self.pool.left_for_logs
        if lacking > 0 and self._options.cache_share is None:
            self.cache.evict(lacking)

    def give_way(self, tuples: int) -> bool:
        """Evict some pages for ``tuples`` tuples that may have to wait; return whether any frame was freed."""
        if self._options.cache_share is not None or len(self.cache) == 0:
            return False
        expected = tuples * (self._record + 16)
        # Not all tuples will have to wait: evict a few pages at a time.
        some = min(3 + expected // self.pool.frame_bytes, max(3, len(self.cache) // 32))
        self.cache.evict(some)
        return True

    # -- between frames and the rest of the budget --------------------------------------------------------

    def lend(self, size: int) -> bool:
        """Lend frames, evicting pages if needed, until ``size`` bytes of the budget are free; False if it fails."""
        frames = math.ceil(max(0, size - self._budget.free) / self.pool.frame_bytes)
        if frames == 0:
            return True
        if self.frames - frames < self._options.least_frames:
            return False
        if frames + 3 > self.pool.free:
            self.cache.evict(frames + 3 - self.pool.free)
        if frames + 3 > self.pool.free:
            return False
        self.pool.lend(frames)
        self._pool_part.resize(self._pool_part.bytes - frames * self.pool.frame_bytes)
        self._share_frames()
        return True

    def lend_for_update(self, size: int) -> Undo | None:
        """Lend frames as `lend` does; return a function that takes them back, or None if it failed."""
        lent = self.pool.lent
        if not self.lend(size):
            return None
        return partial(self._take_back, self.pool.lent - lent)

    def _take_back(self, most: int | None = None) -> None:
        """Take lent frames back, up to the free bytes of the budget."""
        frames = min(self.pool.lent, self._budget.free // self.pool.frame_bytes)
        if (frames := frames if most is None else min(frames, most)) > 0:
            self.pool.take_back(frames)
            self._pool_part.resize(self._pool_part.bytes + frames * self.pool.frame_bytes)
            self._share_frames()

    def lacking_for(self, size: int) -> int:
        """Return how many more bytes the memory would need to lend ``size`` bytes and continue; 0 if it has enough."""
        left = self.frames - math.ceil(max(0, size) / self.pool.frame_bytes)
        return max(0, self._options.least_frames - left) * (self.pool.frame_bytes + FRAME_EXTRA)

    def follow_relation(self) -> None:
        """Adapt to a changed R, for which memory was already reserved."""
        self.cache.resize(self._relation.page_count)
        self._take_back()

    # -- inspection ---------------------------------------------------------------------------------------

    def plans(self, *, greedily: bool) -> Iterator[ReadPlan]:
        """Yield read plans for the pages that tuples wait for, ascending, in time linear in R's pages.

        A plan covers a part of them. Its last run is planned again together with the pages that follow. So the plans
        are nearly as good as one plan for all pages, and their memory does not grow with R. A plan is valid until the
        next is requested.
        """
        planner, begin = self.planner, 0
        while count := list_wanted(self.cache.arrays.place, begin, planner.pages):
            pages = planner.pages[:count]
            plan = planner.plan_greedily(pages) if greedily else planner.plan(pages)
            if count == planner.capacity:
                plan = plan.but_last()
            begin = int(plan.pages[-1]) + 1
            yield plan

    def check(self, *, amid: bool = False) -> None:
        """Assert the invariants of all parts in the block, and that each frame has one owner.

        ``amid`` means during a join phase, when tuples in the index have already been joined with some of their pages.
        """
        self.cache.check()
        if not amid:
            self.index.check(self.cache.arrays)
        self.input.check()
        self.pool.check([self.input, *self.index.logs], self.cache.frames())
