"""``H_R``: single tuples of R that are frequent in the stream, with their frequencies (CMESHJOIN §3).

A hash table maps a key to the chain of its rows. A key is held with all of its rows or not at all, so a hit is a
complete answer. All data is in flat arrays, which may be mapped files.

The least frequent key is replaced first. Victims are taken from a list of the least frequent keys. The list is rebuilt
when it is used up, so that it costs a small share of what it saves. Frequencies are halved periodically, so that
formerly hot keys can be replaced. The paper leaves both open.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.core.arrays import Bytes, Ints, Slots
from semistream.core.compiled import Int, frozen, kernel
from semistream.relation.rows.row_codec import RowCodec, Rows
from semistream.structures.array_source import Arrays, in_memory
from semistream.structures.directory import ENTRY_BYTES, entries_for, erase, find, position_at, put
from semistream.structures.hot.candidates import Candidates
from semistream.structures.row_store import RowStore

__all__ = ["HotTuples"]


_FREE, _ROWS, _KEYS, _READY, _LOOKED, _AGED = 0, 1, 2, 3, 4, 5


class _Table(NamedTuple):
    key: Ints
    chain: Slots  # the next row of the same key; links free slots too
    frequency: NDArray[np.uint32]  # of the key, at its first row; zero elsewhere
    head: Bytes  # 1 where the slot is the first row of a key
    flags: Bytes
    entries: NDArray[np.uint64]  # 32 bits of the hash, slot + 1
    state: Ints


@kernel
def _look_up(t: _Table, keys: Ints, record: bool) -> tuple[NDArray[np.bool_], Ints, Slots]:
    """Return which keys are held, and the pairs of position and slot of their rows."""
    n = keys.size
    held = np.zeros(n, np.bool_)
    positions, slots = np.empty(n, np.int64), np.empty(n, np.int32)
    pairs = 0
    for i in range(n):
        at = find(t.entries, t.key, keys[i])
        if at < 0:
            continue
        held[i] = True
        slot = position_at(t.entries, at)
        if record:
            t.frequency[slot] += np.uint32(1)
        while slot >= 0:
            if pairs == positions.size:
                positions = np.append(positions, np.empty(pairs, np.int64))
                slots = np.append(slots, np.empty(pairs, np.int32))
            positions[pairs] = i
            slots[pairs] = slot
            pairs += 1
            slot = np.int64(t.chain[slot])
    t.state[_LOOKED] += n
    return held, positions[:pairs], slots[:pairs]


@kernel
def _insert(t: _Table, key: Int, frequency: Int, flags: Bytes, slots: Slots) -> None:
    """Insert a key with ``slots.size`` rows into free slots, which are written to ``slots``."""
    before = np.int64(-1)
    for i in range(slots.size):
        slot = t.state[_FREE]
        t.state[_FREE] = t.chain[slot]
        slots[i] = slot
        t.key[slot] = key
        t.flags[slot] = flags[i]
        t.chain[slot] = -1
        t.frequency[slot] = 0
        t.head[slot] = 0
        if before >= 0:
            t.chain[before] = slot
        else:
            put(t.entries, t.key, slot)
            t.frequency[slot] = frequency
            t.head[slot] = 1
        before = slot
    t.state[_ROWS] += slots.size
    t.state[_KEYS] += 1


@kernel
def _remove(t: _Table, keys: Ints) -> Slots:
    """Unhook keys and free their slots; return the slots, whose rows the caller must free."""
    freed = np.empty(t.state[_ROWS], np.int32)
    count = 0
    for i in range(keys.size):
        at = find(t.entries, t.key, keys[i])
        if at < 0:
            continue
        slot = position_at(t.entries, at)
        erase(t.entries, at)
        t.state[_KEYS] -= 1
        while slot >= 0:
            freed[count] = slot
            count += 1
            after = np.int64(t.chain[slot])
            t.chain[slot] = t.state[_FREE]
            t.state[_FREE] = slot
            t.frequency[slot] = 0
            t.head[slot] = 0
            t.state[_ROWS] -= 1
            slot = after
    return freed[:count].copy()


@kernel
def _absent(t: _Table, keys: Ints) -> NDArray[np.bool_]:
    absent = np.empty(keys.size, np.bool_)
    for i in range(keys.size):
        absent[i] = find(t.entries, t.key, keys[i]) < 0
    return absent


@kernel
def _insert_single(t: _Table, keys: Ints, frequency: Ints, flags: Bytes) -> Slots:
    slots = np.empty(keys.size, np.int32)
    for i in range(keys.size):
        _insert(t, keys[i], frequency[i], flags[i : i + 1], slots[i : i + 1])
    return slots


class HotTuples:
    """A cache of single tuples of R, bounded in rows and bytes.

    All memory is allocated up front. A key is looked up, admitted or removed in constant time plus a copy of its rows.
    A full cache is scanned for victims; each scan lists a sixteenth of its keys.

    Parameters
    ----------
    codec
        Codec of R's rows.
    capacity
        Maximum number of rows (``h_R``).
    row_bytes
        Expected bytes of a variable-length row.
    aging
        Frequencies are halved after this many look-ups per row of capacity. A lower value follows a changing stream
        faster; a higher value estimates a steady one better.
    arrays
        Where the arrays live; a cache left in mapped files keeps its contents.
    """

    FORMAT = "hot tuples 3"
    """Changes with the arrays and their meaning, so that a cache in files of another format is not used."""

    def __init__(
        self, codec: RowCodec, capacity: int, row_bytes: float = 0.0, *, aging: float = 24.0, arrays: Arrays = in_memory
    ) -> None:
        self.capacity = capacity
        self.aging = max(1, int(aging * capacity))
        """Look-ups after which frequencies are halved."""
        self._rows = RowStore(codec, capacity, row_bytes, arrays)
        self._t = _Table(
            key=arrays("key", capacity, np.int64),
            chain=arrays("chain", capacity, np.int32),
            frequency=arrays("frequency", capacity, np.uint32),
            head=arrays("head", capacity, np.uint8),
            flags=arrays("flags", capacity, np.uint8),
            entries=arrays("entries", entries_for(capacity), np.uint64),
            state=arrays("state", 6, np.int64),
        )
        if not self._t.state[_READY]:
            self._t.chain[:] = np.append(np.arange(1, capacity), -1)
            self._t.state[_READY] = 1
        self._victims: Slots = np.empty(0, np.int32)
        self._victim_at = 0
        self.evictions = 0

    @staticmethod
    def bytes_beside_row() -> int:
        """Return the bytes of one row of capacity in addition to the row."""
        return 8 + 4 + 4 + 1 + 1 + ENTRY_BYTES

    @classmethod
    def bytes_per_tuple(cls, codec: RowCodec, row_bytes: float = 0.0) -> int:
        """Return the bytes of one more row of capacity (``u``)."""
        return cls.bytes_beside_row() + RowStore.bytes_per_slot(codec, row_bytes)

    @staticmethod
    def fixed_bytes() -> int:
        """Return the bytes of a cache without its rows."""
        return 128

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self._t) + self._rows.nbytes

    def __len__(self) -> int:
        """Return the number of rows held."""
        return int(self._t.state[_ROWS])

    @property
    def full(self) -> bool:
        """Whether another row would evict one."""
        return len(self) >= self.capacity

    def look_up(self, keys: Ints) -> tuple[NDArray[np.bool_], Ints, Slots]:
        """Look keys up and record the hits.

        Returns
        -------
        Which keys are held; and for each of their rows, the position of its key in ``keys`` and its slot.
        """
        found = _look_up(self._t, frozen(keys), True)
        if self._t.state[_LOOKED] - self._t.state[_AGED] >= self.aging:
            self._t.frequency[:] >>= np.uint32(1)
            self._t.state[_AGED] = self._t.state[_LOOKED]
        return found

    def holds(self, keys: Ints) -> NDArray[np.bool_]:
        """Return which keys are held, without recording hits."""
        return ~_absent(self._t, frozen(keys))

    def sizes(self, slots: Slots) -> Ints | int:
        """Return the bytes of the row in each slot; one number if all rows have the same size."""
        return self._rows.sizes(slots)

    def rows(self, slots: Slots, *, copied: bool = False) -> tuple[Bytes, Ints, Bytes]:
        """Return a buffer, and start and flags of each slot's row; ``copied`` rows stay valid if the cache changes."""
        data, starts = self._rows.copied(slots) if copied else self._rows.locate(slots)
        return data, starts, self._t.flags[slots]

    def admit(self, candidates: Candidates, data: Bytes) -> None:
        """Admit keys, whose rows begin at ``candidates.starts`` in ``data``; a full cache evicts less frequent keys."""
        keep = _absent(self._t, frozen(candidates.keys))
        counts = np.diff(candidates.bounds)
        if counts.size and counts.max() == 1:
            self._admit_single(candidates, keep, data)
            return
        for i in np.flatnonzero(keep & (counts <= self.capacity)):
            rows = self._encoded(data, candidates.starts[candidates.bounds[i] : candidates.bounds[i + 1]])
            if not self._make_room(int(counts[i]), rows.lengths, int(candidates.frequency[i])):
                continue
            slots = np.empty(counts[i], np.int32)
            flags = candidates.flags[candidates.bounds[i] : candidates.bounds[i + 1]]
            _insert(self._t, candidates.keys[i], candidates.frequency[i], flags, slots)
            self._rows.put(slots, rows)

    def remove(self, keys: Ints) -> None:
        """Remove keys, for example after an update of R; keys that are not held are skipped."""
        slots = _remove(self._t, frozen(keys))
        self._rows.free(slots)
        self._victims = np.empty(0, np.int32)
        self._victim_at = 0

    def clear(self) -> None:
        """Remove all keys."""
        self.remove(self._t.key[np.flatnonzero(self._t.head)])

    def check(self) -> None:
        """Assert that table, chains, free list and rows agree."""
        t = self._t
        used: list[int] = []
        heads = 0
        for at in np.flatnonzero(t.entries):
            slot = int(position_at(t.entries, at))
            heads += 1
            assert find(t.entries, t.key, t.key[slot]) == at, f"key {t.key[slot]} is not found where it is"
            assert t.head[slot] == 1, "a table entry does not lead to a first row"
            key = t.key[slot]
            while slot >= 0:
                assert t.key[slot] == key, "a chain holds two keys"
                used.append(slot)
                slot = int(t.chain[slot])
        assert heads == t.state[_KEYS] == np.count_nonzero(t.head), (heads, t.state[_KEYS])
        assert len(used) == len(set(used)) == len(self) <= self.capacity, (len(used), len(self), self.capacity)
        free, slot = 0, int(t.state[_FREE])
        while slot >= 0:
            free += 1
            slot = int(t.chain[slot])
        assert free + len(used) == self.capacity, f"{free} free + {len(used)} of {self.capacity}"
        self._rows.check(np.array(used, np.int32))

    def _admit_single(self, candidates: Candidates, keep: NDArray[np.bool_], data: Bytes) -> None:
        """Admit keys of one row each together, most frequent first."""
        chosen = np.flatnonzero(keep)
        if chosen.size > self.capacity - len(self):
            chosen = chosen[np.argsort(-candidates.frequency[chosen], kind="stable")]
        rows = self._encoded(data, candidates.starts[chosen])
        room = self._room_for(rows.lengths, candidates.frequency[chosen])
        chosen = chosen[:room]
        slots = _insert_single(
            self._t, frozen(candidates.keys[chosen]), frozen(candidates.frequency[chosen]), candidates.flags[chosen]
        )
        self._rows.put(slots, rows.head(room))

    def _encoded(self, data: Bytes, starts: Ints) -> Rows:
        if not self._rows.variable:
            return Rows(data, starts, np.full(starts.size, self._rows.codec.stride, np.int64))
        words = np.empty((starts.size, 4), np.uint8)
        for byte in range(4):
            words[:, byte] = data[starts + byte]
        return Rows(data, starts, words.view(np.uint32).reshape(-1).astype(np.int64))

    def _room_for(self, lengths: Ints, frequency: Ints) -> int:
        """Evict for single rows; return how many can be admitted.

        ``frequency`` descends if the cache is too full.
        """
        room = min(lengths.size, self.capacity - len(self), self._rows.fitting(lengths))
        while room < lengths.size:
            victims = self._least_frequent(lengths.size - room, frequency[room:])
            if victims.size == 0:
                break
            self._evict(victims)
            room = min(lengths.size, self.capacity - len(self), self._rows.fitting(lengths))
        return room

    def _make_room(self, rows: int, lengths: Ints, frequency: int) -> bool:
        while self.capacity - len(self) < rows or self._rows.fitting(lengths) < rows:
            victims = self._least_frequent(1, np.array([frequency]))
            if victims.size == 0:
                return False
            self._evict(victims)
        return True

    def _evict(self, victims: Slots) -> None:
        self._rows.free(_remove(self._t, frozen(self._t.key[victims])))
        self.evictions += victims.size

    def _least_frequent(self, most: int, than: Ints) -> Slots:
        """Return up to ``most`` first rows, the i-th less frequent than the i-th of ``than``."""
        if self._victim_at == self._victims.size:
            heads = np.flatnonzero(self._t.head).astype(np.int32)
            share = max(64, heads.size // 16)
            if heads.size > share:
                lowest = np.argpartition(self._t.frequency[heads], share - 1)[:share]
                heads = heads[lowest]
            self._victims = heads[np.argsort(self._t.frequency[heads], kind="stable")]
            self._victim_at = 0
        victims = self._victims[self._victim_at : self._victim_at + most]
        self._victim_at += victims.size
        still = self._t.head[victims] == 1
        less = self._t.frequency[victims] < than[: victims.size]
        chosen: Slots = victims[still & less]
        return chosen
