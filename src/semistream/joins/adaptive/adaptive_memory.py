"""The memory of ADAPTIVEJOIN: the window, the arena of rows, and the frames that pages are read into."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bytes
from semistream.core.budget import MemoryBudget, Reservation
from semistream.joins.adaptive.adaptive_layout import (
    LEAST_KEYS,
    LEAST_TUPLES,
    AdaptiveLayout,
    AdaptiveOptions,
    WindowParts,
    arena_kind,
    least_memory,
    mean_row,
    tuple_bytes,
)
from semistream.joins.adaptive.adaptive_split import Split
from semistream.joins.adaptive.frame_memory import FrameMemory
from semistream.joins.adaptive.page_fetch import MOST_FRAMES, PageFetch, read_costs
from semistream.joins.adaptive.range_sweep import bytes_per_interval
from semistream.joins.adaptive.window import Window
from semistream.joins.interface.following import Undo
from semistream.joins.shares import growth_of_index
from semistream.relation.pages.page_layout import page_keys
from semistream.relation.pages.stored_rows import row_format
from semistream.relation.relation import Relation
from semistream.structures.absent_keys import AbsentKeys
from semistream.structures.array_source import coarse, in_memory
from semistream.structures.hot.hot_rows import HotRows

__all__ = ["AdaptiveMemory"]

_FILES_WINDOW_SHARE = 0.15
"""The window's share of memory if the arena is in files, whose size must not change."""
_SMALL = 256
"""Pages: an R of up to this size is loaded at the start if it fits. A larger R that fits is loaded after the join has
read as many pages as R has."""
_MOST_WHOLE = 1 << 17
"""Maximum tuples of a window if all of R may be held: then there are no reads to share."""
USUAL, READ, _TRIED = 0, 1, 2
"""Places in ``learned``: the usual share of known keys, pages read, whether holding all of R was tried."""
_OTHER = 1.1
"""Means of rows per key are rounded to powers of this factor."""
_FRAMES_PART, _INTERVALS_PART = 4, 2
"""On ranges: frames get a quarter of the spare memory, and intervals get half."""
_MOST_INTERVALS = 1 << 17
"""On ranges: maximum number of intervals."""


