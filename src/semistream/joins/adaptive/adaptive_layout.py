"""How ADAPTIVEJOIN divides its memory: the window, the arena of rows, and the frames that pages are read into.

The join and its cost model share these formulas. This module allocates nothing.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pyarrow as pa

from semistream.joins.adaptive.page_fetch import PageFetch
from semistream.joins.adaptive.range_sweep import bytes_per_interval
from semistream.joins.adaptive.window import Window
from semistream.relation.relation import Relation
from semistream.relation.storage.manifest import PLAIN_ROW_BYTES
from semistream.structures.array_source import ArraySource
from semistream.structures.hot.hot_rows import HotRows
from semistream.structures.hot.hot_versions import HotVersions

__all__ = [
    "LEAST_KEYS",
    "LEAST_TUPLES",
    "AdaptiveLayout",
    "AdaptiveOptions",
    "WindowParts",
    "arena_kind",
    "least_bytes",
    "least_memory",
    "mean_decoded_row",
    "mean_row",
    "tuple_bytes",
]

LEAST_KEYS = 16
LEAST_TUPLES = 16
LEAST_WINDOW = 4096
_KEYS_A_ROW = 1.125
"""Places for keys per row: more than one, because keys that R does not have or that are not read yet need places."""
_LEAST_TAKEN = LEAST_WINDOW + LEAST_TUPLES * Window.bytes_per_tuple


def arena_kind(*, as_of: bool) -> type[HotRows]:
    """Return the arena of a join."""
    return HotVersions if as_of else HotRows


def least_bytes(frame_bytes: int, row: int, key: int = HotRows.bytes_per_key) -> int:
    """Return the minimum bytes of all parts.

    ``frame_bytes`` are the bytes of a frame; ``row`` and ``key`` are the bytes of a row and of a key in the arena.
    """
    return (
        LEAST_TUPLES * Window.bytes_per_tuple
        + LEAST_KEYS * (row + 2 * key)
        + HotRows.fixed_bytes
        + frame_bytes
        + PageFetch.bytes_per_frame
        + LEAST_KEYS * PageFetch.bytes_per_key
        + PageFetch.fixed_bytes()
    )


def mean_row(relation: Relation) -> float:
    """Return the mean bytes of a row of R, as stored."""
    return relation.layout.mean_row(relation.page_bytes, relation.rows_per_page)


def mean_decoded_row(relation: Relation) -> float:
    """Return the mean bytes of a row of R when it is decoded; of packed rows, as they were in the build."""
    known = None if relation.codec.packed is None else relation.stored.properties.get(PLAIN_ROW_BYTES)
    return float(relation.codec.decoded_bytes(int(mean_row(relation))) if known is None else known)


def least_memory(relation: Relation, *, ranged: bool, as_of: bool = False) -> int:
    """Return the minimum bytes of all parts for R."""
    row = HotRows.bytes_per_row(relation.codec, mean_row(relation))
    more = LEAST_TUPLES * bytes_per_interval(relation) if ranged else 0
    return least_bytes(relation.device.frame_bytes, row, arena_kind(as_of=as_of).bytes_per_key) + more


def tuple_bytes(schema: pa.Schema, stored: float) -> float:
    """Return the bytes of a tuple in the window; for variable-length types an estimate from its stored size."""
    try:
        return float(sum(field.type.bit_width for field in schema) / 8) + Window.bytes_per_tuple
    except ValueError:
        return stored + 4.0 * len(schema) + Window.bytes_per_tuple


@dataclass(frozen=True)
class AdaptiveOptions:
    """The user's settings for the memory; see `AdaptiveJoin`."""

    window: int | None
    aging: float
    arrays: ArraySource | None
    ranged: bool
    as_of: bool = False

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be at least 1 tuple, not {self.window}; None lets the join choose it")


@dataclass(frozen=True)
class WindowParts:
    """Sizes of a window, and of the arena that shares the memory with it."""

    limit: int
    """Bytes of tuples in the window."""
    tuples: int
    """Tuples of the window; each also has a number."""
    rows: int
    """Rows of the arena."""

    @property
    def taken(self) -> int:
        """Bytes of the window, including its numbers."""
        return self.limit + self.tuples * Window.bytes_per_tuple


