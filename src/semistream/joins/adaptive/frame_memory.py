"""The part of ADAPTIVEJOIN's memory that pages are read into: few frames, or more where rows can do with less."""

from __future__ import annotations

import dataclasses
import math

from semistream.core.budget import MemoryBudget
from semistream.joins.adaptive.adaptive_split import Split
from semistream.joins.adaptive.page_fetch import PageFetch, seconds_of_frame
from semistream.relation.relation import Relation

__all__ = ["FrameMemory"]

_MARGIN = 1.2
"""So much more than the rows of a batch must fit beside more frames, before there are more: or they come and go."""
_FAST, _SLOW = 2e-6, 5e-5
"""Seconds of a page's transfer: what a fast device counts with, and what is none any more."""


class FrameMemory:
    """Frames, reserved, and the fetch that uses them.

    Parameters
    ----------
    relation, budget
        Where pages are read, and what the frames are reserved in.
    few, many
        Frames at first, and where there is room for more.
    wanted
        Keys that may be looked for at once.
    results
        Bytes that are in use only while no frames are.
    """

    def __init__(
        self, relation: Relation, budget: MemoryBudget, few: int, many: int, wanted: int, results: int = 0
    ) -> None:
        frame = relation.device.frame_bytes
        self._few, self._many = few, many
        self._bytes = {count: PageFetch.bytes_for(count, frame, wanted, results) for count in (few, many)}
        self._part = budget.reserve("frames", self._bytes[few])
        self.fetch = PageFetch(relation, few, wanted)

    @classmethod
    def of(
        cls, relation: Relation, budget: MemoryBudget, spare: int, wanted: int, results: int, *, fixed: bool
    ) -> FrameMemory:
        """Take frames of ``spare`` bytes; ``fixed``: their number will not change."""
        frame, pages, transfer = relation.device.frame_bytes, relation.page_count, seconds_of_frame(relation)
        if fixed:
            transfer = _kind_of(transfer)
        few = PageFetch.frames_for(spare, frame, pages, transfer)
        # a simulated call costs nothing
        many = few if relation.device.simulated else PageFetch.more_frames_for(few, spare, frame, pages, transfer)
        return cls(relation, budget, many if fixed else few, many, wanted, results)

    def best(self, split: Split, exponent: float, batch: float) -> tuple[Split, int]:
        """Return the split and the frames for batches of so many: more of them where the rows of a batch fit beside.

        Fewer calls for the same pages are worth more than the last rows of the arena.
        """
        extra, now = self._bytes[self._many] - self._bytes[self._few], self.fetch.count
        room = split.room + (extra if now > self._few else 0)
        margin = 1.0 if now > self._few else _MARGIN
        if batch < math.inf and split.fits(batch, exponent, (room - extra) / margin):
            return dataclasses.replace(split, room=room - extra), self._many
        return dataclasses.replace(split, room=room), self._few

    def more_bytes(self, frames: int | None) -> int:
        """Return the bytes that so many frames take more than there are; None: there are enough."""
        return 0 if frames is None else self._bytes[frames] - self._part.bytes

    def resize(self, frames: int) -> None:
        """Have so many frames, one of the two numbers."""
        self._part.resize(self._bytes[frames])
        self.fetch.resize(frames)


def _kind_of(transfer: float) -> float:
    """Return what a device of this kind takes for a page, in place of what was measured.

    Each process measures for itself, and has another number when others are at work. Sizes of arrays that the next
    process shall take over must not go by that: it would find them to be of another layout, and throw them away.
    """
    return _FAST if transfer < _SLOW else float(4.0 ** round(math.log(transfer, 4.0)))
