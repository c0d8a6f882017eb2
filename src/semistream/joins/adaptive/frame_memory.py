"""The part of ADAPTIVEJOIN's memory that pages are read into: few frames, or more where rows can do with less."""

from __future__ import annotations

import dataclasses
import math

from semistream.core.budget import MemoryBudget
from semistream.joins.adaptive.adaptive_split import Split, best_window
from semistream.joins.adaptive.page_fetch import PageFetch, seconds_of_call, seconds_of_frame
from semistream.relation.relation import Relation

__all__ = ["FrameMemory"]

_MARGIN = 1.1
"""More frames than there are must be worth it even with so much less room beside them: or they come and go."""
_AS_GOOD, _WORTH_IT = 1.005, 0.97
"""Of what costs the same, more frames are taken: keys may be wanted that are not known yet. Fewer must be worth it."""
_FAST, _SLOW = 2e-6, 5e-5
"""Seconds of a page's transfer: what a fast device counts with, and what is none any more."""


class FrameMemory:
    """Frames, reserved, and the fetch that uses them.

    Parameters
    ----------
    relation, budget
        Where pages are read, and what the frames are reserved in.
    counts
        Frames that there may be, first as many as at first.
    wanted
        Keys that may be looked for at once.
    results
        Bytes that are in use only while no frames are.
    """

    def __init__(
        self, relation: Relation, budget: MemoryBudget, counts: tuple[int, ...], wanted: int, results: int = 0
    ) -> None:
        frame = relation.device.frame_bytes
        self._bytes = {count: PageFetch.bytes_for(count, frame, wanted, results) for count in counts}
        self._part = budget.reserve("frames", self._bytes[counts[0]])
        self.fetch = PageFetch(relation, counts[0], wanted)
        self._call = seconds_of_call(relation)

    @classmethod
    def of(
        cls, relation: Relation, budget: MemoryBudget, spare: int, wanted: int, results: int, *, fixed: bool
    ) -> FrameMemory:
        """Take frames of ``spare`` bytes; ``fixed``: their number will not change."""
        frame, pages, transfer = relation.device.frame_bytes, relation.page_count, seconds_of_frame(relation)
        if fixed:
            transfer = _kind_of(transfer)
        few = PageFetch.frames_for(spare, frame, pages, transfer)
        if relation.device.simulated:  # a call costs nothing
            return cls(relation, budget, (few,), wanted, results)
        counts = PageFetch.more_frames_for(few, spare, frame, pages, transfer)
        if fixed:  # more of them only in the bytes that results have afterwards
            counts = (max(few, min(counts[-1], results // frame)),)
        return cls(relation, budget, counts, wanted, results)

    def best(self, split: Split, exponent: float, batch: float, *, stay: bool = False) -> tuple[Split, int]:
        """Return the split and the frames for batches of so many, by what a tuple costs then; ``stay``: as they are.

        More frames leave fewer rows, so that there may be more windows; but the same pages are read by fewer calls.
        Of those that cost the least, or hardly more, the most; fewer than there are only if that saves something.
        """
        now, splits, costs = self.fetch.count, {}, {}
        if len(self._bytes) == 1:
            return split, now
        if stay:
            return dataclasses.replace(split, call=self._call / self.fetch.pages_of_call(now)), now
        for frames in self._bytes:
            room = split.room + self._bytes[now] - self._bytes[frames]
            if room <= 0 and frames != now:
                continue
            one = dataclasses.replace(split, room=room, call=self._call / self.fetch.pages_of_call(frames))
            other = one if frames <= now else dataclasses.replace(one, room=room / _MARGIN)
            splits[frames], costs[frames] = one, other.seconds(best_window(other, exponent, batch), exponent)
        if (least := min(costs.values())) == math.inf:  # no window fits: rows need the memory
            best = min(costs)
            return splits[best], best
        best = max(frames for frames, cost in costs.items() if cost <= _AS_GOOD * least)
        if best < now and least >= _WORTH_IT * costs[now]:
            best = now
        return splits[best], best

    def more_bytes(self, frames: int | None) -> int:
        """Return the bytes that so many frames take more than there are; None: there are enough."""
        return 0 if frames is None else self._bytes[frames] - self._part.bytes

    def resize(self, frames: int) -> None:
        """Have so many frames, one of the numbers that there may be."""
        self._part.resize(self._bytes[frames])
        self.fetch.resize(frames)


def _kind_of(transfer: float) -> float:
    """Return what a device of this kind takes for a page, in place of what was measured.

    Each process measures for itself, and has another number when others are at work. Sizes of arrays that the next
    process shall take over must not go by that: it would find them to be of another layout, and throw them away.
    """
    return _FAST if transfer < _SLOW else float(4.0 ** round(math.log(transfer, 4.0)))
