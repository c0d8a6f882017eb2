"""Rows of R in one arena, by key: rows that the stream requests often, and rows that it requests now.

Each key has a place in a hash table, its *number*, which represents the tuple's key from then on. All rows of a key are
held, or R is known to have none, or it is unknown. Rows that are read for the current tuples go into the same arena as
the cached rows: no row is copied to be kept. Keys in use are *pinned*. When room is needed, unpinned keys are evicted,
least frequent first.

A key's frequency is the number of windows that requested it, halved periodically. A sketch records the frequency of
evicted keys, to recognise a key that returns often. All data is in flat arrays, which may be mapped files.
"""

from __future__ import annotations

import numpy as np

from semistream.core.arrays import Bools, Bytes, Ints, Slots
from semistream.core.compiled import Int, frozen
from semistream.relation.devices.ring_reader import RingReader
from semistream.relation.rows.row_codec import RowCodec, Rows
from semistream.structures.array_source import Arrays
from semistream.structures.directory import ENTRY_BYTES, entries_for
from semistream.structures.elastic import ElasticArrays
from semistream.structures.hot import hot_row_going as going
from semistream.structures.hot import hot_row_kernels as kernels
from semistream.structures.hot import hot_row_walks as walks
from semistream.structures.hot.hot_row_kernels import ABSENT, FREE, HELD, KNOWN, PINNED, SOON, UNKNOWN, HotTable
from semistream.structures.hot.row_search import WantedRows, copy_rows
from semistream.structures.hot.row_stream import stream_rows
from semistream.structures.read_plan import ReadPlan
from semistream.structures.row_store import RowStore

__all__ = ["HotRows"]

SKETCH_BYTES = 2
"""Bytes of the sketch for each place of a key."""
_MANY = 0.18
"""If a larger share of all places is evicted together, rebuilding the table is faster than erasing each entry."""
_LEAST_PART = 256
"""Evict at least 1/256 of all: each search for the least frequent keys passes over all of them."""
_AT_ONCE, _TOLD_BY = 2048, 1024
"""Rows to evict together: this takes no longer than reading some pages. Minimum keys to extrapolate from."""


