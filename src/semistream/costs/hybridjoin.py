"""HYBRIDJOIN: the oldest tuple decides which partition is read (HYBRIDJOIN §4.4).

=============  =============================================================================================
symbol         meaning
=============  =============================================================================================
``h_S``        stream tuples that wait
``d``          rows of R that one read loads for a key: a partition of ``partition_pages``
``w``          stream tuples that one read answers; see `semistream.costs.basis.queue_steady_state`
=============  =============================================================================================

Each tuple that reaches the disk side costs ``(S + T·pages) / w`` of reading, ``d / w`` probes, and
``c_S + c_A + c_E + K·c_O``.

Difference from the paper's model: ``w`` is derived, not fitted (Eq. 2), and is valid for any exponent and any position
of the frequent keys.
"""

from __future__ import annotations

import math
from typing import Any

from semistream.costs.basis.model import Memory, common_memory
from semistream.costs.basis.oldest_first import OldestFirst
from semistream.costs.basis.popularity import KeyClasses
from semistream.costs.basis.served import DiskCosts, Served
from semistream.costs.basis.setting import Setting
from semistream.joins.families.oldest_first import DISK_SHARE, IN_FLIGHT, DiskLayout
from semistream.joins.shares import memory_of_long_turns
from semistream.structures.stream_table import StreamTable

__all__ = ["COSTS", "HybridJoinCosts", "disk_layout"]


class HybridJoinCosts(DiskCosts):
    """The disk buffer uses at most `DISK_SHARE` of the memory, the stream table the rest; see `DiskLayout`."""

    id = "hybridjoin"
    side = OldestFirst

    def serve(
        self, setting: Setting, memory: int, keys: KeyClasses, *,
        partition_pages: int | None = None, in_flight: int = IN_FLIGHT, seek_pages: float = 3.0,
        disk_share: float = DISK_SHARE, most: float = math.inf, piece: float = math.inf, **options: Any,
    ) -> Served:  # fmt: skip
        parts = common_memory(setting, memory, index=True)
        layout = disk_layout(setting, partition_pages, in_flight, disk_share)
        frames = self.give_disk_buffer(setting, parts, layout, layout.room(parts.free))
        capacity = self.give_table(setting, parts)
        side = self.side(setting, keys, capacity, frames, partition_pages, seek_pages, most=most, piece=piece)
        return Served(
            parts,
            {
                **options, "partition_pages": partition_pages, "in_flight": in_flight, "seek_pages": seek_pages,
                "disk_share": disk_share,
            },
            probes=side.pages * setting.rows_per_page,
            reads=side.reads,
            pages=side.pages,
            seek=setting.seek_with(max(1, side.frames // side.width)),
            turns=1.0 / side.state.tuples,
            events=side.events(),
            details={
                "w": side.state.served, "h_S": capacity, "width": side.width, "turn": side.state.tuples,
                "kappa": side.state.served * setting.pages / (side.width * capacity),
            },
        )  # fmt: skip

    def least(self, setting: Setting, **options: Any) -> int:
        return disk_layout(setting, options.get("partition_pages")).least

    def memory_of_long_turns(self, setting: Setting) -> int:
        return memory_of_long_turns(setting.pages, setting.index_bytes, setting.frame_bytes, setting.waiting_bytes)

    def choices(self, setting: Setting, memory: int) -> dict[str, list[Any]]:
        """Return partition sizes up to half of the memory."""
        room = common_memory(setting, memory, index=True).free // 2 // setting.frame_bytes
        sizes = [pages for pages in _doubling(setting.pages) if pages <= max(1, room)]
        # if reads overlap, more reads in flight always help; if they do not, more only cost memory
        flights = [IN_FLIGHT] if setting.queued_seek < setting.seek else [1, 16, IN_FLIGHT]
        return {"partition_pages": sizes, "in_flight": flights}

    def give_disk_buffer(self, setting: Setting, parts: Memory, layout: DiskLayout, room: int) -> int:
        """Reserve frames for the requested partitions, as far as they fit into ``room``, at least one; return pages."""
        if layout.least > parts.free:
            raise self.too_small(setting, parts, layout.least)
        frames = layout.frames(room)
        parts.give("disk buffer", frames * setting.frame_bytes)
        return frames

    def give_table(self, setting: Setting, parts: Memory) -> int:
        """Reserve the rest of the memory for the stream table; return its capacity."""
        capacity = (parts.free - StreamTable.fixed_bytes()) // setting.waiting_bytes
        if capacity < 1:
            raise self.too_small(setting, parts, setting.waiting_bytes + StreamTable.fixed_bytes())
        parts.give("stream table", capacity * setting.waiting_bytes + StreamTable.fixed_bytes())
        return capacity


def disk_layout(
    setting: Setting, partition_pages: int | None = None, in_flight: int = IN_FLIGHT, disk_share: float = DISK_SHARE
) -> DiskLayout:
    """Return the join's split of the memory."""
    return DiskLayout(setting.frame_bytes, setting.waiting_bytes, partition_pages, in_flight, disk_share)


def _doubling(most: int) -> list[int]:
    """Return 1, 2, 3, 4, 6, 8, 12 … up to ``most``."""
    values = sorted({int(step * 2**power) for power in range(40) for step in (1, 1.5)})
    return [value for value in values if value <= most]


COSTS = (HybridJoinCosts(),)