class AdaptiveMemory:
    """The parts of the memory, their sizes, and how memory moves between them.

    Parameters
    ----------
    relation, options
        R, and the user's settings.
    budget
        The budget; all that is free is used.
    inbox, updates
        The join's reservations for arrived tuples, which the window uses, and for updates of R.
    schema, row_bytes
        Schema of the stream; bytes of a stream row when stored.
    results
        Bytes of results, which are made after all pages have been read and the frames have been released.
    """

    def __init__(
        self,
        relation: Relation,
        options: AdaptiveOptions,
        budget: MemoryBudget,
        inbox: Reservation,
        updates: Reservation,
        schema: pa.Schema,
        row_bytes: float,
        results: int,
    ) -> None:
        self.relation = relation
        self.options = options
        self._kind = arena_kind(as_of=options.as_of)
        self._budget = budget
        self._inbox = inbox
        self._updates = updates
        self._tuple_bytes = tuple_bytes(schema, row_bytes)
        self.stored_row_bytes = mean_row(relation)
        """Mean bytes of a row of R when the memory was divided."""
        self.most_intervals = 0
        """On ranges: maximum number of tuples that are swept together; otherwise 0."""
        self._least = least_memory(relation, ranged=options.ranged, as_of=options.as_of)
        self.absent = AbsentKeys(relation, budget, wanted=not (options.ranged or options.as_of))
        self.absent.recall(options.arrays, budget.free - self._least)
        self._take_frames(results)
        self._lay_out()
        self._open_arena(schema)

    # -- allocation ---------------------------------------------------------------------------------------

    def _take_frames(self, results: int) -> None:
        relation, frame = self.relation, self.relation.device.frame_bytes
        spare = self._budget.free - self._least
        if not self.options.ranged:
            wanted, fixed = LEAST_KEYS + PageFetch.wanted_for(spare), self.options.arrays is not None
            self._frames = FrameMemory.of(relation, self._budget, spare, wanted, results, fixed=fixed)
        else:
            each, most = frame + PageFetch.bytes_per_frame, max(relation.page_count - 1, 0)
            frames = 1 + min(spare // _FRAMES_PART // each, MOST_FRAMES, most)
            self._frames = FrameMemory(relation, self._budget, (frames,), LEAST_KEYS)
            interval = bytes_per_interval(relation)
            self.most_intervals = LEAST_TUPLES + min(spare // _INTERVALS_PART // interval, _MOST_INTERVALS)
            self._budget.reserve("intervals", self.most_intervals * interval)
        self.fetch = self._frames.fetch

    def _lay_out(self) -> None:
        """Set how much memory window and arena share."""
        relation = self.relation
        row = HotRows.bytes_per_row(relation.codec, self.stored_row_bytes)
        room = self._budget.free + self._inbox.bytes - HotRows.fixed_bytes
        rows_of_r = relation.row_count
        if self.options.arrays is not None:
            # Sizes must not change after a small update of R, or the arena that was left in files could not be used.
            more = growth_of_index(relation)
            smaller = max(coarse(room - more), AdaptiveLayout.least_room(row, self._kind.bytes_per_key))
            room, rows_of_r = min(room, smaller), coarse(rows_of_r, up=True)
        if self.options.ranged:
            self.layout = AdaptiveLayout.of_ranges(room, row)
        else:
            # The rows of R may need more than their mean length suggests.
            uneven = rows_of_r // 8 + 16 if relation.codec.variable else 0
            shared = self.options.arrays is None or self.options.window is not None
            window = 0 if shared else int(_FILES_WINDOW_SHARE * room)
            self.layout = AdaptiveLayout.of(room, row, rows_of_r, uneven, window, self._kind.bytes_per_key)
        seek, transfer = read_costs(relation)
        self.split = Split(
            self.layout.free, max(1, relation.row_count), max(1, relation.page_count),
            self._tuple_bytes, row, seek, transfer,
        )  # fmt: skip

    def _open_arena(self, schema: pa.Schema) -> None:
        """Divide the free memory between window and arena."""
        relation, layout, options = self.relation, self.layout, self.options
        parts = layout.parts(self._first_window(), self._tuple_bytes)
        named = f"{self._kind.FORMAT}; {layout.keys} keys, {parts.rows} rows of {layout.row} B; "
        named += row_format(relation.codec, relation.packing)
        arrays = None if self.options.arrays is None else self.options.arrays(named)
        self._inbox.resize(parts.taken)
        self.window = Window(schema, parts.limit, parts.tuples)
        self.arena = self._kind(
            relation.codec, layout.keys, parts.rows, self.stored_row_bytes,
            unique=relation.unique or options.as_of, aging=self.options.aging, arrays=arrays,
        )  # fmt: skip
        self.learned = (arrays or in_memory)("learned", 3, np.float64)
        self.may_hold_all = (
            layout.most_rows is not None and not (options.ranged or options.as_of) and not self.learned[_TRIED]
        )
        """Whether R fits, and holding all of it has not been tried yet."""
        self._arena_part = self._budget.reserve("arena", self.arena.nbytes)

    def _first_window(self) -> float:
        """Return the tuples of the window while the stream is still unknown."""
        if self.options.window is not None:
            return self.options.window
        if self.options.ranged:
            return self.layout.room / self._tuple_bytes
        if self.options.arrays is not None:
            return int(_FILES_WINDOW_SHARE * self.layout.room / self._tuple_bytes)
        return self.split.best(1.0, math.inf if self.layout.most_rows is None else _MOST_WHOLE)

    # -- an R that fits -----------------------------------------------------------------------------------

    def should_hold_all(self) -> bool:
        """Return whether R fits, and enough pages were read that reading all of R is worth it."""
        if not self.may_hold_all or self.arena.whole:
            return False
        return self.relation.page_count <= _SMALL or self.learned[READ] >= self.relation.page_count

    def hold_all(self) -> int:
        """Read all of R into the arena; if it turns out not to fit, do not try again.

        Returns how many waiting tuples are answered from memory now. They count as cache hits.
        """
        arena = self.arena
        waiting = int(np.count_nonzero(np.isin(self.window.numbers, arena.unknown())))
        self.may_hold_all = False  # try only once
        self.learned[_TRIED] = 1
        arena.reset(arena.places())
        try:
            before = arena.evictions
            fitted = all(self._take_page(frames) for _, frames in self.fetch.all_pages())
            arena.whole = fitted and arena.evictions == before
        finally:
            self.fetch.let_go()
            if arena.whole:
                arena.settle(arena.places())
            else:
                self.layout = dataclasses.replace(self.layout, most_rows=None)
                arena.reset(arena.places())
            arena.unpin()
            arena.pin(self.window.numbers)
        return waiting if arena.whole else 0

    def _take_page(self, frames: Bytes) -> bool:
        """Put all rows of these pages into the arena; return whether they fit."""
        keys, _, starts = page_keys(frames, self.relation.layout.stride)
        numbers = np.empty(keys.size, np.int32)
        done, _ = self.arena.number(keys, np.ones(keys.size, np.bool_), numbers)
        return done == keys.size and self.arena.attach(numbers, self.fetch.rows_at(frames.reshape(-1), starts))

    # -- moving memory ------------------------------------------------------------------------------------

    @property
    def is_fixed(self) -> bool:
        """Whether memory does not move: the user fixed it, the arena is in files, or R is or may be held completely."""
        options = self.options
        if options.arrays is not None or options.window is not None or options.ranged:
            return True
        # The split does not include the memory of updates of R.
        return self.may_hold_all or self.arena.whole or self._updates.bytes > 0

    def bytes_held(self, *, lent: bool) -> float:
        """Return the bytes of a tuple in the window; ``lent``: whether the tuples of a batch are lent."""
        return float(Window.bytes_per_tuple) if lent else self._tuple_bytes

    def learn_rows_a_key(self, rows: float) -> None:
        """Use this mean number of rows per key from now on, rounded."""
        rows = _OTHER ** round(math.log(rows, _OTHER))  # similar means give the same result
        keys = max(1, round(self.relation.row_count / rows))
        self.split = dataclasses.replace(self.split, keys=keys, key_bytes=self.layout.row * rows)

    def best_frames(self, each: float, exponent: float, batch: float, *, stay: bool) -> tuple[Split, int]:
        """Return split and frames for batches of ``batch`` tuples of ``each`` bytes; see `FrameMemory.best`."""
        split = dataclasses.replace(
            self.split, room=self.layout.free - self.layout.bytes_beside(each), tuple_bytes=each
        )
        return self._frames.best(split, exponent, batch, stay=stay)

    def differs(self, tuples: float, each: float, factor: float) -> bool:
        """Return whether a window of ``tuples``, or the rows that fit next to it, differ from now by ``factor``."""
        parts = self.layout.parts(tuples, each)
        ratios = parts.tuples / self.window.tuples, parts.rows / self.arena.capacity
        return not all(1 / factor < ratio < factor for ratio in ratios)

    def move(self, tuples: float, frames: int | None = None) -> bool:
        """Resize window and frames, and give the rest to the arena; return False if too much is in use."""
        before, change = self.layout, self._frames.more_bytes(frames)
        if frames is not None and change < 0:
            self._frames.resize(frames)
        if change:
            self._have(before.within(before.room - change))
        moved = self._move(tuples)
        if frames is not None and change > 0:
            if moved:
                self._frames.resize(frames)
            else:
                self._have(before)
        return moved

    def widen(self, more: int) -> None:
        """Give ``more`` bytes that are free to the window and to rows."""
        self._have(self.layout.within(self.layout.room + more))
        self._move(self.window.tuples)

    def shorten(self, tuples: float) -> None:
        """Shrink the window to ``tuples``, or to the tuples it still holds, and give the memory to rows."""
        window = self.window
        parts = self.layout.parts(tuples, self.split.tuple_bytes)
        parts = self.layout.parts_for(max(parts.tuples, len(window)), max(parts.limit, window.nbytes))
        if parts.rows > self.arena.capacity:
            self._have_parts(parts)

    def own_lent(self) -> None:
        """When `feed` ends, count tuples that are still lent as the join's own; if needed, take memory from rows."""
        if self.window.keep() or self.options.arrays is not None:
            return
        self.split = dataclasses.replace(self.split, tuple_bytes=self._tuple_bytes)
        needed = max(self.window.lent_bytes / self._tuple_bytes, float(len(self.window)))
        if self._move(1.1 * needed + LEAST_TUPLES):
            self.window.keep()

    def _move(self, tuples: float) -> bool:
        """Resize the window, and give the rest to the arena; return False if too much is in use."""
        # Updates of R may have reserved memory that was free when the room was computed.
        there = self._taken + self._budget.free
        if there < self.layout.room:
            self._have(self.layout.within(there))
        return self._have_parts(self.layout.parts(tuples, self.split.tuple_bytes))

    def _have_parts(self, parts: WindowParts) -> bool:
        if parts.rows < self.arena.capacity and not self.arena.resize(parts.rows):
            return False
        self._arena_part.resize(min(self._arena_part.bytes, self.arena.nbytes))
        if not self.window.resize(parts.limit, parts.tuples):
            return False
        self._settle(parts)
        return True

    def _settle(self, parts: WindowParts) -> None:
        self._inbox.resize(min(self._inbox.bytes, parts.taken))
        if parts.rows > self.arena.capacity:
            self.arena.resize(parts.rows)
        self._arena_part.resize(self.arena.nbytes)
        self._inbox.resize(parts.taken)

    def lend(self, lacking: int) -> Undo | None:
        """Release ``lacking`` bytes by a shorter window and fewer rows; return a function that takes them back.

        Returns None, with nothing changed, if the bytes are in use or part of the minimum.
        """
        before, least, taken = (self.layout, self.window.tuples), self.layout.least, self._taken
        if taken - lacking < least:
            return None
        held = max(len(self.window), math.ceil(self.window.nbytes / self.split.tuple_bytes))
        needed, room = self._budget.free + lacking, taken - lacking
        while self._budget.free < needed:
            if room < least:
                self._take_back(*before)
                return None
            self._have(self.layout.within(room))
            shorter = int(self.window.tuples * room / taken)
            if not self._move(max(held + held // 16, shorter)):
                self._take_back(*before)
                return None
            room -= max(0, needed - self._budget.free)  # arrays are a little larger than computed
        return partial(self._take_back, *before)

    def _take_back(self, layout: AdaptiveLayout, tuples: int) -> None:
        self._have(layout)
        self._move(tuples)

    def _have(self, layout: AdaptiveLayout) -> None:
        """Use this layout from now on."""
        self.layout = layout
        self.split = dataclasses.replace(self.split, room=layout.free)

    @property
    def _taken(self) -> int:
        """Bytes reserved for window and arena, without the fixed bytes of the arena."""
        return self._inbox.bytes + self._arena_part.bytes - HotRows.fixed_bytes

    def check(self) -> None:
        """Assert all invariants."""
        self.window.check()
        self.arena.check()
