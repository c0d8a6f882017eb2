"""The stream table against lists and dictionaries, every invariant checked after every action."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from semistream.relation.pages.page_layout import FIRST, LAST, WHOLE, PageLayout, pack_pages, pages_needed
from semistream.relation.rows.row_codec import RowCodec, Rows
from semistream.structures.stream_table import StreamTable

# few enough to meet again, and the ends of what a key can be
KEYS = [0, 1, 2, 3, 5, 8, 13, -1, 2**63 - 1, -(2**63), 2**32, 2**40 + 1]
keys = st.sampled_from(KEYS)
FIXED = pa.schema({"position": pa.int64(), "value": pa.float64()})
VARYING = pa.schema({"position": pa.int64(), "value": pa.string()})


def some_pages(row_keys: list[int], per_page: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pages with these rows in order, and the key and flags of each row as a relation would have them."""
    found = np.array(row_keys, np.int64)
    page = np.arange(found.size) // per_page
    flags = np.zeros(found.size, np.uint8)
    for key in set(row_keys):
        at = np.flatnonzero(found == key)
        flags[at[0]] |= FIRST
        flags[at[-1]] |= LAST
        if page[at[0]] == page[at[-1]]:
            flags[at] |= WHOLE
    layout = PageLayout(512, 8)
    rows = Rows(np.arange(found.size).view(np.uint8), np.arange(found.size) * 8, np.full(found.size, 8))
    breaks = np.append(np.arange(0, found.size, per_page), found.size)
    return pack_pages(layout, found, flags, rows, breaks), found, flags


class TableMachine(RuleBasedStateMachine):
    """`waiting` is what the table should hold: (key, position, value, matched), the oldest first."""

    @initialize(capacity=st.integers(1, 24), varying=st.booleans(), row_bytes=st.sampled_from([0.0, 20.0, 60.0]))
    def make(self, capacity: int, varying: bool, row_bytes: float) -> None:
        self.varying = varying
        self.codec = RowCodec(VARYING if varying else FIXED)
        self.table = StreamTable(self.codec, capacity, row_bytes)
        self.waiting: list[list[Any]] = []
        self.arrived = 0
        reserved = capacity * StreamTable.bytes_per_tuple(self.codec, row_bytes) + StreamTable.fixed_bytes()
        assert self.table.nbytes <= reserved

    @rule(arriving=st.lists(st.tuples(keys, st.integers(0, 90)), max_size=12))
    def insert(self, arriving: list[tuple[int, int]]) -> None:
        batch_keys = np.array([key for key, _ in arriving], np.int64)
        positions = list(range(self.arrived, self.arrived + len(arriving)))
        values = [("v" * size if self.varying else float(size)) for _, size in arriving]
        batch = pa.record_batch([positions, values], schema=self.codec.schema)
        taken = self.table.insert(batch_keys, batch)
        assert 0 <= taken <= len(arriving)
        if not self.varying:
            assert taken == min(len(arriving), self.table.capacity - len(self.waiting))
        for row in range(taken):
            self.waiting.append([int(batch_keys[row]), positions[row], values[row], False])
        if self.varying and taken < len(arriving) and not self.waiting:
            assert self.codec.encode(batch).lengths[0] > self.table.largest_row, "an empty table refused a row"
        self.arrived += len(arriving)

    @rule(count=st.integers(0, 30))
    def look_at_the_ends(self, count: int) -> None:
        order = [key for key, *_ in self.waiting]
        assert self.table.oldest_keys(count).tolist() == list(dict.fromkeys(order))[:count]
        assert self.table.newest_keys(count).tolist() == list(dict.fromkeys(reversed(order)))[:count]

    @rule(count=st.integers(0, 10))
    def take_oldest(self, count: int) -> None:
        gone, self.waiting = self.waiting[:count], self.waiting[count:]
        self._took(*self.table.take_oldest(count), gone)

    @rule(chosen=st.lists(keys, max_size=4, unique=True))
    def take_keys(self, chosen: list[int]) -> None:
        gone = [row for key in chosen for row in self.waiting if row[0] == key]
        self.waiting = [row for row in self.waiting if row[0] not in chosen]
        self._took(*self.table.take_keys(np.array(chosen, np.int64)), gone)

    @rule(
        row_keys=st.lists(keys, min_size=1, max_size=40),
        per_page=st.integers(1, 25),
        cap=st.sampled_from([1, 2, 7, 1000]),
        wanted=st.one_of(st.none(), st.lists(keys, max_size=3, unique=True)),
        leave=st.booleans(),
    )
    def probe(self, row_keys: list[int], per_page: int, cap: int, wanted: list[int] | None, leave: bool) -> None:
        frames, found, flags = some_pages(row_keys, per_page)
        expected: list[tuple[int, int]] = []
        for row in range(found.size):
            key, flag = int(found[row]), int(flags[row])
            if wanted is not None and not flag & WHOLE and key not in wanted:
                continue
            for waiting in [waiting for waiting in self.waiting if waiting[0] == key]:
                expected.append((waiting[1], row))
                waiting[3] = True
            if leave and flag & LAST and flag & WHOLE:
                self.waiting = [waiting for waiting in self.waiting if waiting[0] != key]
        met: list[tuple[int, int]] = []
        cursor = np.array([0, 0, -1], np.int64)
        chosen = None if wanted is None else np.sort(np.array(wanted, np.int64))
        while cursor[0] < len(frames):
            slots, starts, seen, _ = self.table.probe(frames, 8, cursor, cap, wanted=chosen, leave=leave)
            assert slots.size == starts.size == seen.size <= cap
            positions = self.table.rows(slots).column("position").to_pylist()
            rows = [int(frames.reshape(-1)[start : start + 8].view(np.int64)[0]) for start in starts]
            assert seen.tolist() == flags[rows].tolist()
            assert self.table.keys_of(slots).tolist() == found[rows].tolist()
            met += zip(positions, rows, strict=True)
            if leave:
                self.table.release(self.table.leaving(slots, seen))
        assert met == expected

    def _took(self, slots: Any, matched: Any, gone: list[list[Any]]) -> None:
        batch = self.table.rows(slots)
        assert self.table.keys_of(slots).tolist() == [row[0] for row in gone]
        assert batch.column("position").to_pylist() == [row[1] for row in gone]
        assert batch.column("value").to_pylist() == [row[2] for row in gone]
        assert matched.tolist() == [row[3] for row in gone]
        self.table.release(slots)

    @invariant()
    def holds_what_waits(self) -> None:
        if not hasattr(self, "table"):
            return
        self.table.check()
        assert len(self.table) == len(self.waiting)
        assert self.table.free == self.table.capacity - len(self.waiting)
        assert self.table.distinct_keys == len({row[0] for row in self.waiting})


