"""Stream tuples in a log of frames: the input buffer and the stream buffer of SSIJ.

A record is

::

    0  u32 state: bit 0 MATCHED, bit 1 PARTIAL, bit 2 TAKEN, other bits: number of pages that it still waits for
    4  u32 the last tuple that follows it
    8  i64 key64, or the low end of its range
    .  i64 high end of its range         only in range joins
    .  f64 deadline                      only if tuples have one
    .  the row, padded to 8              as `RowCodec` writes it
"""

from __future__ import annotations

import math

import numpy as np

from semistream.core.arrays import Bytes, Floats, Halves, Ints
from semistream.core.compiled import Int, copy_bytes, frozen, inner_kernel, kernel
from semistream.core.errors import SemistreamError
from semistream.joins.ssij.frame_pool import (
    BACK,
    BYTES,
    COUNT,
    FRAMES,
    FRONT,
    OFFSET,
    FrameLog,
    FramePool,
    Pool,
    free_up_to,
    reserve,
    walk,
)
from semistream.relation.rows.row_codec import RowCodec, Rows

__all__ = ["MATCHED", "ONE_PAGE", "PARTIAL", "TAKEN", "TupleLog", "TupleShape", "record_bytes"]


MATCHED, PARTIAL, TAKEN, ONE_PAGE = 1, 2, 4, 8

# Places in a shape: words before the row, word of high end and deadline (0: none), bytes of a fixed row (0: variable).
HEAD, HIGH, DUE, STRIDE = 0, 1, 2, 3


class TupleShape:
    """How the records of one stream are laid out.

    Parameters
    ----------
    codec
        Codec of the stream's rows.
    ranged
        Whether tuples request a range of keys.
    timed
        Whether tuples have a deadline.
    """

    def __init__(self, codec: RowCodec, *, ranged: bool, timed: bool) -> None:
        self.codec = codec
        self.ranged = ranged
        self.timed = timed
        self.array = np.zeros(4, np.int64)
        self.array[HEAD] = self.head_words(ranged=ranged, timed=timed)
        self.array[HIGH] = 2 if ranged else 0
        self.array[DUE] = 2 + ranged if timed else 0
        self.array[STRIDE] = 0 if codec.variable else codec.stride

    @staticmethod
    def head_words(*, ranged: bool, timed: bool) -> int:
        """Return the words before the row."""
        return 2 + ranged + timed

    @staticmethod
    def size_of(row_bytes: float, *, ranged: bool, timed: bool) -> int:
        """Return the bytes of a record with a row of ``row_bytes``."""
        return (TupleShape.head_words(ranged=ranged, timed=timed) + math.ceil(row_bytes / 8)) * 8

    @property
    def row_at(self) -> int:
        """Offset of the row in a record, in bytes."""
        return int(self.array[HEAD]) * 8

    def sizes(self, lengths: Ints) -> Ints:
        """Return the bytes of records with rows of these lengths."""
        return (self.row_at + lengths + 7) >> 3 << 3


@inner_kernel
def record_bytes(halves: Halves, shape: Ints, at: Int) -> Int:
    """Return the bytes of the record at an address."""
    length: Int = shape[STRIDE]
    if length == 0:
        length = np.int64(halves[2 * (at + shape[HEAD])])  # a variable-length row begins with its length
    size: Int = (shape[HEAD] * 8 + length + 7) >> 3 << 3
    return size


@kernel
def _append(
    pool: Pool,
    log: Ints,
    shape: Ints,
    lows: Ints,
    highs: Ints,
    dues: Floats,
    data: Bytes,
    starts: Ints,
    lengths: Ints,
    spare: int,
) -> int:
    flat, words, reals = pool.flat, pool.words, pool.reals
    free, after, used, state = pool.free, pool.after, pool.used, pool.state
    head, high, due = shape[HEAD], shape[HIGH], shape[DUE]
    for i in range(lows.size):
        at = reserve(free, after, used, state, log, (head * 8 + lengths[i] + 7) >> 3 << 3, spare)
        if at < 0:
            return i
        words[at] = 0
        words[at + 1] = lows[i]
        if high > 0:
            words[at + high] = highs[i]
        if due > 0:
            reals[at + due] = dues[i]
        copy_bytes(flat, (at + head) * 8, data, starts[i], lengths[i])
    return lows.size


