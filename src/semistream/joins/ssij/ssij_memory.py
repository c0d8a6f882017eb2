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
    """What SSIJ holds, and how its parts grow and shrink; it takes all of the budget that is free.

    Parameters
    ----------
    relation, budget
        R, and what the memory is taken from.
    options
        How the user wants it divided.
    shape, row_bytes
        Layout of the stream's tuples, and how long a row is expected to be.
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
        """R's rows that outlive their pages until they are emitted."""
        self.pool = FramePool(block[layout.read :])
        self.cache = PageCache(self.pool, relation.page_count, options.replacement)
        # Many runs are in flight at once, and the plan weighs what a seek then costs; a deadline can rely on less.
        self.planner = ReadPlanner(
            layout.planned, seek=self.profile.queued_seek_seconds, transfer=self.profile.transfer_seconds,
            max_scan=layout.scan,
        )  # fmt: skip
        self.read_utilities = np.empty(self.read_buffer.most, np.float32)
        self.input = TupleLog(self.pool, shape)
        """The input buffer: tuples not looked up yet."""
        self.index = InvertedIndex(self.pool, shape, relation.layout.stride, relation.clustered, relation.unique)
        """The stream buffer, and what its tuples wait for."""
        # pairs with cached pages and with pages just read are not gathered at the same time
        self.pairs = Pairs.empty(max(1, pair_bytes // PAIR_BYTES))
        self._share_frames()

    def _device_profile(self) -> DeviceProfile:
        try:
            return self._relation.device.profile
        except CorruptPageError:
            # whoever needs that page will be told; the plan only needs to know about what reads cost
            return DeviceProfile(1e-4, 1e-5, 5e4, 8e8, 16, True)

    def _share_frames(self) -> None:
        """Divide the frames that are here between pages and tuples, anew whenever some were lent or have come back."""
        frames = for_tuples = self.frames
        if self._options.cache_share is not None:
            for_tuples -= int(frames * self._options.cache_share)
            self.pool.limit_logs(for_tuples)
            self.cache.limit(frames - for_tuples)
        self.spare = max(3, frames // 16)
        """Frames that tuples which come in leave free, for those that go on to wait."""
        little = self._budget.total <= 0.015 * self._relation.nbytes
        room = for_tuples * self.pool.frame_bytes
        self.thresholds = Thresholds.of(self._options, room, self._record, little=little)

    @property
    def frames(self) -> int:
        """Frames that pages and tuples share now, those lent left out."""
        return self.pool.count - self.pool.lent

    @property
    def portion(self) -> int:
        """Tuples looked up at once."""
        return self._layout.portion

    @property
    def largest_row(self) -> int:
        """The longest row of the stream that fits into a frame, in bytes."""
        return self.pool.frame_bytes - self.shape.row_at

    # -- between pages and tuples -------------------------------------------------------------------------

    def frames_for(self, sizes: Ints) -> int:
        """Return how many frames records of these sizes may need."""
        largest = int(sizes.max(initial=8))
        return 1 + math.ceil(int(sizes.sum()) / (8 + max(0, self.pool.frame_bytes - largest)))

    def make_room(self, frames: int) -> None:
        """Let pages of least utility go until ``frames`` are free for tuples, or no page is left that may go.

        Takes time in the number of frames if pages go, else none; reads nothing.
        """
        lacking = frames - self.pool.left_for_logs
        if lacking > 0 and self._options.cache_share is None:
            self.cache.evict(lacking)

    def give_way(self, tuples: int) -> bool:
        """Let some pages go for ``tuples`` that may have to wait; say whether any frame came free."""
        if self._options.cache_share is not None or len(self.cache) == 0:
            return False
        expected = tuples * (self._record + 16)
        # not all of them will have to wait: pages go a few at a time
        some = min(3 + expected // self.pool.frame_bytes, max(3, len(self.cache) // 32))
        self.cache.evict(some)
        return True

    # -- between frames and the rest of the budget --------------------------------------------------------

    def lend(self, size: int) -> bool:
        """Turn frames, emptied of pages if need be, into ``size`` free bytes of the budget; say whether it worked."""
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
        """Lend frames as `lend` does; return what takes them back, or None if it did not work."""
        lent = self.pool.lent
        if not self.lend(size):
            return None
        return partial(self._take_back, self.pool.lent - lent)

    def _take_back(self, most: int | None = None) -> None:
        """Have lent frames back, as far as the budget has room again."""
        frames = min(self.pool.lent, self._budget.free // self.pool.frame_bytes)
        if (frames := frames if most is None else min(frames, most)) > 0:
            self.pool.take_back(frames)
            self._pool_part.resize(self._pool_part.bytes + frames * self.pool.frame_bytes)
            self._share_frames()

    def lacking_for(self, size: int) -> int:
        """Return how many bytes more the memory must have had to lend ``size`` and go on; 0 if it can."""
        left = self.frames - math.ceil(max(0, size) / self.pool.frame_bytes)
        return max(0, self._options.least_frames - left) * (self.pool.frame_bytes + FRAME_EXTRA)

    def follow_relation(self) -> None:
        """Keep up with an R that has changed, for which memory was taken before."""
        self.cache.resize(self._relation.page_count)
        self._take_back()

    # -- inspection ---------------------------------------------------------------------------------------

    def plans(self, *, greedily: bool) -> Iterator[ReadPlan]:
        """Yield read plans for the pages that tuples wait for, from the first to the last: time in R's pages.

        A plan has room for some of them, and its last run is planned again with those behind it. So it is nearly as
        good as one for all, and what it takes does not grow with R. It holds until the next is asked for.
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
        """Assert the invariants of all that lies in the block, and that each frame has one owner.

        ``amid`` a join phase, tuples are in the index that some of their pages have met.
        """
        self.cache.check()
        if not amid:
            self.index.check(self.cache.arrays)
        self.input.check()
        self.pool.check([self.input, *self.index.logs], self.cache.frames())
