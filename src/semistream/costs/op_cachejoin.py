"""OP-CACHEJOIN: both phases and loading run in parallel (P-/OP-CACHEJOIN, Eq. 3)."""

from __future__ import annotations

from typing import Any

from semistream.costs.basis.model import Memory
from semistream.costs.basis.oldest_first import BothEnds
from semistream.costs.basis.parallel_front import ParallelFrontCosts
from semistream.costs.basis.setting import Setting
from semistream.costs.hybridjoin import HybridJoinCosts
from semistream.joins.families.oldest_first import DiskLayout

__all__ = ["COSTS", "TwoBufferCosts"]


class TwoBufferCosts(HybridJoinCosts):
    """HYBRIDJOIN's disk side, with its frames divided into two buffers."""

    id = "two_buffers"
    side = BothEnds

    def least(self, setting: Setting, **options: Any) -> int:
        return super().least(setting, **options) + (options.get("partition_pages") or 1) * setting.frame_bytes

    def give_disk_buffer(self, setting: Setting, parts: Memory, layout: DiskLayout, room: int) -> int:
        frames = super().give_disk_buffer(setting, parts, layout, room)
        if frames == 1:  # there are always two buffers
            parts.give("second disk buffer", setting.frame_bytes)
            return 2
        return frames


COSTS = (ParallelFrontCosts("op_cachejoin", TwoBufferCosts()),)
