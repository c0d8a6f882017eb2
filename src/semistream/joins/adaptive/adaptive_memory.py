"""The memory of ADAPTIVEJOIN: the window, the arena of rows, and the frames that pages are read into."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bytes
from semistream.joins.adaptive.adaptive_split import Split
from semistream.joins.adaptive.page_fetch import PageFetch, read_costs
from semistream.joins.adaptive.window import Window
from semistream.joins.interface.join import Join
from semistream.joins.shares import PAIR_BYTES
from semistream.relation.pages.page_layout import page_keys
from semistream.relation.relation import Relation
from semistream.relation.rows.row_gather import RowGather
from semistream.structures.array_source import ArraySource, in_memory
from semistream.structures.hot.hot_rows import HotRows

__all__ = ["AdaptiveMemory", "tuple_bytes"]


LEAST_KEYS = 16
LEAST_TUPLES = 16
LEAST_WINDOW = 4096
MOST_RESULTS = 1 << 16
MOST_RESULT_BYTES = 1 << 24
KEYS_A_ROW = 1.125
"""Places for keys for each row: those of keys that R does not have, or that are not read yet."""
FILES_WINDOW_SHARE = 0.15
"""The window's share where the arena lies in files, whose size must not change."""
_BESIDE_ROW = 13.0
_SMALL = 256
"""Pages of an R that is held whole from the start, if it fits; a larger one when as many pages have been read."""
_MOST_WHOLE = 1 << 17
"""Tuples of a window where R is held whole: there are no reads to share."""
USUAL, READ, _TRIED = 0, 1, 2
"""What has been learned: the share of keys known that there usually is, pages read, whether R was tried to be held."""
_UPDATED_PAGE_BYTES = 26
"""Of the index, for each page of an R that has been updated."""