@kernel
def _front(pool: Pool, log: Ints, shape: Ints, most: int) -> Ints:
    halves, after, used, frame_bytes = pool.halves, pool.after, pool.used, pool.state[BYTES]
    found = np.empty(min(most, log[COUNT]), np.int64)
    frame, offset = log[FRONT], log[OFFSET]
    for i in range(found.size):
        frame, offset = walk(after, used, frame, offset)
        at = (frame * frame_bytes + offset) >> 3
        found[i] = at
        offset += record_bytes(halves, shape, at)
    return found


@kernel
def _drop_front(pool: Pool, log: Ints, shape: Ints, count: int) -> None:
    halves, after, used, frame_bytes = pool.halves, pool.after, pool.used, pool.state[BYTES]
    frame, offset = log[FRONT], log[OFFSET]
    for _ in range(count):
        frame, offset = walk(after, used, frame, offset)
        offset += record_bytes(halves, shape, (frame * frame_bytes + offset) >> 3)
    log[COUNT] -= count
    if log[COUNT] == 0:
        frame, offset = np.int64(-1), np.int64(0)
    free_up_to(pool.free, after, pool.state, log, frame)
    log[OFFSET] = offset


@kernel
def _count_due(pool: Pool, log: Ints, shape: Ints, moment: float) -> int:
    halves, reals, after, used, frame_bytes = pool.halves, pool.reals, pool.after, pool.used, pool.state[BYTES]
    count = 0
    frame, offset = log[FRONT], log[OFFSET]
    for _ in range(log[COUNT]):
        frame, offset = walk(after, used, frame, offset)
        at = (frame * frame_bytes + offset) >> 3
        offset += record_bytes(halves, shape, at)
        if reals[at + shape[DUE]] <= moment:
            count += 1
    return count


@kernel
def _due_bounds(pool: Pool, log: Ints, shape: Ints) -> tuple[float, float]:
    halves, reals, after, used, frame_bytes = pool.halves, pool.reals, pool.after, pool.used, pool.state[BYTES]
    least, most = np.inf, -np.inf
    frame, offset = log[FRONT], log[OFFSET]
    for _ in range(log[COUNT]):
        frame, offset = walk(after, used, frame, offset)
        at = (frame * frame_bytes + offset) >> 3
        offset += record_bytes(halves, shape, at)
        due = reals[at + shape[DUE]]
        least = min(least, due)
        if due < np.inf:
            most = max(most, due)
    return least, most


@kernel
def _take_due(pool: Pool, log: Ints, shape: Ints, moment: float, most: int) -> Ints:
    """Mark up to ``most`` records with deadlines up to ``moment``, earlier ones first; return their addresses."""
    halves, reals, after, used, frame_bytes = pool.halves, pool.reals, pool.after, pool.used, pool.state[BYTES]
    taken = np.empty(min(most, log[COUNT]), np.int64)
    count = 0
    for exactly in range(2):
        frame, offset = log[FRONT], log[OFFSET]
        for _ in range(log[COUNT]):
            frame, offset = walk(after, used, frame, offset)
            at = (frame * frame_bytes + offset) >> 3
            offset += record_bytes(halves, shape, at)
            due = reals[at + shape[DUE]]
            if count < taken.size and (due == moment if exactly else due < moment):
                halves[2 * at] |= np.uint32(TAKEN)
                taken[count] = at
                count += 1
    return taken[:count]


