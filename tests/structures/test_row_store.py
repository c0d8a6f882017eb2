"""The row store against a dictionary, every invariant checked after every action."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from semistream.relation.rows.row_codec import RowCodec, Rows
from semistream.structures.elastic import ElasticArrays
from semistream.structures.row_blocks import KINDS
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


def words_of(length: int) -> int:
    return max(2, -(-(length + 4) // 8))


class StoreMachine(RuleBasedStateMachine):
    """`held` is what the store should hold: slot → row."""

    @initialize(
        kind=st.sampled_from(list(SCHEMAS)),
        slots=st.integers(1, 20) | st.integers(150, 200),
        row_bytes=st.sampled_from([0.0, 10.0, 33.0, 200.0]),
    )
    def make(self, kind: str, slots: int, row_bytes: float) -> None:
        self.kind = kind
        self.codec = RowCodec(SCHEMAS[kind])
        self.store = RowStore(self.codec, slots, row_bytes)
        self.held: dict[int, dict[str, Any]] = {}
        self.lengths: dict[int, int] = {}
        assert self.store.nbytes <= slots * RowStore.bytes_per_slot(self.codec, row_bytes) + 28

    @rule(sizes=st.lists(cells, max_size=40))
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
        words = (self.store.largest_row + 4) // 8 - sum(map(words_of, self.lengths.values()))
        for count, length in enumerate(lengths):
            words -= words_of(length)
            if words < 0:
                return count
        return len(lengths)

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if self.held:
            chosen = data.draw(st.lists(st.sampled_from(sorted(self.held)), max_size=30, unique=True))
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


def encoded(codec: RowCodec, lengths: list[int]) -> Rows:
    """Return rows of these many bytes, each of another letter."""
    texts = [chr(97 + i % 26) * (length - codec.stride) for i, length in enumerate(lengths)]
    rows = codec.encode(pa.record_batch({"a": list(range(len(texts))), "b": texts}, schema=codec.schema))
    assert rows.lengths.tolist() == lengths
    return rows


def test_a_full_store_is_full_to_the_last_word() -> None:
    codec = RowCodec(SCHEMAS["varying"])
    store = RowStore(codec, 20, row_bytes=16.0)
    for length in (store.largest_row, store.largest_row + 1):
        assert store.fitting(encoded(codec, [length]).lengths) == (length <= store.largest_row)
    count = (store.largest_row + 4) // 32
    assert 10 < count < 20
    small = encoded(codec, [28] * 20)  # four words each
    assert store.fitting(small.lengths) == count
    store.put(np.arange(count, dtype=np.int32), small.head(count))
    assert store.fitting(small.lengths) == 0
    store.free(np.array([3, 7], np.int32))
    assert store.fitting(small.lengths) == 2
    store.put(np.array([18, 19], np.int32), small.head(2))
    store.check(np.setdiff1d(np.append(np.arange(count), [18, 19]), [3, 7]).astype(np.int32))


def test_a_row_takes_a_hole_of_its_size_and_no_other_row_moves() -> None:
    codec = RowCodec(SCHEMAS["varying"])
    store = RowStore(codec, 1000, row_bytes=120.0)
    lengths = [60, 100, 140, 180, 100]
    store.put(np.arange(5, dtype=np.int32), encoded(codec, lengths))
    _, before = store.locate(np.arange(5, dtype=np.int32))
    store.free(np.array([2, 1], np.int32))
    store.put(np.array([7, 8], np.int32), encoded(codec, [140, 100]))
    _, after = store.locate(np.array([0, 8, 7, 3, 4], np.int32))
    assert after.tolist() == before.tolist()
    assert store.moves == 0


def test_rows_are_moved_together_when_holes_are_too_small_for_what_is_free() -> None:
    codec = RowCodec(SCHEMAS["varying"])
    store = RowStore(codec, 400, row_bytes=60.0)
    count = store.fitting(np.full(400, 60))
    store.put(np.arange(count, dtype=np.int32), encoded(codec, [60] * count))
    kept = np.arange(0, count, 2, dtype=np.int32)
    store.free(np.arange(1, count, 2, dtype=np.int32))
    large = encoded(codec, [3_000])
    assert store.fitting(large.lengths) == 1
    store.put(np.array([1], np.int32), large)
    assert store.moves == 1
    store.check(np.append(kept, np.int32(1)))
    found = codec.decode(*store.locate(kept)).to_pylist()
    assert found == [{"a": int(i), "b": chr(97 + i % 26) * (60 - codec.stride)} for i in kept]
    assert codec.decode(*store.locate(np.array([1], np.int32))).to_pylist()[0]["b"] == "a" * (3_000 - codec.stride)


@pytest.mark.long
def test_rows_of_steady_lengths_are_seldom_moved() -> None:
    codec = RowCodec(SCHEMAS["varying"])
    random = np.random.default_rng(7)
    store = RowStore(codec, 20_000, row_bytes=137.0)
    held, put = np.empty(0, np.int32), 0
    for _ in range(200):
        lengths = random.normal(137, 12, 1_000).astype(int).clip(100, 200)
        while held.size + 1_000 > 20_000 or store.fitting(lengths) < 1_000:
            gone = random.choice(held.size, 64, replace=False)
            store.free(held[gone])
            held = np.delete(held, gone)
        slots = np.setdiff1d(np.arange(20_000, dtype=np.int32), held)[:1_000]
        store.put(slots, encoded(codec, lengths.tolist()))
        held, put = np.append(held, slots), put + 1_000
    store.check(held)
    # of 18 k rows that were held at a time, and 200 k that came
    assert held.size > 18_500
    assert store.moves <= 10, store.moves


def test_copies_stay_when_rows_go() -> None:
    codec = RowCodec(SCHEMAS["varying"])
    store = RowStore(codec, 10, row_bytes=50.0)
    slots = np.arange(4, dtype=np.int32)
    store.put(slots, encoded(codec, [40, 50, 60, 30]))
    data, starts = store.copied(slots[::-1])
    store.free(slots)
    store.put(slots, encoded(codec, [30, 60, 50, 40]))
    assert [len(row["b"]) for row in codec.decode(data, starts).to_pylist()] == [
        length - codec.stride for length in (30, 60, 50, 40)
    ]
    assert [row["a"] for row in codec.decode(data, starts).to_pylist()] == [3, 2, 1, 0]


def test_a_store_is_resized_with_what_it_holds() -> None:
    codec = RowCodec(SCHEMAS["varying"])
    arrays = ElasticArrays()
    store = RowStore(codec, 1_000, 100.0, arrays)
    lengths = [60 + i % 90 for i in range(700)]
    store.put(np.arange(700, dtype=np.int32), encoded(codec, lengths))
    store.free(np.arange(0, 700, 3, dtype=np.int32))
    used = np.array([i for i in range(700) if i % 3], np.int32)
    store.move(used[-20:], np.arange(0, 60, 3, dtype=np.int32))
    used = np.append(used[:-20], np.arange(0, 60, 3, dtype=np.int32))
    expected = codec.decode(*store.copied(used)).to_pylist()
    for slots in (690, 5_000, 690, 800):
        store.resize(slots, arrays)
        store.check(used)
        assert codec.decode(*store.locate(used)).to_pylist() == expected
    store.free(used[5:])
    store.resize(60, arrays)  # so small that holes are of one kind
    store.check(used[:5])
    assert codec.decode(*store.locate(used[:5])).to_pylist() == expected[:5]
    store.resize(3_000, arrays)
    store.put(np.arange(100, 900, dtype=np.int32), encoded(codec, [100] * 800))
    store.check(np.append(used[:5], np.arange(100, 900, dtype=np.int32)))
    assert arrays.copies == 0


def test_check_finds_damage() -> None:
    codec = RowCodec(SCHEMAS["varying"])
    store = RowStore(codec, 6, row_bytes=60)
    store.put(np.arange(4, dtype=np.int32), encoded(codec, [58] * 4))
    store.free(np.array([1], np.int32))
    held = np.array([0, 2, 3], np.int32)
    store.check(held)
    with pytest.raises(AssertionError, match="slots in use differ"):
        store.check(held[:2])
    hole, store.table.holes[0] = int(store.table.holes[0]), -1
    with pytest.raises(AssertionError, match="1 holes, 0 listed"):
        store.check(held)
    store.table.holes[0] = hole
    store.check(held)
    store.table.words[0] += 16 << 32
    with pytest.raises(AssertionError, match="the last block ends"):
        store.check(held)


def test_a_row_that_is_none_has_no_bytes() -> None:
    codec = RowCodec(SCHEMAS["varying"])
    store = RowStore(codec, 8, row_bytes=60.0)
    store.table.words[:] = np.frombuffer(b"~" * store.table.words.nbytes, np.int64)  # whatever was there before
    store.put(np.array([2, 7], np.int32), encoded(codec, [58, 44]))
    sizes = store.sizes(np.array([-1, 2, -1, 5, 7], np.int32)) - codec.blank_bytes
    assert sizes.tolist() == [0, 58, 0, 0, 44]


@pytest.mark.parametrize("slots", [100, 2_000])
def test_as_many_rows_of_the_size_expected_fit_as_there_are_slots(slots: int) -> None:
    codec = RowCodec(SCHEMAS["varying"])
    random = np.random.default_rng(2)
    for length in [*range(codec.stride, 200), 777, 3_001]:
        store = RowStore(codec, slots, float(length))
        in_place_of_rows = 1 + 4 * KINDS // (length + 4)  # of what leads to holes
        assert store.fitting(np.full(slots, length)) >= slots - in_place_of_rows, length
        varied = random.integers(length * 4 // 5, length * 6 // 5 + 1, slots)
        assert store.fitting(varied) >= slots * 0.94, length


def test_stores_of_rows_that_are_a_little_longer_are_as_large() -> None:
    codec = RowCodec(SCHEMAS["varying"])
    sizes = {RowStore.bytes_per_slot(codec, 136.3 + part / 100) for part in range(300)}
    assert len(sizes) == 1
    assert RowStore.bytes_per_slot(codec, 145.0) > sizes.pop()


@pytest.mark.parametrize("row_bytes", [0.0, 9.0, 60.0, 137.0, 1_000.0])
def test_more_slots_are_never_fewer_words(row_bytes: float) -> None:
    store = RowStore(RowCodec(SCHEMAS["varying"]), 1, row_bytes)
    words = [store.words_for(slots) for slots in range(1, 3_000)]
    assert words == sorted(words)


def test_a_full_store_grows_from_holes_of_one_kind_to_many() -> None:
    codec = RowCodec(SCHEMAS["varying"])
    arrays = ElasticArrays()
    store = RowStore(codec, 200, codec.stride + 9.0, arrays)
    one_kind = store.table.holes.size
    slots, number = np.empty(0, np.int32), 200
    while store.table.holes.size == one_kind:
        fitting = min(number - slots.size, store.fitting(np.full(number, codec.stride + 9)))
        more = np.arange(slots.size, slots.size + fitting, dtype=np.int32)
        store.put(more, encoded(codec, [codec.stride + 9] * fitting))
        slots, number = np.append(slots, more), number + 1
        store.resize(number, arrays)
        store.check(slots)
    assert store.table.holes.size > one_kind
    assert {len(row["b"]) for row in codec.decode(*store.locate(slots)).to_pylist()} == {9}