class HotRows:
    """An arena of rows with a table of keys, bounded in keys, rows and bytes.

    A key is numbered, found or forgotten in constant time. Counting pins, lifting pins and evicting scan all places.

    Parameters
    ----------
    codec
        Codec of R's rows.
    keys, rows
        Maximum number of keys, including keys without rows, and of rows.
    row_bytes
        Expected bytes of a variable-length row.
    unique
        Whether no key has several rows.
    aging
        Frequencies are halved after this many tuples per row of capacity.
    arrays
        Where the arrays live, if not in this process. An arena in files keeps its contents.
    """

    FORMAT = "hot rows 4"
    """Changes with the arrays and their meaning, so that an arena in files of another format is not used."""
    bytes_per_key = 8 + 4 + 1 + 1 + SKETCH_BYTES + ENTRY_BYTES
    """Bytes of one more key, without its rows."""
    bytes_beside_row, fixed_bytes = 4, 128
    """Bytes of a row in addition to its contents and its key; bytes of an arena in addition to keys and rows."""

    def __init__(
        self, codec: RowCodec, keys: int, rows: int, row_bytes: float = 0.0, *, unique: bool = False,
        aging: float = 48.0, arrays: Arrays | None = None,
    ) -> None:  # fmt: skip
        own = ElasticArrays()
        self._elastic = own if arrays is None else None
        arrays = arrays or own
        self.keys, self.capacity, self.unique, self.evictions = keys, rows, unique, 0
        self._plan: Ints | None = None
        self._aging = max(1, int(aging * rows))
        self._rows = RowStore(codec, rows, row_bytes, arrays)
        self._sketch: Bytes = arrays("sketch", keys * SKETCH_BYTES, np.uint8)
        self._t = HotTable(
            key=arrays("key", keys, np.int64), first=arrays("first", keys, np.int32),
            known=arrays("known", keys, np.uint8), often=arrays("often", keys, np.uint8),
            entries=arrays("entries", entries_for(keys), np.uint64), after=arrays("after", rows, np.int32),
            state=arrays("state", kernels.STATE_WORDS, np.int64),
        )  # fmt: skip
        if not self._t.state[kernels.READY]:
            self._t.first[:] = np.append(np.arange(1, keys), -1)
            self._t.after[:] = np.append(np.arange(1, rows), -1)
            self._t.state[kernels.READY] = 1
        self.unpin()

    @classmethod
    def bytes_per_row(cls, codec: RowCodec, row_bytes: float = 0.0) -> int:
        """Return the bytes of one more row, without its key."""
        return cls.bytes_beside_row + RowStore.bytes_per_slot(codec, row_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self._t) + self._sketch.nbytes + self._rows.nbytes

    @property
    def pinned(self) -> tuple[int, int]:
        """Number of pinned keys, and how many of them are known to be absent from R."""
        known = self._t.known & np.uint8(KNOWN | PINNED)
        return int(np.count_nonzero(known >= PINNED)), int(np.count_nonzero(known == (ABSENT | PINNED)))

    @property
    def pinned_rows(self) -> int:
        """Number of rows of pinned keys."""
        return int(walks.pinned_rows(self._t, self.unique))

    @property
    def whole(self) -> bool:
        """Whether all rows of R are here: the caller has set this, and no key was evicted since."""
        return bool(self._t.state[kernels.WHOLE])

    @whole.setter
    def whole(self, whole: bool) -> None:
        self._t.state[kernels.WHOLE] = whole

    def __len__(self) -> int:
        """Return the number of rows held."""
        return int(self._t.state[kernels.ROWS])

    # -- tuples become numbers ----------------------------------------------------------------------------

    def number(self, keys: Ints, valid: Bools, numbers: Slots, coming: int = 0) -> tuple[int, int]:
        """Write the number of each key, -1 where ``valid`` is False; new keys are inserted, and all are pinned.

        Returns how many keys were numbered, fewer than all if pinned keys use all places, and how many were hits.
        ``coming`` more keys follow before `unpin`: if keys must be evicted, some are also evicted for these.
        """
        keys, valid = frozen(keys), frozen(valid)
        self._plan, done, hits = None, 0, 0
        while True:
            count, known = self._number_some(keys[done:], valid[done:], numbers[done:])
            done, hits = done + int(count), hits + int(known)
            if done == keys.size or not self._make_place(keys[done:], valid[done:], numbers[done:], coming):
                break
        self._t.state[kernels.SEEN] += done
        if self._t.state[kernels.SEEN] >= self._aging:
            self.age()
        return done, hits

    def pin(self, numbers: Slots) -> None:
        """Pin the keys of these numbers until `unpin`."""
        kernels.pin(self._t, frozen(numbers))

    def pin_only(self, numbers: Slots) -> None:
        """Pin only the rows of these numbers; other numbers remain valid, but their rows may be evicted."""
        self._t.known[:] &= np.uint8(KNOWN | HELD)
        self.pin(numbers)

    def unpin(self) -> None:
        """Unpin all keys, so that they can be evicted; numbers become invalid."""
        self._more, self._plan = self.keys // 16 + 1, None
        self._t.known[:] &= np.uint8(KNOWN)

    # -- rows are added -----------------------------------------------------------------------------------

    def unknown(self) -> Slots:
        """Return the numbers of pinned keys whose rows must be read."""
        return np.flatnonzero(self._t.known & np.uint8(KNOWN | PINNED) == (UNKNOWN | PINNED)).astype(np.int32)

    def places(self) -> Slots:
        """Return the numbers of all keys."""
        return np.flatnonzero(self._t.known & np.uint8(KNOWN) != FREE).astype(np.int32)

    def keys_of(self, numbers: Slots) -> Ints:
        """Return the keys of numbers."""
        return self._t.key[numbers]

    def make_room(self, rows: int) -> None:
        """Evict unpinned keys until ``rows`` rows are free, or none is left."""
        while rows > self.capacity - len(self) and self._go_on():
            pass
        if (lacking := rows - (self.capacity - len(self))) > 0:
            self._let_go(0, lacking)

    def expect(self, rows: int) -> None:
        """Choose the keys to evict for ``rows`` new rows; they are evicted in steps as the rows are added."""
        lacking = rows - (self.capacity - len(self))
        least = self.capacity // _LEAST_PART
        self._plan = going.plan_going(self._t, 0, max(lacking, least), self.unique) if lacking > 0 else None

    def attach(self, numbers: Slots, rows: Rows) -> bool:
        """Append ``rows[i]`` to the key of ``numbers[i]``; rows of a key must be adjacent, in R's order.

        Returns False, with some rows appended, if there is not enough room for all: see `reset`.
        """
        at = 0
        while at < numbers.size:
            self.make_room(numbers.size - at)
            fitting = self._rows.fitting(rows.lengths[at:])
            if fitting < numbers.size - at and self._let_some_go():
                continue
            slots = np.empty(fitting, np.int32)
            count = int(kernels.attach(self._t, frozen(numbers[at : at + fitting]), slots))
            if count == 0:
                return False
            part = Rows(rows.data, rows.starts[at : at + count], rows.lengths[at : at + count])
            self._rows.put(slots[:count], part)
            at += count
        return True

    def bring(self, numbers: Slots, wanted: WantedRows, begin: int, read: Ints, frames: Bytes) -> tuple[int, bool]:
        """Append rows of keys from the pages ``read`` in ``frames``; return where to continue, and whether all fit."""
        while True:
            begin, fitted = copy_rows(self._t, self._rows, numbers, wanted, begin, read, frames)
            if fitted or not self._let_some_go():
                return begin, fitted

    def stream(self, ring: RingReader, numbers: Slots, wanted: WantedRows, plan: ReadPlan) -> bool:
        """Append rows of keys from the pages of a plan as they arrive; return False if this failed: see `reset`."""
        return stream_rows(self._t, self._rows, ring, numbers, wanted, plan, self._let_some_go)

    def settle(self, numbers: Slots) -> None:
        """Record that all pages of these keys have been searched: keys without a row are not in R."""
        kernels.settle(self._t, frozen(numbers))

    def reset(self, numbers: Slots) -> None:
        """Mark these keys as unknown again, because not all of their rows were added."""
        self._rows.free(going.reset(self._t, frozen(numbers)))

    def forget(self, keys: Ints) -> None:
        """Forget what is known of keys, for example after an update of R."""
        freed, noted = going.forget(self._t, frozen(keys), self.whole)
        self._rows.free(freed)
        self.whole = self.whole and bool(noted)

    # -- rows are listed ----------------------------------------------------------------------------------

    def first_rows(self, numbers: Slots) -> tuple[Slots, int, int]:
        """Return the first row of each number, -1 if it has none; how many have none, and how many have several."""
        none, several = walks.first_rows(self._t, frozen(numbers), rows := np.empty(numbers.size, np.int32))
        return rows, int(none), int(several)

    def expand(self, numbers: Slots, begin: int, row: int, cap: int, *, alone: bool) -> tuple[Ints, Slots, int, int]:
        """Return pairs of position and row, and where to continue; ``alone`` lists numbers without rows, as row -1."""
        positions, rows = np.empty(cap, np.int64), np.empty(cap, np.int32)
        pairs, at, after = walks.expand(self._t, frozen(numbers), begin, row, cap, alone, positions, rows)
        return positions[:pairs], rows[:pairs], int(at), int(after)

    def lengths(self, rows: Slots) -> Ints:
        """Return the bytes of rows as they are stored; see `RowStore.lengths`."""
        return self._rows.lengths(rows)

    def sizes(self, rows: Slots) -> Ints | int:
        """Return an upper bound of each row's bytes, also for row -1; one number if all rows have the same size."""
        return self._rows.sizes(rows)

    def locate(self, rows: Slots) -> tuple[Bytes, Ints]:
        """Return a buffer and the start of each row in it, -1 for row -1."""
        if (there := rows >= 0).all():
            return self._rows.locate(rows)
        starts = np.full(rows.size, -1, np.int64)
        data, starts[there] = self._rows.locate(rows[there])
        return data, starts

    # -- resizing -----------------------------------------------------------------------------------------

    def resize(self, rows: int) -> bool:
        """Change the capacity in rows; return False, without changing it, if pinned keys need more.

        Only for arrays of this process. No result of `locate` may be in use.
        """
        assert self._elastic is not None, "an arena in files has the size that it has"
        if rows < (before := self.capacity):
            self.make_room(before - rows)
            while not self._rows.fits_into(rows) and self._let_some_go():
                pass
            if len(self) > rows or not self._rows.fits_into(rows):
                return False
            sources, targets = np.empty(before - rows, np.int32), np.empty(before - rows, np.int32)
            moved = int(walks.draw_in(self._t, rows, sources, targets))
            self._rows.move(sources[:moved], targets[:moved])
        self._rows.resize(rows, self._elastic)
        table = self._t._replace(after=np.empty(0, np.int32))
        del self._t
        self._t = table._replace(after=self._elastic.resize("after", rows))
        if rows > before:
            self._t.after[before:] = np.append(np.arange(before + 1, rows), self._t.state[kernels.FREE_ROW])
            self._t.state[kernels.FREE_ROW] = before
        self.capacity = rows
        return True

    # -- inside -------------------------------------------------------------------------------------------

    def _make_place(self, keys: Ints, valid: Bools, room: Slots, coming: int) -> bool:
        """Evict keys to make places for new ones of ``keys``, but none of ``keys`` itself; False if all are pinned."""
        ahead, left = keys.size, True
        while left:
            lacking = int(self._look_ahead(keys[:ahead], valid[:ahead], room[:ahead]))
            later = min(lacking * coming * 3 // (4 * max(ahead, _TOLD_BY)), self.keys // 4)  # later keys repeat more
            self._let_go(max(max(lacking, min(ahead, self._more)) + later, self.keys // _LEAST_PART), 0)
            if int(self._t.state[kernels.FREE_KEY]) >= 0:
                self._more *= 2  # the more new keys have arrived, the more are expected
                return True
            left = bool((self._t.known & np.uint8(SOON)).any())  # too many keys are requested: look less far ahead
            self._t.known[:] &= np.uint8(~SOON & 0xFF)
            ahead, coming = ahead // 2, 0
        return False

    def _number_some(self, keys: Ints, valid: Bools, numbers: Slots) -> tuple[Int, Int]:
        return kernels.number(self._t, keys, valid, self.whole, self._sketch, numbers)

    def _look_ahead(self, keys: Ints, valid: Bools, seen: Slots) -> Int:
        return kernels.look_ahead(self._t, keys, valid, seen)

    def _let_go(self, keys: int, rows: int) -> bool:
        self._plan = None
        plan = going.plan_going(self._t, keys, rows, self.unique)
        return self._reclaim(plan, self.keys + 1, self.capacity + 1, erasing=plan[going.GOING] < _MANY * self.keys)

    def _let_some_go(self) -> bool:
        return self._go_on() or self._let_go(0, max(1, self.capacity // 64))

    def _go_on(self) -> bool:
        """Evict some more of the keys that `expect` has chosen; return False if none is left."""
        return self._plan is not None and self._reclaim(self._plan, 0, _AT_ONCE, erasing=True)

    def _reclaim(self, plan: Ints, keys: int, rows: int, *, erasing: bool) -> bool:
        before = int(self._t.state[kernels.KEYS])
        freed = going.reclaim(self._t, plan, keys, rows, self.unique, erasing, self._sketch)
        self._rows.free(freed)
        gone = before - int(self._t.state[kernels.KEYS])
        self.evictions, self.whole = self.evictions + gone, self.whole and gone == 0
        self._t.state[kernels.GONE] += gone
        # The sketch loses accuracy if it records too many keys: halve its counts before it does.
        if self._t.state[kernels.GONE] * 2 >= self._sketch.size:
            self._sketch[:] >>= np.uint8(1)
            self._t.state[kernels.GONE] = 0
        return gone > 0 or freed.size > 0

    def age(self, halvings: int = 1) -> None:
        """Halve all frequencies; also called when the stream begins to request other keys."""
        self._t.often[:] >>= np.uint8(halvings)
        self._sketch[:] >>= np.uint8(halvings)
        self._t.state[kernels.SEEN] = 0

    def check(self) -> None:
        """Assert that table, chains, free lists and rows agree."""
        assert not (self._t.known & np.uint8(SOON)).any(), "a key is marked as requested soon outside a request"
        self._rows.check(walks.check_table(self._t))
        assert self._elastic is None or self._elastic.copies == 0, "somebody holds arrays that were resized"