@kernel
def _compact(pool: Pool, log: Ints, shape: Ints) -> None:
    """Remove marked records and close the gaps.

    Records keep their order and none crosses a frame boundary. So writing never overtakes reading: dropping records
    only moves the others towards the front.
    """
    words, halves, after, used, frame_bytes = pool.words, pool.halves, pool.after, pool.used, pool.state[BYTES]
    frame, offset = log[FRONT], log[OFFSET]
    to_frame, to_offset = log[FRONT], np.int64(0)
    kept = 0
    for _ in range(log[COUNT]):
        frame, offset = walk(after, used, frame, offset)
        at = (frame * frame_bytes + offset) >> 3
        size = record_bytes(halves, shape, at)
        offset += size
        if halves[2 * at] & np.uint32(TAKEN):
            continue
        if to_offset + size > frame_bytes:
            used[to_frame] = to_offset
            to_frame, to_offset = np.int64(after[to_frame]), np.int64(0)
        to = (to_frame * frame_bytes + to_offset) >> 3
        if to != at:
            for word in range(size >> 3):
                words[to + word] = words[at + word]
        to_offset += size
        kept += 1
    log[COUNT] = kept
    log[OFFSET] = 0
    if kept == 0:
        free_up_to(pool.free, after, pool.state, log, np.int64(-1))
        return
    # Free the frames after the last one written.
    rest = np.zeros(log.size, np.int64)
    rest[FRONT], rest[FRAMES] = after[to_frame], log[FRAMES]
    if rest[FRONT] >= 0:
        free_up_to(pool.free, after, pool.state, rest, np.int64(-1))
    log[FRAMES] = rest[FRAMES]
    log[BACK] = to_frame
    used[to_frame] = to_offset
    after[to_frame] = -1


class TupleLog(FrameLog):
    """Stream tuples in order of arrival.

    Holds records (`TupleShape.size_of` bytes each) in frames of the pool. All methods take time linear in the tuples
    that they pass, in compiled code; methods about deadlines pass all tuples.
    """

    def __init__(self, pool: FramePool, shape: TupleShape) -> None:
        super().__init__(pool)
        self.shape = shape

    def append(self, lows: Ints, highs: Ints | None, dues: Floats | None, rows: Rows, spare: int) -> int:
        """Append copies of tuples while more than ``spare`` frames are left; return how many were appended."""
        if int(self.shape.sizes(rows.lengths).max(initial=0)) > self.pool.frame_bytes:
            raise SemistreamError(
                f"a tuple of {int(rows.lengths.max()):,} B does not fit into a frame of {self.pool.frame_bytes:,} B; "
                "this is a fault of semistream, please report it"
            )
        none = np.empty(0, np.int64)
        return _append(
            self.pool.arrays, self.state, self.shape.array,
            frozen(lows), frozen(none if highs is None else highs),
            frozen(np.empty(0, np.float64) if dues is None else dues),
            frozen(rows.data), frozen(rows.starts), frozen(rows.lengths), spare,
        )  # fmt: skip

    def front(self, most: int) -> Ints:
        """Return the addresses of the first tuples, up to ``most``."""
        return _front(self.pool.arrays, self.state, self.shape.array, most)

    def drop_front(self, count: int) -> None:
        """Remove the first ``count`` tuples."""
        _drop_front(self.pool.arrays, self.state, self.shape.array, count)

    def take_most_urgent(self, most: int) -> Ints:
        """Mark up to ``most`` tuples with the earliest deadlines; `drop_taken` removes them.

        A bisection of the time between deadlines passes all tuples once per step, at most about 50 times. Allocates
        only the addresses that it returns.
        """
        if len(self) == 0:
            return np.empty(0, np.int64)
        low, high = self.due_bounds()
        if self._due_by(high) < most:
            high = np.inf
        elif most < len(self):
            # Bisect to find the time by which `most` tuples are due, to the precision of floats.
            while low < (middle := low + (high - low) / 2) < high:
                low, high = (middle, high) if self._due_by(middle) < most else (low, middle)
        return _take_due(self.pool.arrays, self.state, self.shape.array, high, most)

    def drop_taken(self) -> None:
        """Remove the marked tuples and close the gaps; the others move, so their addresses change."""
        _compact(self.pool.arrays, self.state, self.shape.array)

    def _due_by(self, moment: float) -> int:
        return _count_due(self.pool.arrays, self.state, self.shape.array, moment)

    def due_bounds(self) -> tuple[float, float]:
        """Return the earliest deadline and the latest finite deadline."""
        return _due_bounds(self.pool.arrays, self.state, self.shape.array)

    def check(self) -> None:
        """Assert that the log contains the counted number of tuples, all within its frames."""
        addresses = self.front(len(self))
        assert addresses.size == len(self)
        frames = set(self.frames().tolist())
        per_frame = self.pool.frame_bytes // 8
        assert set(np.unique(addresses // per_frame).tolist()) <= frames, "a tuple is in a frame of someone else"
        assert len(frames) == int(self.state[FRAMES])
        assert len(self) > 0 or not frames, "an empty log holds frames"
