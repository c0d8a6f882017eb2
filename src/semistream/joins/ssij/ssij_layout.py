"""How the memory of SSIJ is divided (§IV-A). The join and its cost model share this computation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from semistream.joins.ssij.frame_pool import FramePool
from semistream.joins.ssij.inverted_layout import ENTRY_BYTES, NODE_BYTES
from semistream.joins.ssij.page_cache import PageCache, Replacement
from semistream.structures.read_plan import ReadPlanner

__all__ = ["READ_EXTRA", "MemoryOptions", "SsijLayout", "Thresholds", "least_parts"]


_INPUT_TUPLES = 250_000
_BUFFER_TUPLES = 1_000_000
_BUFFER_TUPLES_OF_LITTLE = 400_000
"""The paper's thresholds in tuples (Table II); the last one is for memory of one percent of R."""

_LEAST_FRAMES = 6  # minimum frames for tuples to arrive, wait and leave
_LEAST_PORTION = 16  # minimum tuples looked up together
_MOST_PORTION = 1 << 16  # maximum tuples looked up together, in addition to the minimum
_PORTION_BYTES = 72
"""Bytes of a tuple during its look-up: address, key, order, ends of its range, its span, and temporary copies."""
_MOST_READ = 512  # maximum frames of the read buffer, unless max_scan needs more
_WORTHWHILE_CALL = 2.5e-4
_MOST_READ_PART = 4
"""A read call should take this many seconds, if the read buffer for two calls needs at most 1/4 of the memory."""
_MAX_SCAN = 200
"""Default pages of the longest run, from the paper (Table II). Only a value set by the user gets extra memory."""
_MOST_COPIES = 1 << 21  # maximum bytes for copies of matched rows, in addition to one frame
_MOST_PLANNED = 1 << 16
"""Maximum wanted pages of a read plan: with more it hardly improves."""
_TALLY_BYTES = 256 * 8
"""Bytes of the counters of pages by utility."""
FRAME_EXTRA = FramePool.bytes_per_frame + PageCache.bytes_per_frame + 4
"""Bytes of a frame in addition to its page; 4 for its utility in a list of all utilities."""
_RUN_BYTES = 12
"""Bytes of the read plan for each page of the longest run."""
READ_EXTRA = 12
"""Bytes of a frame of the read buffer in addition to its page."""


@dataclass(frozen=True)
class MemoryOptions:
    """The user's settings for the memory; `Ssij` describes each."""

    input_tuples: int | None = None
    buffer_tuples: int | None = None
    input_limit: int | None = None
    max_scan: int | None = None
    replacement: Replacement = "utility"
    cache_share: float | None = None
    read_ahead: bool = True

    def __post_init__(self) -> None:
        for name in ("input_tuples", "buffer_tuples", "max_scan"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        share = self.cache_share
        if share is not None and not 0.0 <= share <= 0.95:
            raise ValueError(f"cache_share must be from 0 to 0.95, not {share}; None lets memory move")

    @property
    def least_frames(self) -> int:
        """Minimum number of frames for tuples to arrive, wait and leave."""
        return math.ceil(_LEAST_FRAMES / (1.0 - (self.cache_share or 0.0)))


def least_parts(frame: int, options: MemoryOptions) -> int:
    """Return the minimum bytes of all parts except the page map, with frames of ``frame`` bytes."""
    return (
        options.least_frames * (frame + FRAME_EXTRA)
        + (frame + READ_EXTRA)
        + frame  # copies of matched rows
        + _LEAST_PORTION * _PORTION_BYTES
        + ReadPlanner.bytes_for(_LEAST_PORTION, 1)
        + _TALLY_BYTES
    )


class SsijLayout(NamedTuple):
    """The parts of the memory."""

    frame: int
    """Bytes of a frame."""
    portion: int
    """Tuples looked up together."""
    read: int
    """Frames of the read buffer."""
    buffers: int
    """Parts of the read buffer: with two, pages are read into one while the pages in the other are joined."""
    copies: int
    """Bytes for copies of matched rows."""
    scan: int
    """Pages of the longest run."""
    planned: int
    """Maximum wanted pages of a read plan."""
    frames: int
    """Frames that cached pages, both buffers and the inverted index share."""

    @classmethod
    def of(cls, free: int, frame: int, page_count: int, options: MemoryOptions, transfer: float = 1.0) -> SsijLayout:
        """Divide ``free`` bytes, which are at least `least_parts`; they do not include the page map.

        A page takes ``transfer`` seconds. If this is short, a call costs as much as many pages, and reads more of them.
        """
        spare = free - least_parts(frame, options)
        portion = _LEAST_PORTION + min(spare // 16 // _PORTION_BYTES, _MOST_PORTION)
        each = frame + READ_EXTRA
        worthwhile = min(2 * int(_WORTHWHILE_CALL / transfer), spare // _MOST_READ_PART // each)
        read = 1 + min(max(spare // 16 // each, worthwhile), _MOST_READ, max(page_count - 1, 0))
        buffers = 2 if options.read_ahead and read >= 4 else 1
        if options.max_scan is not None:
            # The read buffer must hold a whole run, so longer runs take memory from pages and tuples.
            most = 1 + spare // 2 // each
            read = max(read, min(options.max_scan * buffers, most, page_count))
        copies = frame + min(spare // 32, _MOST_COPIES)
        scan = max(1, min(options.max_scan or _MAX_SCAN, read // buffers, 1 + spare // 64 // _RUN_BYTES))
        planned = _LEAST_PORTION + min(spare // 64 // ReadPlanner.bytes_per_page, _MOST_PLANNED, page_count)
        first = cls(frame, portion, read, buffers, copies, scan, planned, 0)
        left = free - sum(first.parts().values())
        return first._replace(frames=min(left // (frame + FRAME_EXTRA), FramePool.most_bytes // frame))

    def parts(self) -> dict[str, int]:
        """Return the bytes of each part, by its name in the budget."""
        return {
            "look-up": self.portion * _PORTION_BYTES,
            "read buffer": self.read * (self.frame + READ_EXTRA),
            "matched rows": self.copies,
            "read plan": ReadPlanner.bytes_for(self.planned, self.scan) + _TALLY_BYTES,
            "pages and tuples": self.frames * (self.frame + FRAME_EXTRA),
        }


class Thresholds(NamedTuple):
    """Numbers of tuples at which phases begin."""

    input_tuples: int
    """Tuples in the input buffer that start an online phase."""
    buffer_tuples: int
    """Waiting tuples that start a join phase."""
    input_limit: int
    """Maximum tuples of the input buffer."""

    @classmethod
    def of(cls, options: MemoryOptions, room: int, record: int, *, little: bool) -> Thresholds:
        """Use the paper's thresholds, or less: at most a tenth of the memory for input, half for waiting tuples.

        Parameters
        ----------
        options
            The user's settings, which have precedence.
        room, record
            Bytes available for tuples, and bytes of a tuple in a buffer.
        little
            Whether memory is at most about one percent of R.
        """
        waiting = record + NODE_BYTES + ENTRY_BYTES
        paper = _BUFFER_TUPLES_OF_LITTLE if little else _BUFFER_TUPLES
        input_tuples = options.input_tuples or max(1, min(_INPUT_TUPLES, room // 10 // record))
        buffer_tuples = options.buffer_tuples or max(1, min(paper, room // 2 // waiting))
        return cls(input_tuples, buffer_tuples, max(options.input_limit or 0, input_tuples))
