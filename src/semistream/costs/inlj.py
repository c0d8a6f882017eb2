"""INLJ: one read per tuple (the baseline of all five papers).

``μ = 1 / (c_S + S + T + c_H + c_O)`` if the join waits for every read. Our INLJ looks up a batch of tuples, as large as
the number of matches it may hold, in the order of their keys. So of two tuples for neighbouring pages the second needs
no seek. With ``n`` tuples in a batch and the popularity ``q`` of a page, two neighbours are both requested with
probability ``(1-e^{-nq})²``, and each such pair saves one seek.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np

from semistream.costs.basis.model import common_memory
from semistream.costs.basis.popularity import KeyClasses
from semistream.costs.basis.served import DiskCosts, Served, matched_in_passes
from semistream.costs.basis.setting import Setting
from semistream.joins.shares import Lending

__all__ = ["COSTS", "InljCosts"]

_PORTIONS = 512


class InljCosts(DiskCosts):
    """Reads of single pages; some are neighbours by chance."""

    id = "inlj"

    def serve(
        self, setting: Setting, memory: int, keys: KeyClasses, *,
        in_flight: int = 256, arriving: float = math.inf, **options: Any,
    ) -> Served:  # fmt: skip
        """Return the join's work if a number of tuples arrive together, by default as many as it accepts."""
        parts = common_memory(setting, memory, index=True)
        frames = max(1, min(in_flight, parts.free // setting.frame_bytes))
        if parts.free < setting.frame_bytes:
            raise self.too_small(setting, parts, setting.frame_bytes)
        parts.give("disk buffer", frames * setting.frame_bytes)
        buffered = parts.inbox / setting.buffered_bytes
        if setting.lent.lending is Lending.NOTHING:
            together = min(self._together(parts.pairs, buffered), arriving)
        else:
            together = self._handed_on(parts.pairs, buffered, setting.lent.portion, keys.miss_share)
        pages_a_key = 1.0 + (setting.rows_per_key - 1.0) / setting.rows_per_page
        units = keys.units(setting, 1)
        saved = units.adjacent(-np.expm1(-units.popularity * together)) / together
        # neighbours in different fills of the disk buffer are read separately
        saved *= max(0.0, 1.0 - 1.0 / frames)
        reads = max(0.0, 1.0 - saved)
        return Served(
            parts,
            {**options, "in_flight": in_flight},
            probes=1.0,
            reads=reads,
            pages=pages_a_key,
            seek=setting.seek_with(frames),
            turns=1.0 / min(together, frames),
            events=matched_in_passes(keys, together / max(keys.miss_share, 1e-12)),
            waits=False,
            details={"together": together},
        )

    @staticmethod
    def _together(pairs: float, buffered: float) -> float:
        """Return how many tuples are looked up together, on average over tuples.

        A batch that leaves the stream buffer is as large as the number of matches the join may hold, and the same
        number of tuples enters. So the buffer is cut at two places, and each part is looked up separately.
        """
        if buffered <= pairs:
            return max(1.0, buffered)
        one = buffered % pairs
        return float(max(1.0, (one**2 + (pairs - one) ** 2) / pairs))

    @staticmethod
    def _handed_on(pairs: float, buffered: float, portion: float, missed: float) -> float:
        """Return how many tuples are looked up together behind a cache, on average over tuples.

        The misses of a portion arrive together and stay together. A portion is as large as the free room of the buffer
        behind, until that is half full. Then a batch as large as the number of possible matches is looked up.
        """
        waiting: deque[float] = deque()
        tuples = squares = 0.0
        for _ in range(_PORTIONS):
            waiting.append(min(portion, buffered - sum(waiting)) * missed)
            room = pairs if 2.0 * sum(waiting) > buffered else 0.0
            while room > 0.0 and waiting:
                part = waiting.popleft()
                taken = min(part, room)
                if part > taken:
                    waiting.appendleft(part - taken)
                room -= taken
                tuples += taken
                squares += taken * taken
        return max(1.0, squares / tuples) if tuples else 1.0

    def least(self, setting: Setting, **options: Any) -> int:
        return setting.frame_bytes

    def choices(self, setting: Setting, memory: int) -> dict[str, list[Any]]:
        return {"in_flight": [1, 16, 64, 256]}


COSTS = (InljCosts(),)
