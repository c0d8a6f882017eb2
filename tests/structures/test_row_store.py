"""The row store against a dictionary, every invariant checked after every action."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from semistream.relation.rows.row_codec import RowCodec
from semistream.structures.row_store import RowStore

SCHEMAS = {
    "fixed": pa.schema({"a": pa.int32(), "b": pa.float64()}),
    "varying": pa.schema({"a": pa.int32(), "b": pa.string()}),
    "nested": pa.schema({"b": pa.list_(pa.struct({"c": pa.string(), "d": pa.int8()})), "a": pa.bool_()}),
    "one byte": pa.schema([]),
}
cells = st.one_of(st.none(), st.integers(0, 120))


def row_of(kind: str, size: int | None) -> dict[str, Any]:
    if kind == "fixed":
        return {"a": size, "b": None if size is None else size / 3}
    if kind == "varying":
        return {"a": 7, "b": None if size is None else "é" * size}
    if kind == "nested":
        inner = None if size is None else [{"c": "x" * size, "d": None}] * (size % 3)
        return {"b": inner, "a": size == 5}
    return {}


def segments_of(length: int) -> int:
    return -(-length // RowStore.SEGMENT)


class StoreMachine(RuleBasedStateMachine):
    """`held` is what the store should hold: slot → row."""

    @initialize(
        kind=st.sampled_from(list(SCHEMAS)),
        slots=st.integers(1, 20),
        row_bytes=st.sampled_from([0.0, 10.0, 33.0, 200.0]),
    )
    def make(self, kind: str, slots: int, row_bytes: float) -> None:
        self.kind = kind
        self.codec = RowCodec(SCHEMAS[kind])
        self.store = RowStore(self.codec, slots, row_bytes)
        self.held: dict[int, dict[str, Any]] = {}
        self.lengths: dict[int, int] = {}
        assert self.store.nbytes <= slots * RowStore.bytes_per_slot(self.codec, row_bytes) + 128

    @rule(sizes=st.lists(cells, max_size=8))
    def put(self, sizes: list[int | None]) -> None:
        free = [slot for slot in range(self.store.slots) if slot not in self.held]
        rows = [row_of(self.kind, size) for size in sizes[: len(free)]]
        if not rows or self.kind == "one byte":
            return
        encoded = self.codec.encode(pa.RecordBatch.from_pylist(rows, schema=self.codec.schema))
        fitting = self.store.fitting(encoded.lengths)
        assert fitting == self._fitting(encoded.lengths.tolist())
        slots = np.array(free[:fitting][::-1], np.int32)
        self.store.put(slots, encoded.head(fitting))
        self.held.update(zip(slots.tolist(), rows[:fitting], strict=True))
        self.lengths.update(zip(slots.tolist(), encoded.lengths.tolist(), strict=False))

    def _fitting(self, lengths: list[int]) -> int:
        if not self.store.variable:
            return len(lengths)
        segments = self.store.largest_row // RowStore.SEGMENT - sum(map(segments_of, self.lengths.values()))
        for count, length in enumerate(lengths):
            segments -= segments_of(length)
            if segments < 0:
                return count
        return len(lengths)

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if self.held:
            chosen = data.draw(st.lists(st.sampled_from(sorted(self.held)), max_size=6, unique=True))
            self.store.free(np.array(chosen, np.int32))
            for slot in chosen:
                del self.held[slot], self.lengths[slot]

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        if self.held:
            chosen = data.draw(st.lists(st.sampled_from(sorted(self.held)), max_size=15))
            found, starts = self.store.locate(np.array(chosen, np.int32))
            assert self.codec.decode(found, starts).to_pylist() == [self.held[slot] for slot in chosen]

    @invariant()
    def holds_what_was_put(self) -> None:
        if hasattr(self, "store"):
            self.store.check(np.array(sorted(self.held), np.int32))


TestRowStore = StoreMachine.TestCase
TestRowStore.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def test_a_full_store_is_full_to_the_last_segment() -> None:
    codec = RowCodec(SCHEMAS["varying"])
    store = RowStore(codec, 10, row_bytes=RowStore.SEGMENT)
    head = codec.stride
    for length in (store.largest_row - head, store.largest_row - head + 1):
        rows = codec.encode(pa.RecordBatch.from_pylist([{"a": 1, "b": "x" * length}], schema=codec.schema))
        assert store.fitting(rows.lengths) == (rows.lengths[0] <= store.largest_row)
    small = codec.encode(pa.RecordBatch.from_pylist([{"a": i, "b": "x"} for i in range(12)], schema=codec.schema))
    assert store.fitting(small.lengths) == 10
    store.put(np.arange(10, dtype=np.int32), small.head(10))
    assert store.fitting(small.lengths) == 0
    store.free(np.array([3, 7], np.int32))
    assert store.fitting(small.lengths) == 2
    store.check(np.array([0, 1, 2, 4, 5, 6, 8, 9], np.int32))


def test_check_finds_damage() -> None:
    codec = RowCodec(SCHEMAS["varying"])
    store = RowStore(codec, 6, row_bytes=60)
    rows = codec.encode(pa.RecordBatch.from_pylist([{"a": i, "b": "x" * 50} for i in range(3)], schema=codec.schema))
    store.put(np.arange(3, dtype=np.int32), rows)
    store.check(np.arange(3, dtype=np.int32))
    with pytest.raises(AssertionError, match="slots in use differ"):
        store.check(np.arange(2, dtype=np.int32))
    store._t.next[int(store._t.state[0])] = -1
    with pytest.raises(AssertionError, match="segments"):
        store.check(np.arange(3, dtype=np.int32))
