"""ADAPTIVEJOIN: windows of the stream, each distinct key looked up once.

=============  =============================================================================================
symbol         meaning
=============  =============================================================================================
``n``          tuples of a window
``p``          share of the stream that has a key
``D``          distinct keys of a window: ``Σ (1 - e^{-n·p})``
``h``          keys that the arena holds with their rows
``π``          probability that a key is cached
``m``          keys that have to be read for a window: ``Σ (1 - π)·(1 - e^{-n·p})``
=============  =============================================================================================

The arena holds the ``m`` keys that are read for a window, and ``h - m`` cached keys, which most windows need. Requested
pages are spread over R at random, or by rank; the cost of reading them is found by planning such a set. Every tuple
costs ``c_S + c_H + K·c_O``; a key that is read costs another ``c_H``. The join adapts the length of its window to the
stream; the model uses the same rule, `semistream.joins.adaptive.adaptive_split`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from semistream.costs.basis.model import Memory, common_memory
from semistream.costs.basis.page_utility import PageClasses
from semistream.costs.basis.planned_reads import planned_reads
from semistream.costs.basis.popularity import KeyClasses
from semistream.costs.basis.served import DiskCosts, Served, matched_in_passes
from semistream.costs.basis.setting import Setting
from semistream.joins.adaptive.adaptive_layout import LEAST_KEYS, AdaptiveLayout, least_bytes
from semistream.joins.adaptive.adaptive_split import Split
from semistream.joins.adaptive.page_fetch import PageFetch
from semistream.joins.adaptive.window import Window
from semistream.structures.hot.hot_rows import HotRows
from semistream.structures.hot.hot_tuples import HotTuples

__all__ = ["AdaptiveJoinCosts"]

_ROUNDS = 24


class AdaptiveJoinCosts(DiskCosts):
    """Windows, one after the other."""

    id = "adaptivejoin"

    def serve(
        self, setting: Setting, memory: int, keys: KeyClasses, *, window: int | None = None, **options: Any
    ) -> Served:
        parts, tuples, rows, frames = self._split(setting, memory, window)
        held = rows / setting.rows_per_key
        asked = keys.count * keys.missing * -np.expm1(-tuples * keys.popularity)
        while tuples > 1.0 and float(asked.sum()) > held:
            # the rows of all these keys do not fit: a shorter window is used
            tuples = max(1.0, min(0.98 * tuples, tuples * held / float(asked.sum())))
            asked = keys.count * keys.missing * -np.expm1(-tuples * keys.popularity)
        missing, kept = float(asked.sum()), np.zeros(keys.count.size)
        for _ in range(_ROUNDS):
            kept = np.clip(max(0.0, held - missing) - keys.first, 0.0, keys.count) / keys.count
            missing += 0.5 * (float(np.dot(asked, 1.0 - kept)) - missing)
        behind = keys.without(keys.missing * (1.0 - kept))
        items = PageClasses.of(setting, behind, int(tuples))
        missed = behind.miss_share / max(keys.miss_share, 1e-12)
        # the tuples that the arena does not answer, spread over the pages
        density = -np.expm1(-items.demand * tuples * missed)
        runs, pages, wanted = planned_reads(setting, items, density, min(256, frames), frames)
        return Served(
            parts,
            {**options, "window": window},
            probes=1.0 + missing / tuples,
            reads=runs / tuples,
            pages=pages / tuples,
            seek=setting.seek_with(max(1.0, frames * runs / max(pages, 1.0))),
            turns=1.0 / tuples,
            events=matched_in_passes(keys, float(tuples)),
            waits=False,
            cache_hits=1.0 - missed,
            details={"n": tuples, "h": held, "m": missing, "wanted": wanted, "pages": pages, "runs": runs},
        )

    def least(self, setting: Setting, **options: Any) -> int:
        return least_bytes(setting.frame_bytes, self._row_in_arena(setting))

    def choices(self, setting: Setting, memory: int) -> dict[str, list[Any]]:
        """Return no choices: the join divides its memory by itself."""
        return {}

    @staticmethod
    def _row_in_arena(setting: Setting) -> int:
        """Return the bytes of a row in the arena; a tuple of the front stage includes its row, too."""
        return setting.cached_bytes - HotTuples.bytes_beside_row() + HotRows.bytes_beside_row

    def _split(self, setting: Setting, total: int, window: int | None) -> tuple[Memory, float, int, int]:
        """Divide the memory as `AdaptiveMemory` does; return parts, tuples of a window, rows of the arena, frames."""
        parts, frame = common_memory(setting, total, index=True), setting.frame_bytes
        least = self.least(setting)
        spare = parts.free - least
        if spare < 0:
            raise self.too_small(setting, parts, least)
        frames = PageFetch.frames_for(spare, frame, setting.pages, setting.transfer)
        wanted = LEAST_KEYS + PageFetch.wanted_for(spare)
        results = parts.parts["matches"] + parts.parts["results"]
        parts.give("frames", PageFetch.bytes_for(frames, frame, wanted, results))
        room = parts.free + parts.parts.pop("stream buffer") - HotRows.fixed_bytes
        layout = AdaptiveLayout.of(room, self._row_in_arena(setting), setting.rows)
        each = setting.arrow_bytes + Window.bytes_per_tuple
        keys, key = max(1, round(setting.rows / setting.rows_per_key)), layout.row * setting.rows_per_key
        split = Split(layout.free, keys, setting.pages, each, key, setting.queued_seek, setting.transfer)
        given = layout.parts(split.best(setting.exponent) if window is None else window, each)
        parts.give("stream buffer", given.taken)
        arena = given.rows * layout.row + layout.keys * HotRows.bytes_per_key + HotRows.fixed_bytes
        parts.give("arena", arena)
        return parts, float(given.tuples), given.rows, frames


COSTS = (AdaptiveJoinCosts(),)
