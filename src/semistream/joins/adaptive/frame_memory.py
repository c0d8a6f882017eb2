"""The part of ADAPTIVEJOIN's memory that pages are read into: few frames, or more if fewer rows are enough."""

from __future__ import annotations

import dataclasses
import math

from semistream.core.budget import MemoryBudget
from semistream.joins.adaptive.adaptive_split import Split, best_window
from semistream.joins.adaptive.page_fetch import PageFetch, seconds_of_call, seconds_of_frame
from semistream.relation.relation import Relation

__all__ = ["FrameMemory"]

_MARGIN = 1.1
"""More frames must pay off even if the remaining room is divided by this factor; otherwise their number oscillates."""
_AS_GOOD, _WORTH_IT = 1.005, 0.97
"""Relative costs. Costs up to the first factor count as equal; the most frames are chosen, because unknown keys may
need them. Fewer frames than now are chosen only if the cost is below the second factor."""
_FAST, _SLOW = 2e-6, 5e-5
"""Seconds to transfer a page: nominal value for fast devices, and the limit from which a device is not fast."""


class FrameMemory:
    """Reserves frames, and owns the `PageFetch` that uses them.

    Parameters
    ----------
    relation, budget
        Where pages are read from, and the budget for the frames.
    counts
        Possible numbers of frames; the first is the initial one.
    wanted
        Maximum keys to locate together.
    results
        Bytes that are in use only while the frames are not.
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
        """Reserve frames out of ``spare`` bytes; ``fixed`` means that their number will not change."""
        frame, pages, transfer = relation.device.frame_bytes, relation.page_count, seconds_of_frame(relation)
        if fixed:
            transfer = _kind_of(transfer)
        few = PageFetch.frames_for(spare, frame, pages, transfer)
        if relation.device.simulated:  # a call costs nothing
            return cls(relation, budget, (few,), wanted, results)
        counts = PageFetch.more_frames_for(few, spare, frame, pages, transfer)
        if fixed:  # more frames only in the bytes that results use later
            counts = (max(few, min(counts[-1], results // frame)),)
        return cls(relation, budget, counts, wanted, results)

    def best(self, split: Split, exponent: float, batch: float, *, stay: bool = False) -> tuple[Split, int]:
        """Return the split and the frames with the lowest cost per tuple; ``stay`` keeps the current frames.

        More frames leave less room for rows, so that more windows may be needed; but the same pages need fewer calls.
        Among the numbers of frames with about the lowest cost, choose the highest. Choose fewer than now only if this
        saves enough.
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
        """Return how many bytes ``frames`` frames need in addition to the current ones; None means no change."""
        return 0 if frames is None else self._bytes[frames] - self._part.bytes

    def resize(self, frames: int) -> None:
        """Change the number of frames to one of the possible numbers."""
        self._part.resize(self._bytes[frames])
        self.fetch.resize(frames)


def _kind_of(transfer: float) -> float:
    """Return a nominal transfer time for devices of this kind, instead of the measured one.

    Each process measures for itself, and the result varies with the load. The sizes of arrays that the next process
    reuses must not depend on it: the next process would compute another layout and discard the arrays.
    """
    return _FAST if transfer < _SLOW else float(4.0 ** round(math.log(transfer, 4.0)))