@dataclass(frozen=True)
class AdaptiveLayout:
    """The memory that window and arena share.

    Parameters
    ----------
    room
        Bytes of both together, without the fixed bytes of the arena.
    row
        Bytes of a row in the arena.
    keys
        Places for keys in the arena.
    most_rows
        Rows needed to hold all of R, if they fit; else None.
    key
        Bytes of a place for a key.

    Examples
    --------
    >>> layout = AdaptiveLayout.of(1_000_000, row=150, rows_of_r=1_000_000)
    >>> parts = layout.parts(10_000, each=20.0)
    >>> parts.tuples, parts.taken + parts.rows * layout.row <= layout.free
    (10000, True)
    >>> AdaptiveLayout.of(1_000_000, row=150, rows_of_r=1000).most_rows
    1000
    """

    room: int
    row: int
    keys: int
    most_rows: int | None
    key: int = HotRows.bytes_per_key

    @classmethod
    def of(
        cls, room: int, row: int, rows_of_r: int, uneven: int = 0, window: int = 0, key: int = HotRows.bytes_per_key
    ) -> AdaptiveLayout:
        """Divide ``room`` for an R of ``rows_of_r`` rows.

        ``uneven``: extra rows that R may need, because rows vary in length. ``window``: bytes reserved for the window
        if R does not fit.
        """
        most_rows = None
        keys = int(int((room - max(window, _LEAST_TAKEN)) / (row + _KEYS_A_ROW * key)) * _KEYS_A_ROW)
        keys = max(LEAST_KEYS, keys)
        every = rows_of_r + uneven
        if every * row + (rows_of_r + LEAST_KEYS) * key + 2 * _LEAST_TAKEN <= room:
            most_rows = max(LEAST_KEYS, every)
            most = (room - 2 * _LEAST_TAKEN - most_rows * row) // key
            keys = max(LEAST_KEYS, min(most, 2 * rows_of_r + 1024))
        return cls(room, row, keys, most_rows, key)

    @classmethod
    def of_ranges(cls, room: int, row: int) -> AdaptiveLayout:
        """Divide ``room`` for a join on ranges, which keeps no rows."""
        return cls(room, row, LEAST_KEYS, LEAST_KEYS)

    @property
    def free(self) -> int:
        """Bytes for tuples and rows: the room without the places for keys."""
        return self.room - self.keys * self.key

    @property
    def least(self) -> int:
        """The smallest room with this number of places for keys."""
        return _LEAST_TAKEN + LEAST_KEYS * self.row + self.keys * self.key

    @staticmethod
    def least_room(row: int, key: int = HotRows.bytes_per_key) -> int:
        """Return the smallest possible room."""
        return _LEAST_TAKEN + LEAST_KEYS * (row + 2 * key)

    def within(self, room: int) -> AdaptiveLayout:
        """Return this layout with another room; ``most_rows`` becomes None if R no longer fits."""
        most_rows = self.most_rows
        if most_rows is not None and most_rows * self.row + self.keys * self.key + _LEAST_TAKEN > room:
            most_rows = None
        return dataclasses.replace(self, room=room, most_rows=most_rows)

    @staticmethod
    def bytes_beside(each: float) -> int:
        """Return the extra bytes of a window of tuples of ``each`` bytes: room for a few own tuples if all are lent."""
        return LEAST_WINDOW if each <= Window.bytes_per_tuple else 0

    def parts(self, tuples: float, each: float) -> WindowParts:
        """Return the parts for a window of ``tuples``, or the most that fit; ``each``: bytes of a tuple and number."""
        most = max(_LEAST_TAKEN, self.free - (self.most_rows or LEAST_KEYS) * self.row)
        own = self.bytes_beside(each)
        taken = min(max(_LEAST_TAKEN, own + int(tuples * each)), most)
        held = max(LEAST_TUPLES, int((taken - own) / each))
        return self.parts_for(held, taken - held * Window.bytes_per_tuple)

    def parts_for(self, tuples: int, limit: int) -> WindowParts:
        """Return the parts for a window of ``tuples`` with ``limit`` bytes, without numbers; they must fit."""
        rows = max(LEAST_KEYS, int((self.free - limit - tuples * Window.bytes_per_tuple) // self.row))
        return WindowParts(limit, tuples, rows if self.most_rows is None else min(rows, self.most_rows))
