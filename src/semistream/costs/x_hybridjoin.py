"""X-HYBRIDJOIN: HYBRIDJOIN with pages pinned in memory (X-HYBRIDJOIN §4.3, §6).

=============  =============================================================================================
symbol         meaning
=============  =============================================================================================
``d_N``        rows of the pinned pages
``d_S``        rows of R that one read loads for a key
``p_N``        share of the stream that the pinned pages answer
=============  =============================================================================================

Difference from the paper's model: arriving tuples probe the pinned part, instead of probing all its rows in ``H_S``. So
it costs one ``c_H`` per tuple instead of ``d_N·c_H`` per iteration (Eq. 5).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from semistream.core.arrays import Floats
from semistream.costs.basis.model import Memory, common_memory
from semistream.costs.basis.oldest_first import OldestFirst
from semistream.costs.basis.popularity import KeyClasses
from semistream.costs.basis.served import Served, matched_in_passes
from semistream.costs.basis.setting import Setting
from semistream.costs.hybridjoin import HybridJoinCosts, disk_layout
from semistream.joins.families.oldest_first import DISK_SHARE, IN_FLIGHT
from semistream.structures.pinned_pages import PinnedLayout

__all__ = ["COSTS", "XHybridJoinCosts"]


_PORTION = 1 << 14


class XHybridJoinCosts(HybridJoinCosts):
    """Some pages are pinned, and answer their part of the stream without a read.

    Memory: ``(k + l)·v_P`` and the directory of the pinned rows, a counter for each page of R, and the table. The model
    assumes that the most popular pages are pinned; counts over many tuples identify them well.
    """

    id = "x_hybridjoin"

    def serve(
        self, setting: Setting, memory: int, keys: KeyClasses, *,
        pinned_pages: int | None = None, partition_pages: int | None = None, in_flight: int = IN_FLIGHT,
        seek_pages: float = 3.0, disk_share: float = DISK_SHARE, by_frequency: bool = False,
        scan_pinned: bool = False, **options: Any,
    ) -> Served:  # fmt: skip
        parts = common_memory(setting, memory, index=True)
        whole, layout = parts.free, _layout(setting)
        least = self.least(
            setting, partition_pages=partition_pages, pinned_pages=pinned_pages, by_frequency=by_frequency
        )
        spare = whole - least
        if spare < 0:
            raise self.too_small(setting, parts, least)
        disk = disk_layout(setting, partition_pages, in_flight, disk_share)
        frames = self.give_disk_buffer(setting, parts, disk, min(spare, int(whole * disk_share)))
        spare -= frames * setting.frame_bytes - disk.partition_bytes
        pinned = pinned_pages
        if pinned is None:
            one = layout.bytes_for(1)
            pinned = max(1, min(layout.fitting(one + min(spare, whole // 4)), setting.pages))
            spare -= layout.bytes_for(pinned) - one
        pinned = min(pinned, setting.pages)
        counters = 0 if by_frequency else max(1, min(setting.pages, min(spare, whole // 32) // 4))
        parts.give("pinned pages", layout.bytes_for(pinned) + 4 * counters)
        capacity = self.give_table(setting, parts)

        pages = keys.units(setting, 1).items().top(pinned)
        missed = max(pages.miss_share, 1e-9)
        # as in the paper, tuples that pinned pages answer also enter, and leave before the iteration's read
        stay = missed if scan_pinned else 1.0
        side = OldestFirst(setting, keys, capacity, frames, partition_pages, seek_pages, pages, stay=stay)
        # a look-up per tuple or, as in the paper, per pinned row in each iteration
        looked_up = pinned * setting.rows_per_page * missed / side.state.tuples if scan_pinned else 1.0
        return Served(
            parts,
            {
                **options, "pinned_pages": pinned, "partition_pages": partition_pages, "in_flight": in_flight,
                "seek_pages": seek_pages, "disk_share": disk_share, "by_frequency": by_frequency,
                "scan_pinned": scan_pinned,
            },
            probes=looked_up + missed * side.pages * setting.rows_per_page,
            reads=missed * side.reads,
            pages=missed * side.pages,
            seek=setting.seek_with(max(1, frames // side.width)),
            turns=missed / side.state.tuples,
            events=self._events(setting, keys, parts, pages, missed * side.events()),
            recorded=0.0 if by_frequency else missed,
            cache_hits=1.0 - missed,
            admits_hits=scan_pinned,
            details={
                "w": side.state.served, "h_S": capacity, "width": side.width, "d_N": pinned * setting.rows_per_page,
                "p_N": 1.0 - missed, "turn": side.state.tuples,
            },
        )  # fmt: skip

    def least(self, setting: Setting, **options: Any) -> int:
        pinned, counters = options.get("pinned_pages"), 0 if options.get("by_frequency") else 4
        return (
            super().least(setting, **options) + _layout(setting).bytes_for(1 if pinned is None else pinned) + counters
        )

    @staticmethod
    def _events(setting: Setting, keys: KeyClasses, parts: Memory, pages: KeyClasses, others: Floats) -> Floats:
        """Return match events of keys; keys on pinned pages are matched in each portion that is looked up."""
        portion = min(_PORTION, parts.inbox / setting.buffered_bytes)
        with_portion = matched_in_passes(keys, portion / max(keys.miss_share, 1e-12))
        pinned = np.interp(keys.in_units(setting, 1)[1], pages.popularity[::-1], 1.0 - pages.missing[::-1])
        return pinned * with_portion + (1.0 - pinned) * others

    def choices(self, setting: Setting, memory: int) -> dict[str, list[Any]]:
        """Return a grid of partition sizes and of shares of the memory for pinned pages."""
        room = common_memory(setting, memory, index=True).free
        most = _layout(setting).fitting(room)
        pinned = sorted({max(1, min(int(most * share / 16), setting.pages)) for share in range(1, 16)} | {0})
        return {**super().choices(setting, memory), "pinned_pages": pinned}


def _layout(setting: Setting) -> PinnedLayout:
    return PinnedLayout(setting.frame_bytes, setting.rows_per_page, setting.page_rows)


COSTS = (XHybridJoinCosts(),)
