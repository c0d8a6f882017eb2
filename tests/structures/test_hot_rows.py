"""The arena of rows: what is known of a key is right or nothing, whatever comes, goes, and moves."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from semistream.relation.rows.row_codec import RowCodec, Rows
from semistream.structures.array_source import MappedArrays
from semistream.structures.hot import hot_row_going as going
from semistream.structures.hot import hot_row_kernels as kernels
from semistream.structures.hot.hot_rows import HotRows

FIXED = pa.schema({"key": pa.int64(), "nth": pa.int32()})
VARYING = pa.schema({"key": pa.int64(), "nth": pa.int32(), "text": pa.string()})


def rows_of(keys: np.ndarray, schema: pa.Schema) -> tuple[np.ndarray, Rows]:
    """Key k has k % 4 rows, so some have none; text grows with the key."""
    counts = keys % 4
    owners = np.repeat(np.arange(keys.size), counts)
    nth = np.concatenate([np.arange(count) for count in counts]) if keys.size else np.empty(0, np.int64)
    columns = {"key": keys[owners], "nth": nth.astype(np.int32)}
    if "text" in schema.names:
        columns["text"] = ["x" * int(key % 90) for key in keys[owners]]
    return owners, RowCodec(schema).encode(pa.record_batch(columns, schema=schema))


def look(arena: HotRows, codec: RowCodec, numbers: np.ndarray) -> dict[int, list[int]]:
    """Return the rows of each position."""
    found: dict[int, list[int]] = {position: [] for position in range(numbers.size)}
    begin, row = 0, -1
    while begin < numbers.size:
        positions, rows, begin, row = arena.expand(numbers, begin, row, 7, alone=False)
        for position, values in zip(positions.tolist(), codec.decode(*arena.locate(rows)).to_pylist(), strict=True):
            found[position].append(values)
    return found


@pytest.mark.parametrize("schema", [FIXED, VARYING], ids=["fixed", "varying"])
@pytest.mark.parametrize("seed", range(3))
def test_windows_in_an_arena_that_moves(schema, seed):
    rng = np.random.default_rng(seed)
    codec = RowCodec(schema)
    arena = HotRows(codec, 300, 240, 80.0, aging=3.0)
    for turn in range(60):
        keys = np.minimum(rng.zipf(1.2, 150), 2000).astype(np.int64)
        valid = rng.random(keys.size) > 0.05
        numbers = np.empty(keys.size, np.int32)
        done, hits = arena.number(keys, valid, numbers)
        assert done == keys.size
        assert 0 <= hits <= done
        unknown = arena.unknown()
        wanted = arena.keys_of(unknown)
        owners, rows = rows_of(wanted, schema)
        assert arena.attach(unknown[owners], rows)
        arena.settle(unknown)
        for position, rows_found in look(arena, codec, numbers).items():
            key = int(keys[position])
            expected = key % 4 if valid[position] else 0
            assert [row["nth"] for row in rows_found] == list(range(expected))
            assert all(row["key"] == key and row.get("text", "") == "x" * (key % 90 if "text" in row else 0)
                       for row in rows_found)  # fmt: skip
        if turn % 7 == 3:
            arena.forget(np.unique(keys[:20]))
        arena.unpin()
        if turn % 5 == 4:
            assert arena.resize(int(rng.integers(160, 400)))
        arena.check()


def test_a_held_number_stays_valid_when_its_rows_go():
    codec = RowCodec(FIXED)
    arena = HotRows(codec, 40, 10)
    numbers = np.empty(6, np.int32)
    arena.number(np.array([1, 5, 9, 13, 17, 21]), np.ones(6, bool), numbers)
    owners, rows = rows_of(arena.keys_of(numbers), FIXED)
    assert arena.attach(numbers[owners], rows)
    arena.pin_only(numbers[:2])
    more = np.empty(8, np.int32)
    arena.number(np.arange(101, 133, 4), np.ones(8, bool), more)
    owners, rows = rows_of(arena.keys_of(more), FIXED)
    assert arena.attach(more[owners], rows)
    arena.pin_only(numbers)
    assert arena.keys_of(numbers).tolist() == [1, 5, 9, 13, 17, 21]
    assert set(arena.keys_of(arena.unknown()).tolist()) == {9, 13, 17, 21}
    arena.check()


def test_frequent_keys_outlive_those_that_came_once():
    arena = HotRows(RowCodec(FIXED), 125, 100)
    hot = np.arange(1, 200, 4, dtype=np.int64)  # one row each
    for turn in range(40):
        keys = np.concatenate([hot, 1001 + 4 * (40 * turn + np.arange(40))])
        numbers = np.empty(keys.size, np.int32)
        arena.number(keys, np.ones(keys.size, bool), numbers)
        unknown = arena.unknown()
        if turn:
            assert not np.isin(hot, arena.keys_of(unknown)).any()
        owners, rows = rows_of(arena.keys_of(unknown), FIXED)
        assert arena.attach(unknown[owners], rows)
        arena.settle(unknown)
        arena.unpin()


def test_too_much_for_all_that_is_pinned_is_told():
    arena = HotRows(RowCodec(FIXED), 40, 10)
    keys = np.arange(3, 43, 4, dtype=np.int64)  # three rows each
    numbers = np.empty(keys.size, np.int32)
    arena.number(keys, np.ones(keys.size, bool), numbers)
    owners, rows = rows_of(arena.keys_of(numbers), FIXED)
    assert not arena.attach(numbers[owners], rows)
    arena.reset(numbers)
    arena.check()
    assert len(arena) == 0
    assert arena.unknown().size == keys.size


def test_an_arena_in_files_is_taken_up(tmp_path):
    keys = np.array([2, 3, 4], np.int64)
    numbers = np.empty(3, np.int32)
    arena = HotRows(RowCodec(VARYING), 20, 16, 40.0, arrays=MappedArrays(tmp_path))
    arena.number(keys, np.ones(3, bool), numbers)
    owners, rows = rows_of(keys, VARYING)
    arena.attach(numbers[owners], rows)
    arena.settle(numbers)
    again = HotRows(RowCodec(VARYING), 20, 16, 40.0, arrays=MappedArrays(tmp_path, existing=True))
    again.check()
    assert again.number(keys, np.ones(3, bool), numbers) == (3, 3)
    assert {k: len(v) for k, v in look(again, RowCodec(VARYING), numbers).items()} == {0: 2, 1: 3, 2: 0}


@pytest.mark.parametrize("schema", [FIXED, VARYING], ids=["fixed", "varying"])
@pytest.mark.parametrize("wanted", [85, 425, 850, 900])
def test_keys_that_stay_are_found_however_many_go(schema, wanted):
    left, codec = [], RowCodec(schema)
    for erasing in (True, False):
        arena = HotRows(codec, 1000, 1600, 80.0)
        keys = np.random.default_rng(3).permutation(10**12 + np.arange(1000))
        numbers = np.empty(keys.size, np.int32)
        arena.number(keys, np.ones(keys.size, bool), numbers)
        owners, rows = rows_of(keys, schema)
        assert arena.attach(numbers[owners], rows)
        arena.settle(numbers)
        arena.unpin()
        asked = keys[:150]
        arena.number(asked, np.ones(asked.size, bool), numbers[:150])
        arena.pin_only(numbers[:70])  # the next eighty are held: what is known of them may go, they may not
        plan, gone = going.plan_going(arena._t, wanted, 0, False), min(wanted, 850)
        assert plan[going.GOING] == gone
        arena._reclaim(plan, arena.keys + 1, arena.capacity + 1, erasing=erasing)
        arena.check()
        assert arena.places().size == 1000 - gone
        assert {k: len(v) for k, v in look(arena, codec, numbers[:70]).items()} == dict(enumerate(asked[:70] % 4))
        again = np.empty(asked.size, np.int32)
        arena.number(asked, np.ones(asked.size, bool), again)
        assert np.array_equal(again, numbers[:150])
        assert np.array_equal(np.sort(arena.unknown()), np.sort(numbers[70:150]) if wanted > 850 else [])
        left.append(np.sort(arena.keys_of(arena.places())))
        arena.forget(left[-1][::3])
        arena.unpin()
        arena.check()
    assert np.array_equal(*left)


def test_keys_that_a_batch_asks_for_do_not_go_for_others_of_it():
    arena = HotRows(RowCodec(FIXED), 100, 100)
    kept, numbers = 4 * np.arange(100), np.empty(100, np.int32)
    arena.number(kept, np.ones(100, bool), numbers)
    arena.settle(numbers)
    arena.unpin()
    new = 1000 + 4 * np.arange(50)
    both = np.column_stack([new, kept[50:]]).reshape(-1)  # what is there comes after what needs its place
    assert arena.number(both, np.ones(100, bool), numbers) == (100, 50)
    arena.check()


def test_a_new_key_takes_one_place_however_often_it_comes():
    arena = HotRows(RowCodec(FIXED), 320, 320)
    numbers = np.empty(1000, np.int32)
    arena.number(np.arange(320), np.ones(320, bool), numbers[:320])
    arena.unpin()
    arena.number(np.full(1000, 999), np.ones(1000, bool), numbers)
    assert arena.evictions == 320 // 16 + 1
    arena.check()


def test_keys_go_at_once_for_tuples_that_are_to_come_but_not_the_frequent_ones():
    size = 8192
    arena, numbers = HotRows(RowCodec(FIXED), size, size), np.empty(size, np.int32)
    often, new = np.arange(size // 4), 10**6 + np.arange(size)
    for keys in (often, often, np.arange(size)):
        arena.number(keys, np.ones(keys.size, bool), numbers[: keys.size])
        arena.settle(numbers[: keys.size])
        arena.unpin()
    arena.number(new[:1500], np.ones(1500, bool), numbers[:1500], coming=6000)
    gone = arena.evictions
    assert 1400 + size // 4 < gone <= 1500 + size // 4, "a quarter of all at most, beside those for which there is need"
    arena.number(new[1500:3400], np.ones(1900, bool), numbers[:1900], coming=4100)
    assert arena.evictions == gone, "there was place for these"
    assert arena.number(often, np.ones(often.size, bool), numbers[: often.size]) == (often.size, often.size)
    arena.check()


def test_a_few_new_keys_do_not_tell_how_many_are_to_come():
    arena, numbers = HotRows(RowCodec(FIXED), 8192, 8192), np.empty(8192, np.int32)
    arena.number(np.arange(8192), np.ones(8192, bool), numbers)
    arena.unpin()
    arena.number(np.array([10**6]), np.ones(1, bool), numbers[:1], coming=100_000)
    assert arena.evictions < 100
    arena.check()


def test_a_search_makes_room_for_later_calls():
    arena, numbers = HotRows(RowCodec(FIXED), 8192, 8192), np.empty(8192, np.int32)
    arena.number(np.arange(8192), np.ones(8192, bool), numbers)
    arena.unpin()
    evicted = []
    for new in range(10**6, 10**6 + 30):
        arena.number(np.array([new]), np.ones(1, bool), numbers[:1])
        arena.unpin()
        evicted.append(arena.evictions)
    assert evicted == [8192 // 256] * 30
    arena.check()


def test_of_keys_that_are_all_asked_for_the_last_go():
    arena = HotRows(RowCodec(FIXED), 320, 320)
    numbers = np.empty(1000, np.int32)
    arena.number(np.arange(320), np.ones(320, bool), numbers[:320])
    arena.settle(numbers[:320])
    arena.unpin()
    keys = np.concatenate([[999], np.arange(320), np.arange(1000, 1500)])
    done, hits = arena.number(keys, np.ones(keys.size, bool), numbers[: keys.size])
    assert done == 320
    assert hits > 250, "keys went that were asked for next"
    arena.check()


@pytest.mark.parametrize("seed", range(4))
def test_as_many_tuples_are_numbered_as_there_are_places(seed):
    rng = np.random.default_rng(seed)
    arena, numbers = HotRows(RowCodec(FIXED), 30, 30), np.empty(200, np.int32)
    for _ in range(50):
        keys = rng.integers(0, 60, 200)
        done, _ = arena.number(keys, np.ones(200, bool), numbers)
        assert np.unique(keys[:done]).size == 30
        assert done == 200 or keys[done] not in keys[:done]
        assert np.array_equal(arena.keys_of(numbers[:done]), keys[:done])
        assert not (arena._t.known & kernels.SOON).any()
        arena.settle(numbers[:done])
        arena.unpin()
        arena.check()


@pytest.mark.parametrize("schema", [FIXED, VARYING], ids=["fixed", "varying"])
def test_the_same_keys_go_bit_by_bit_as_at_once(schema, monkeypatch):
    monkeypatch.setattr("semistream.structures.hot.hot_rows._AT_ONCE", 3)
    left = []
    for expected in (False, True):
        rng = np.random.default_rng(5)
        arena = HotRows(RowCodec(schema), 400, 300, 80.0)
        for turn in range(12):
            keys = np.unique(np.minimum(rng.zipf(1.3, 200), 3000)).astype(np.int64)
            numbers = np.empty(keys.size, np.int32)
            arena.number(keys, np.ones(keys.size, bool), numbers)
            unknown = arena.unknown()
            owners, rows = rows_of(arena.keys_of(unknown), schema)
            before = arena.places().size
            if expected and turn == 11:
                arena.expect(owners.size)
                assert arena.places().size == before, "nothing goes before something comes"
                for at in range(0, owners.size, 10):
                    part = Rows(rows.data, rows.starts[at : at + 10], rows.lengths[at : at + 10])
                    assert arena.attach(unknown[owners[at : at + 10]], part)
                    arena.check()
            else:
                assert arena.attach(unknown[owners], rows)
            arena.settle(unknown)
            arena.unpin()
            arena.check()
        assert arena.evictions > 100
        left.append(set(arena.keys_of(arena.places()).tolist()))
    assert left[0] <= left[1]
    assert all(key % 4 == 0 for key in left[1] - left[0]), "keys without rows may stay: nobody needed their room"