TestStreamTable = TableMachine.TestCase
TestStreamTable.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("varying", [True, False])
def test_long_stress(varying: bool) -> None:
    """A large table, filled and emptied at random for long; its hash table passes through all loads."""
    rng = np.random.default_rng(3)
    codec = RowCodec(VARYING if varying else FIXED)
    table = StreamTable(codec, 700, 40.0)
    waiting: list[tuple[int, int]] = []
    arrived = 0
    for turn in range(400):
        count = int(rng.integers(0, 200))
        ids = rng.integers(0, 10 ** int(rng.integers(1, 19)), count)
        positions = np.arange(arrived, arrived + count)
        values = ["v" * int(size) for size in rng.integers(0, 80, count)] if varying else rng.random(count)
        batch = pa.record_batch([positions, values], schema=codec.schema)
        taken = table.insert(ids, batch)
        waiting += zip(ids[:taken].tolist(), positions[:taken].tolist(), strict=True)
        arrived += count
        if rng.random() < 0.5:
            slots, _ = table.take_oldest(int(rng.integers(0, 150)))
            gone, waiting = waiting[: slots.size], waiting[slots.size :]
        else:
            chosen = set(rng.choice([key for key, _ in waiting] or [0], 40).tolist())
            slots, _ = table.take_keys(np.array(sorted(chosen), np.int64))
            gone = [row for row in waiting if row[0] in chosen]
            waiting = [row for row in waiting if row[0] not in chosen]
        assert sorted(table.rows(slots).column("position").to_pylist()) == sorted(position for _, position in gone)
        table.release(slots)
        assert len(table) == len(waiting)
        if turn % 20 == 0:
            table.check()
            assert table.oldest_keys(9999).tolist() == list(dict.fromkeys(key for key, _ in waiting))


def test_check_finds_damage() -> None:
    table = StreamTable(RowCodec(FIXED), 8)
    table.insert(np.array([1, 2, 1, 3]), pa.record_batch([[0, 1, 2, 3], [0.0] * 4], schema=FIXED))
    table.check()
    for name, damage in (("after", 0), ("chain", -1), ("key", 7), ("entries", 0), ("tail", 1)):
        array = getattr(table._t, name)
        kept = array.copy()
        array[:] = np.where(np.arange(array.size) < 4, damage, array) if name != "entries" else 0
        with pytest.raises((AssertionError, KeyError)):
            table.check()
        array[:] = kept
        table.check()


def test_pages_are_cut_where_rows_no_longer_fit() -> None:
    """The pages of these tests are laid out by hand: the same as the writer's."""
    lengths = np.full(100, 8)
    breaks = pages_needed(lengths, 512, 8)
    assert np.diff(breaks)[:-1].tolist() == [PageLayout(512, 8).capacity(512)] * (breaks.size - 2)
    assert PageLayout(512, 8).capacity(512) >= 25