def _coarse(size: int, *, up: bool = False) -> int:
    """Return a size that is at most a 16th less, or more, and the same for sizes that differ by little."""
    step = 1 << max(0, size.bit_length() - 5)
    return (size // step + up) * step


def tuple_bytes(schema: pa.Schema, stored: float) -> float:
    """Return what a tuple takes in the window; where types vary in length, about what it takes when stored."""
    try:
        return float(sum(field.type.bit_width for field in schema) / 8) + Window.bytes_per_tuple
    except ValueError:
        return stored + 4.0 * len(schema) + Window.bytes_per_tuple


class AdaptiveMemory(Join):
    """The parts of the memory, how they are laid out, and how they move; `AdaptiveJoin` has the algorithm."""

    keeps_cache = True

    def __init__(
        self,
        relation: Relation,
        *,
        window: int | None = None,
        aging: float = 48.0,
        arrays: ArraySource | None = None,
        **common: Any,
    ) -> None:
        if window is not None and window < 1:
            raise ValueError(f"window must be at least 1 tuple, not {window}; None lets memory move")
        self._window_wish = window
        self._aging = aging
        self._arrays = arrays
        self._laid_out_for: float | None = None  # bytes of a row of R, as it was when the arena was made
        super().__init__(relation, **common)

    def _stored_row_bytes(self) -> float:
        """Return the bytes of a row of R, on average, as its pages tell: a row has key, flag and start beside it."""
        if self._laid_out_for is not None:
            return self._laid_out_for
        if not self.relation.codec.variable:
            return float(self.relation.codec.stride)
        room = self.relation.page_bytes / max(1.0, self.relation.rows_per_page) - _BESIDE_ROW
        return min(max(room, float(self.relation.codec.stride)), float(self.relation.page_bytes))

    def _bytes_held(self, *, lent: bool) -> float:
        """Return what a tuple takes in the window, where those of a batch are lent, or not."""
        assert self.schema is not None
        return float(Window.bytes_per_tuple) if lent else tuple_bytes(self.schema, self._row_bytes)

    def _row_and_key(self) -> tuple[int, int]:
        """Return what a row and a key cost in the arena."""
        return HotRows.bytes_per_row(self.relation.codec, self._stored_row_bytes()), HotRows.bytes_per_key()

    def _minimum(self) -> int:
        row, key = self._row_and_key()
        return (
            LEAST_TUPLES * Window.bytes_per_tuple
            + LEAST_KEYS * (row + 2 * key)
            + HotRows.fixed_bytes()
            + self.relation.device.frame_bytes
            + PageFetch.bytes_per_frame
            + LEAST_KEYS * PageFetch.bytes_per_key
            + PageFetch.fixed_bytes()
        )

    # -- taking it ----------------------------------------------------------------------------------------

    def _open(self) -> None:
        relation, frame = self.relation, self.relation.device.frame_bytes
        assert self.schema is not None
        spare = self.budget.free - self._minimum()
        frames = PageFetch.frames_for(spare, frame, relation.page_count, read_costs(relation)[1])
        wanted = LEAST_KEYS + PageFetch.wanted_for(spare)
        self._fetch = PageFetch(relation, frames, wanted)
        # results are made when all has been read, and the frames have been let go
        results = self._cap * PAIR_BYTES + self._result_bytes
        self.budget.reserve("frames", PageFetch.bytes_for(frames, frame, wanted, results))
        self._open_arena()
        self._gather = RowGather(relation.codec, [field.name for field in self.condition.fields])
        self._gather_key = RowGather(relation.codec, [] if relation.key.exact else list(relation.key.names))
        row = self._stored_row_bytes() + self._row_bytes
        self._most_results = max(1, min(self._cap, MOST_RESULTS, int(MOST_RESULT_BYTES / row)))

    def _open_arena(self) -> None:
        """Share what is free out between window and arena."""
        relation = self.relation
        assert self.schema is not None
        self._laid_out_for = self._stored_row_bytes()
        row, key = self._row_and_key()
        self._room = self.budget.free + self._inbox.bytes - HotRows.fixed_bytes()
        least = LEAST_WINDOW + LEAST_TUPLES * Window.bytes_per_tuple
        rows_of_r = relation.row_count
        if self._arrays is not None:
            # sizes stay as they are when R is updated a little, or what was left in files would be of no use
            more = _UPDATED_PAGE_BYTES * relation.page_count - relation.index_bytes
            smaller = max(_coarse(self._room - max(0, more)), least + LEAST_KEYS * (row + 2 * key))
            self._room, rows_of_r = min(self._room, smaller), _coarse(rows_of_r, up=True)
        rows = int((self._room - least) / (row + KEYS_A_ROW * key))
        self._keys = max(LEAST_KEYS, int(rows * KEYS_A_ROW))
        # rows that vary in length do not fill their segments evenly
        every = rows_of_r + (rows_of_r // 8 + 16 if relation.codec.variable else 0)
        self._fits = every * row + (rows_of_r + LEAST_KEYS) * key + 2 * least <= self._room
        self._most_rows = max(LEAST_KEYS, every) if self._fits else None
        if self._most_rows is not None:
            most = (self._room - 2 * least - self._most_rows * row) // key
            self._keys = max(LEAST_KEYS, min(most, 2 * rows_of_r + 1024))
        if self.condition.name == "between":
            self._keys, self._fits, self._most_rows = LEAST_KEYS, False, LEAST_KEYS  # no row is kept
        each = self._bytes_held(lent=False)
        seek, transfer = read_costs(relation)
        self._split = Split(
            self._room - self._keys * key, max(1, relation.row_count), max(1, relation.page_count),
            each, row, seek, transfer,
        )  # fmt: skip
        if self._window_wish is not None:
            tuples = self._window_wish
        elif self.condition.name == "between":
            tuples = int(self._room / each)
        elif self._arrays is not None:
            tuples = int(FILES_WINDOW_SHARE * self._room / each)
        else:
            tuples = self._split.best(1.0, _MOST_WHOLE if self._fits else math.inf)
        window, tuples, rows = self._parts_for(tuples)
        layout = f"{HotRows.FORMAT}; {self._keys} keys, {rows} rows of {row} B; "
        arrays = None if self._arrays is None else self._arrays(layout + str(relation.codec.schema))
        self._inbox.resize(window + tuples * Window.bytes_per_tuple)
        self._window = Window(self.schema, window, tuples)
        self._arena = HotRows(
            relation.codec, self._keys, rows, self._stored_row_bytes(),
            unique=relation.unique, aging=self._aging, arrays=arrays,
        )  # fmt: skip
        self._learned = (arrays or in_memory)("learned", 3, np.float64)
        self._fits = self._fits and not self._learned[_TRIED]
        self._read_before = 0
        self._arena_part = self.budget.reserve("arena", self._arena.nbytes)

    def _parts_for(self, tuples: int) -> tuple[int, int, int]:
        """Return bytes and tuples of a window, and the rows of the arena that are left beside it."""
        row, key = self._row_and_key()
        room = self._room - self._keys * key
        least = LEAST_WINDOW + LEAST_TUPLES * Window.bytes_per_tuple
        most = max(least, room - (self._most_rows or LEAST_KEYS) * row)
        each = self._split.tuple_bytes
        # where all tuples are lent, there is still room for some that are not
        own = LEAST_WINDOW if each <= Window.bytes_per_tuple else 0
        window = min(max(least, own + int(tuples * each)), most)
        tuples = max(LEAST_TUPLES, int((window - own) / each))
        window -= tuples * Window.bytes_per_tuple
        rows = int((room - window - tuples * Window.bytes_per_tuple) // row)
        return window, tuples, max(LEAST_KEYS, rows if self._most_rows is None else min(rows, self._most_rows))

    # -- an R that fits -----------------------------------------------------------------------------------

    def _should_hold_all(self) -> bool:
        """Whether R fits and enough of it has been read for reading all of it to pay."""
        if not self._fits or self._arena.whole:
            return False
        return self.relation.page_count <= _SMALL or self._learned[READ] >= self.relation.page_count

    def _hold_all(self) -> None:
        """Read all of R into the arena, or leave it at that if it turns out not to fit."""
        arena = self._arena
        self._fits = False  # tried once
        self._learned[_TRIED] = 1
        arena.reset(arena.places())
        try:
            before = arena.evictions
            fitted = all(self._take_page(frames) for _, frames in self._fetch.all_pages())
            arena.whole = fitted and arena.evictions == before
        finally:
            self._fetch.let_go()
            if arena.whole:
                arena.settle(arena.places())
            else:
                self._most_rows = None
                arena.reset(arena.places())
            arena.unpin()
            arena.pin(self._window.numbers)

    def _take_page(self, frames: Bytes) -> bool:
        """Put all rows of some pages into the arena; return whether they fit."""
        keys, _, starts = page_keys(frames, self.relation.layout.stride)
        numbers = np.empty(keys.size, np.int32)
        done, _ = self._arena.number(keys, np.ones(keys.size, np.bool_), numbers)
        return done == keys.size and self._arena.attach(numbers, self._fetch.rows_at(frames.reshape(-1), starts))

    def _check(self) -> None:
        self._window.check()
        self._arena.check()
